"""A checkpoint as an upstream: behind a policy server of its own on loopback, in this process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from models.checkpoints.importing import with_card
from models.engine.settings import EngineSettings
from models.gateway.serve import Address
from models.server.backend import ServedEngine
from models.server.serve import serving
from models.server.settings import ServerSettings

MAX_WAITING = 4096
"""Calls that wait for a checkpoint; a project's own limit comes before."""


@asynccontextmanager
async def served_checkpoint(
    folder: Path, *, dtype: str, device: str | None, settings: EngineSettings, max_tokens: int
) -> AsyncIterator[Address]:
    """Where it answers, for as long as the block lasts. Raises CheckpointError, ModelError."""
    token, limits = secrets.token_urlsafe(32), ServerSettings(max_tokens=max_tokens, max_waiting=MAX_WAITING)

    def opened(whole: Path) -> ServedEngine:
        return ServedEngine.open(whole, dtype=dtype, device=device, settings=settings)

    with with_card(folder) as whole, closing(await asyncio.to_thread(opened, whole)) as engine:
        async with serving(engine, token, limits) as (url, _):
            yield Address(url=url, token=token)
