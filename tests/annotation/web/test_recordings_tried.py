"""Recordings of tasks that a sandbox has: carried out again there, beside the server's work."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from annotation.recorder.review.edits import confirm
from annotation.recordings.bundle import Announcement, Box, Manifest, Part, RecordedAction, Screen, ScreenElement, complete_path, part_path
from sandbox.actions import Click
from sandbox.pool.pool import SessionPool
from sandbox.session import Observation
from sandbox.tasks.sources import tasks_in
from tests.annotation.recording.made_recording import make
from tests.annotation.web.web_parts import Site, site

PATH = "/api/v1/recordings"


async def sent(program: httpx.AsyncClient, manifest: Manifest, picture: bytes) -> str:
    """A recording with one screen, whole; its id."""
    text = manifest.model_dump_json().encode()
    data = {sha256(text).hexdigest(): text, sha256(picture).hexdigest(): picture}
    parts = tuple(
        Part(sha256=digest, num_bytes=len(content), media_type="application/json" if content is text else "image/png")
        for digest, content in data.items()
    )
    announcement = Announcement(recording_id=manifest.recording_id, manifest=parts[0].sha256, parts=parts)
    await program.post(PATH, content=announcement.model_dump_json(), headers={"Content-Type": "application/json"})
    for digest, content in data.items():
        assert (await program.put(part_path(manifest.recording_id, digest), content=content)).status_code == 204
    for _ in range(2):
        assert (await program.post(complete_path(manifest.recording_id))).status_code == 200
    return manifest.recording_id


def one_click(base: Manifest, seen: Observation, click: Click, environment: str, seed: int | None) -> Manifest:
    """A recording of what was seen and clicked."""
    assert seen.screenshot is not None and seen.screenshot_id is not None
    hit = next(one for one in seen.elements if (one.x_px, one.y_px) == (click.x, click.y) and one.role == "button")
    box = Box(x=hit.x_px - hit.width_px // 2, y=hit.y_px - hit.height_px // 2, width=hit.width_px, height=hit.height_px)
    screen = Screen(
        screen_id=seen.screenshot_id, sha256=sha256(seen.screenshot).hexdigest(), width_px=seen.width_px, height_px=seen.height_px
    )
    target = ScreenElement(role="button", text=hit.text, box=box)
    action = RecordedAction(action=click, start_s=1.0, end_s=1.1, screen_id=screen.screen_id, target=target)
    query = base.task.model_copy(update={"environment": environment, "seed": seed})
    changes = {"task": query, "actions": (action,), "screens": (screen,), "last_screen_id": None, "speech": (), "words": ()}
    return base.model_copy(update=changes)


async def tried(there: Site, program: httpx.AsyncClient) -> dict[str, bool | None]:
    await there.guard._app.state.office.executability.settled()  # type: ignore[attr-defined]
    return {item["recording_id"]: item["is_executable"] for item in (await program.get(PATH)).json()}


@pytest.mark.slow
def test_what_names_a_task_is_carried_out_there_also_by_the_next_server(tmp_path: Path) -> None:
    async def run() -> None:
        task = tasks_in(["miniwob:quickstart"])["click-button"]
        async with SessionPool(size=1, num_browsers=1) as pool:
            async with pool.lease(task) as session:
                seen = await session.reset(task, 5)
                action = await session.oracle_action()
            assert isinstance(action, Click) and seen.screenshot is not None
            made: dict[str, Manifest] = {}
            button = "miniwob/click-button"
            for name, environment, seed in (("same", button, 5), ("other", button, 6), ("none", "", None), ("strange", "miniwob/../x", 5)):
                store = make(tmp_path / "made", name)
                confirm(store)
                made[name] = one_click(store.manifest(), seen, action, environment, seed)
            async with site(tmp_path, pool=pool) as there:
                ann = await there.program("ann")
                ids = {name: await sent(ann, manifest, seen.screenshot) for name, manifest in made.items() if name != "other"}
                found = await tried(there, ann)
                assert [found[ids[name]] for name in ("same", "none", "strange")] == [True, None, None]
            async with site(tmp_path) as there:  # has no sandboxes
                other = await there.program("bob")
                late = await sent(other, made["other"], seen.screenshot)
                assert (await tried(there, other))[late] is None
                token = other.headers["authorization"]
            async with site(tmp_path, pool=pool) as there, httpx.AsyncClient(base_url=there.address, trust_env=False) as again:
                again.headers["authorization"] = token
                assert (await tried(there, again))[late] is False, "the button is not there"

    asyncio.run(run())
