"""What uploads leave on the server's disk: nothing that nobody names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from annotation.recording.bundle import part_path
from annotation.recording.upload import Bundle
from tests.annotation.web.test_recordings_routes import PATH, announced, kept, reviewed, rows
from tests.annotation.web.web_parts import site


async def send(program: httpx.AsyncClient, bundle: Bundle) -> None:
    """All parts, without completing it."""
    for part in bundle.announcement().parts:
        answer = await program.put(part_path(bundle.manifest.recording_id, part.sha256), content=bundle.read(part.sha256))
        assert answer.status_code == 204, answer.text


def digests(bundle: Bundle) -> set[str]:
    return {part.sha256 for part in bundle.announcement().parts}


def without(bundle: Bundle, *gone: str) -> list[dict[str, Any]]:
    plain = bundle.announcement().model_dump(mode="json")
    return [part for part in plain["parts"] if part["sha256"] not in gone]


def test_what_a_new_announcement_no_longer_names_is_erased(tmp_path: Path, annotation_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=annotation_url) as there:
            ann = await there.program("ann")
            bundle, other = Bundle(reviewed(tmp_path / "made")), Bundle(reviewed(tmp_path / "made", "two"))
            private, shared = (screen.sha256 for screen in bundle.manifest.screens[:2])
            await announced(ann, bundle)
            await send(ann, bundle)
            # The second names the same pictures, all but the private one.
            await announced(ann, other, parts=without(other, private))
            again = await announced(ann, bundle, parts=without(bundle, private, shared))
            assert again.json()["missing"] == [] and kept(tmp_path) == digests(bundle) - {private}
            assert (await ann.get(PATH)).status_code == 200 and len(rows(there)) == 2

    asyncio.run(run())


def test_a_part_that_was_on_its_way_meanwhile_is_not_left_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            bundle = Bundle(reviewed(tmp_path / "made"))
            private = bundle.manifest.screens[0].sha256
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def slowly() -> Any:
                data = bundle.read(private)
                yield data[:100]
                begun.set()
                await go_on.wait()
                yield data[100:]

            await announced(ann, bundle)
            sending = asyncio.create_task(ann.put(part_path(bundle.manifest.recording_id, private), content=slowly()))
            await begun.wait()
            while not list((tmp_path / "parts" / "incoming").iterdir()):
                await asyncio.sleep(0.01)
            await announced(ann, bundle, parts=without(bundle, private))
            go_on.set()
            assert (await sending).status_code == 409 and kept(tmp_path) == set()

    asyncio.run(run())
