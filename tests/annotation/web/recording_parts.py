"""A recording that was made by hand and looked through, and its upload: for tests of what becomes of it on the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from annotation.recorder.review import edits
from annotation.recorder.review.upload import Uploader
from annotation.recorder.store.store import Store
from tests.annotation.recording.made_recording import make
from tests.annotation.web.web_parts import Site


def reviewed(folder: Path, name: str = "one", **more: str) -> Store:
    store = make(folder, name, **more)
    edits.confirm(store)
    return store


async def uploaded(there: Site, program: httpx.AsyncClient, store: Store) -> int:
    """How many parts were sent, by the real upload client."""
    token = program.headers["authorization"].removeprefix("Bearer ")
    sender = Uploader(there.address, token, attempts=1)
    try:
        return await asyncio.to_thread(sender.upload, store)
    finally:
        sender.close()
