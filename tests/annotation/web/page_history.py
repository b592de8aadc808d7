"""What there is to review and to look back on, for tests of the pages: finished runs with pictures, and a recording, on a real server."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page
from sqlalchemy import select, update

from annotation.recorder.review.upload import Uploader
from annotation.storage.blobs import Blobs
from annotation.storage.schema import RunStep, User
from tests.annotation.service.review_parts import Did, History
from tests.annotation.web.page_parts import Site, log_in, new_page
from tests.annotation.web.recording_parts import reviewed


async def logged_in(browser: Browser, here: Site, name: str, role: str = "reviewer") -> Page:
    """A page of somebody who is new."""
    await here.add_person(name, role)
    page = await new_page(browser, here)
    await log_in(page, name)
    return page


def history_of(here: Site) -> History:
    """Nothing yet, of whoever has joined by now."""
    made = History(here.database)
    with here.database.read() as session:
        made.ids = {user.name: user.user_id for user in session.scalars(select(User))}
    assert here.runs is not None
    made.now_s = here.runs._clock() - 86400.0
    return made


def with_pictures(here: Site, folder: Path) -> None:
    """The same picture at every step."""
    data = io.BytesIO()
    Image.new("RGB", (160, 210), "white").save(data, "PNG")
    screenshot_id = Blobs(folder / "screens").put(data.getvalue())
    with here.database.write() as session:
        session.execute(update(RunStep).values(screenshot_id=screenshot_id))


async def a_disputed_run(here: Site, folder: Path) -> History:
    """Of two steps, that Ann calls done and the verifier does not."""
    await here.add_person("ann")
    made = history_of(here)
    made.run("ann", verifier=False, steps=(Did(), Did(decision="override", number=2)))
    with_pictures(here, folder)
    return made


async def a_recording(here: Site, folder: Path) -> str:
    """Uploaded by a program of somebody called Grace, and waiting; its id."""
    store = reviewed(folder)
    token, _ = await here.accounts.add_program("grace", "annotator", "her recorder")
    sender = Uploader(here.url, token, attempts=1)
    try:
        await asyncio.to_thread(sender.upload, store)
    finally:
        sender.close()
    return store.cover.recording_id
