"""What uploads leave on the server's disk: nothing that nobody names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from annotation.recorder.review.upload import Bundle
from annotation.recordings.bundle import part_path
from annotation.service.recordings import unfinished
from annotation.storage.schema import Recording
from annotation.web.settings import WebSettings
from tests.annotation.web.test_recordings_routes import PATH, announced, kept, reviewed, rows, uploaded
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


def test_one_person_does_not_fill_the_disk_with_what_is_never_complete(tmp_path: Path) -> None:
    async def run() -> None:
        size = 3 * 1024**2
        big = [{"sha256": f"{number:064x}", "num_bytes": size, "media_type": "image/png"} for number in range(6)]

        async def tell(program: httpx.AsyncClient, number: int, parts: list[dict[str, Any]]) -> int:
            manifest = {"sha256": f"{number:063x}f", "num_bytes": 9, "media_type": "application/json"}
            body = {"recording_id": f"recording-{number:016x}", "manifest": manifest["sha256"], "parts": [manifest, *parts]}
            answer = await program.post(PATH, json=body)
            assert answer.status_code == 200 or "complete those" in answer.json()["detail"], answer.text
            return answer.status_code

        settings = WebSettings(max_unfinished_bytes=4 * size + 100, max_unfinished=3)
        async with site(tmp_path, settings=settings) as there:
            ann, bob = await there.program("ann"), await there.program("bob")
            assert await tell(ann, 1, big[:3]) == 200
            assert await tell(ann, 2, big[2:5]) == 413, "five parts: one of them counts once"
            assert await tell(ann, 2, big[2:4]) == 200 and await tell(bob, 3, big[:4]) == 200, "everybody for themselves"
            await ann.post(f"{PATH}/recording-{1:016x}/withdraw", json={"reason": "no"})
            assert await tell(ann, 4, big[4:]) == 413, "what is taken back lies here until it is erased"
            assert await tell(ann, 4, big[:1]) == 200 and await tell(ann, 5, big[:1]) == 413, "nor with many small ones"
            assert set(rows(there)) == {f"recording-{number:016x}" for number in (1, 2, 3, 4)}

    asyncio.run(run())


def test_an_upload_that_nobody_goes_on_with_is_dropped_and_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store = reviewed(tmp_path / "made")
        bundle, recording_id = Bundle(store), store.cover.recording_id
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            token = ann.headers["authorization"]
            await announced(ann, bundle)
            await send(ann, bundle)
            done = reviewed(tmp_path / "made", "two", text="other")
            assert await uploaded(there, ann, done) > 0
            with there.database.write() as session:
                session.execute(update(Recording).values(created_at_s=Recording.created_at_s - 8 * 86400))
        async with site(tmp_path) as there, httpx.AsyncClient(base_url=there.address, trust_env=False) as ann:
            ann.headers["authorization"] = token
            assert kept(tmp_path) == digests(Bundle(done)), "at the start of the server; what is complete stays"
            path = part_path(recording_id, bundle.manifest_sha256)
            assert (await ann.put(path, content=bundle.read(bundle.manifest_sha256))).status_code == 404
            assert "announce it again" in (await ann.post(f"{PATH}/{recording_id}/complete")).json()["detail"]
            assert await uploaded(there, ann, store) >= 5 and rows(there)[recording_id].state == "pending"
            third = Bundle(reviewed(tmp_path / "made", "three", text="third"))
            await announced(ann, third)
            await send(ann, third)
            with there.database.write() as session:
                session.execute(update(Recording).values(created_at_s=Recording.created_at_s - 8 * 86400))
            monkeypatch.setattr(unfinished, "SWEEP_EVERY_S", 0.0)
            await announced(ann, Bundle(reviewed(tmp_path / "made", "four", text="fourth")))
            assert not kept(tmp_path) & {screen.sha256 for screen in third.manifest.screens}, "and at announcements"

    asyncio.run(run())
