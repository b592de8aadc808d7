"""Recordings over HTTP: the real upload client against the real server, what interrupts it, and what strangers try."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import struct
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from PIL import Image
from sqlalchemy import select

from agent.prompts.prompt import PromptBuilder
from annotation.recorder.review.upload import Bundle
from annotation.recordings.bundle import MAX_PART_BYTES, part_path
from annotation.service.intake.intake import take_recording
from annotation.service.recordings import bundles
from annotation.service.recordings.picture_check import Wanted
from annotation.service.recordings.picture_workers import PictureWorkers
from annotation.service.recordings.recordings import Recordings
from annotation.storage import parts
from annotation.storage.parts import PartStore
from annotation.storage.schema import AuditEntry, Change, Recording
from annotation.web.settings import WebSettings
from tests.annotation.web.recording_parts import reviewed, uploaded
from tests.annotation.web.web_parts import Site, site
from warehouse.storage.screenshots.pictures import check_size

PATH = "/api/v1/recordings"


def rows(there: Site) -> dict[str, Recording]:
    with there.database.read() as session:
        return {row.recording_id: row for row in session.scalars(select(Recording))}


def changes_of(there: Site) -> list[tuple[str, str]]:
    with there.database.read() as session:
        return [(one.kind, one.subject_id) for one in session.scalars(select(Change).order_by(Change.change_id))]


def kept(folder: Path) -> set[str]:
    """Digests of all parts on the disk."""
    return {path.name for path in (folder / "parts").glob("user-*/*/*")}


def torn(folder: Path) -> list[Path]:
    return list((folder / "parts" / "incoming").iterdir())


async def completed(program: httpx.AsyncClient, recording_id: str) -> httpx.Response:
    """The last word, however long the pictures take."""
    while (answer := await program.post(f"{PATH}/{recording_id}/complete")).status_code == 202:
        assert answer.json()["num_checked"] <= answer.json()["num_pictures"]
    return answer


async def announced(program: httpx.AsyncClient, bundle: Bundle, **changes: Any) -> httpx.Response:
    plain = {**bundle.announcement().model_dump(mode="json"), **changes}
    return await program.post(PATH, json=plain)


def test_a_recording_arrives_is_looked_at_judged_and_taken_back(tmp_path: Path, annotation_url: str) -> None:
    async def run() -> None:
        async with site(tmp_path, url=annotation_url) as there:
            ann, other = await there.program("ann"), await there.person("bob")
            rex, eve = await there.person("rex", "reviewer"), await there.person("eve", "reviewer")
            store = reviewed(tmp_path / "made")
            path = f"{PATH}/{store.cover.recording_id}"
            assert await uploaded(there, ann, store) == 6
            assert await uploaded(there, ann, store) == 0
            (item,) = (await ann.get(PATH)).json()
            assert item == {
                "recording_id": store.cover.recording_id,
                "person": "ann",
                "track": "expert",
                "state": "pending",
                "query": "Write to Emma",
                "applications": ["Editor"],
                "num_actions": 4,
                "length_s": 20.0,
                "is_executable": None,
                "is_own": True,
                "created_at_s": item["created_at_s"],
            }
            assert (await other.get(PATH)).json() == [] and [one["is_own"] for one in (await rex.get(PATH)).json()] == [False]
            detail = (await rex.get(path)).json()
            first, second, *_ = detail["steps"]
            assert (first["action"], first["points"][0]["x"]) == ("click (100, 75) on button “New”", 100)
            assert (first["heard"], first["window"], first["at_s"]) == ("first i press new", "Notes", 3.0)
            assert second["action"].startswith("type “Hello Emma\n”") and first["screen"]["elements"][0]["name"] == "New"
            picture = f"{path}/screens/{first['screen']['screenshot_id']}"
            for viewer in (ann, rex):
                seen = await viewer.get(picture)
                assert seen.content == store.screen(first["screen"]["screenshot_id"]) and seen.headers["content-type"] == "image/png"
            for stranger in (path, picture):
                assert (await other.get(stranger)).status_code == 404, "another person's"
            say = {"approves": True, "verdict": None, "steps": {"0": {"is_right": True}, "1": {"is_right": False}}, "note": "well told"}
            assert (await other.post(f"{path}/review", say)).status_code == 403, "annotators do not review"
            assert (await rex.post(f"{path}/review", {**say, "steps": {"4": {"is_right": True}}})).status_code == 422
            assert (await rex.post(f"{path}/review", say)).status_code == 201
            assert (await eve.post(f"{path}/review", say)).status_code == 409, "it is settled"
            reported = (await rex.get(path)).json()["reviews"][0]["steps"]
            assert {index: one["is_right"] for index, one in reported.items()} == {"0": True, "1": False}
            parts, kept = PartStore(tmp_path / "parts"), dict[str, bytes]()
            taken = take_recording(there.database, parts, store.cover.recording_id, PromptBuilder("doubao"), kept.__setitem__)
            assert kept.keys() == {step.screenshot_id for step in taken.episode.steps}
            assert (len(taken.episode.steps), len(taken.samples), taken.left_out) == (4, 3, {"called wrong": 1})
            assert changes_of(there) == [("recording", store.cover.recording_id)]
            assert (await other.post(f"{path}/withdraw", {"reason": "mine"})).status_code == 404
            for _ in range(2):
                assert (await ann.post(f"{path}/withdraw", json={"reason": "my bank was on the screen"})).status_code == 204
            assert changes_of(there)[1:] == [("withdrawal", store.cover.recording_id)]
            assert (await rex.get(path)).status_code == 404 and (await rex.get(PATH)).json() == []
            assert (await ann.get(PATH)).json()[0]["state"] == "withdrawn"
            with there.database.read() as session:
                entries = [one for one in session.scalars(select(AuditEntry)) if one.subject == store.cover.recording_id]
            reported = [(one.action.removeprefix("recording."), one.detail.get("reason")) for one in entries]
            assert reported == [("completed", None), ("reviewed", None), ("withdrawn", "my bank was on the screen")]

    asyncio.run(run())


def test_nobody_judges_their_own_recording(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            rex = await there.program("rex", "reviewer")
            store = reviewed(tmp_path / "made")
            await uploaded(there, rex, store)
            answer = await rex.post(f"{PATH}/{store.cover.recording_id}/review", json={"approves": True, "verdict": True})
            assert answer.status_code == 403 and "another person" in answer.json()["detail"]

    asyncio.run(run())


def test_an_upload_goes_on_after_the_server_was_killed_in_the_middle(tmp_path: Path) -> None:
    async def run() -> None:
        store = reviewed(tmp_path / "made")
        bundle = Bundle(store)
        recording_id, digests = store.cover.recording_id, [part.sha256 for part in bundle.announcement().parts]
        complete = f"{PATH}/{recording_id}/complete"
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            token = ann.headers["authorization"]
            assert sorted((await announced(ann, bundle)).json()["missing"]) == sorted(digests)
            for digest in digests[:2]:
                assert (await ann.put(part_path(recording_id, digest), content=bundle.read(digest))).status_code == 204
            cut = digests[2]
            await _cut_short(there.address, token, part_path(recording_id, cut), bundle.read(cut), tmp_path)
            answer = await ann.post(complete)
            assert answer.status_code == 409 and set(answer.json()["missing"]) == set(digests[2:])
        left = tmp_path / "parts" / "incoming" / "part-left-by-a-killed-server"
        left.write_bytes(b"half a part")
        os.utime(left, (0, 0))
        async with site(tmp_path) as there:
            async with httpx.AsyncClient(base_url=there.address, headers={"Authorization": token}, trust_env=False) as ann:
                again = (await announced(ann, bundle)).json()
                assert set(again["missing"]) == set(digests[2:]) and not again["is_complete"]
                assert await uploaded(there, ann, store) == 4, "what arrived is not sent again"
                assert (await announced(ann, bundle)).json() == {"recording_id": recording_id, "missing": [], "is_complete": True}
                assert (await ann.post(complete)).json() == {"recording_id": recording_id, "num_actions": 4}
                changed = await announced(ann, bundle, manifest=bundle.announcement().manifest, parts=_other_manifest(bundle))
                assert changed.status_code in (409, 422), "what is complete stays as it is"
            assert torn(tmp_path) == [] and kept(tmp_path) == set(digests)

    asyncio.run(run())


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def _cut_short(address: str, token: str, path: str, data: bytes, folder: Path) -> None:
    """A client that dies in the middle of a part, which the site of `folder` has begun to take."""
    url = httpx.URL(address)
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = f"PUT {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nAuthorization: {token}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[: len(data) // 2])
    await writer.drain()
    await _until(lambda: len(torn(folder)) == 1)
    writer.close()
    await writer.wait_closed()
    await _until(lambda: torn(folder) == [])


def _other_manifest(bundle: Bundle) -> list[dict[str, Any]]:
    plain = bundle.announcement().model_dump(mode="json")
    return [part for part in plain["parts"] if part["sha256"] != plain["manifest"]]


def test_a_part_that_two_recordings_share_is_sent_once_and_erased_with_the_last_of_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, bob = await there.program("ann"), await there.program("bob")
            first, second = reviewed(tmp_path / "made"), reviewed(tmp_path / "made", "two")
            assert (await uploaded(there, ann, first), await uploaded(there, ann, second)) == (6, 1)
            service = Recordings(there.database, PartStore(tmp_path / "parts"))
            for _ in range(2):
                answer = await ann.post(f"{PATH}/{first.cover.recording_id}/withdraw", json={"reason": "no"})
                assert answer.status_code == 204
            assert await service.withdrawn() == (first.cover.recording_id,)
            assert await service.erase(first.cover.recording_id) == 1, "its manifest: the rest is the second's too"
            assert await service.erase(first.cover.recording_id) == 0 and await service.withdrawn() == ()
            assert (await ann.get(f"{PATH}/{first.cover.recording_id}")).status_code == 404
            assert (await ann.get(f"{PATH}/{second.cover.recording_id}")).status_code == 200
            assert (await announced(ann, Bundle(first))).status_code == 409, "what was withdrawn does not come back"
            await ann.post(f"{PATH}/{second.cover.recording_id}/withdraw", json={"reason": "no"})
            assert await service.erase(second.cover.recording_id) == 6 and kept(tmp_path) == set()
            assert rows(there)[first.cover.recording_id].summary == {}
            third = reviewed(tmp_path / "made", "three")
            assert await uploaded(there, bob, third) == 6, "nobody learns what others have by naming it"

    asyncio.run(run())


def test_what_another_person_announced_is_out_of_reach(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, bob, rex = await there.program("ann"), await there.program("bob"), await there.person("rex", "reviewer")
            store = reviewed(tmp_path / "made")
            bundle, recording_id = Bundle(store), store.cover.recording_id
            digest = bundle.manifest_sha256
            await announced(ann, bundle)
            assert (await announced(bob, bundle)).status_code == 409
            assert (await bob.put(part_path(recording_id, digest), content=bundle.read(digest))).status_code == 404
            assert (await bob.post(f"{PATH}/{recording_id}/complete")).status_code == 404
            assert (await rex.get(f"{PATH}/{recording_id}")).status_code == 404, "it is not complete"
            assert (await ann.get(f"{PATH}/{recording_id}")).status_code == 409
            assert (await ann.get(PATH)).json()[0]["track"] is None
            assert kept(tmp_path) == set()

    asyncio.run(run())


STRANGE = ("%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "A" * 64, "0" * 63, "0" * 64 + "%00", "..%2f" * 12 + "passwd")


@pytest.mark.slow
def test_no_name_becomes_a_path(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            store = reviewed(tmp_path / "made")
            await announced(ann, Bundle(store))
            for recording_id in (store.cover.recording_id, "%2e%2e", "%2e%2e%2f%2e%2e", "recording-0000000000000000"):
                for name in (*STRANGE, "0" * 64):
                    answer = await ann.put(f"{PATH}/{recording_id}/parts/{name}", content=b"x")
                    assert answer.status_code in (404, 405), answer.text
                    assert (await ann.get(f"{PATH}/{recording_id}/screens/{name}")).status_code in (404, 405, 409)
            assert kept(tmp_path) == set()

    asyncio.run(run())
    there = PartStore(tmp_path / "parts")
    for name in STRANGE:
        with pytest.raises(LookupError):
            there.of("user-ann").path(unquote(name))
        with pytest.raises(LookupError):
            there.of(unquote(name))


def test_parts_are_taken_only_with_the_length_and_digest_they_were_announced_with(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            store = reviewed(tmp_path / "made")
            bundle = Bundle(store)
            await announced(ann, bundle)
            path, data = part_path(store.cover.recording_id, bundle.manifest_sha256), bundle.read(bundle.manifest_sha256)

            async def chunks(content: bytes) -> AsyncIterator[bytes]:
                for start in range(0, len(content), 1000):
                    yield content[start : start + 1000]

            for content, status in ((data[:-1], 422), (data + b" ", 413), (data[:-1] + b" ", 422), (b"\0" * (MAX_PART_BYTES + 1), 413)):
                assert (await ann.put(path, content=content)).status_code == status
                if len(content) <= MAX_PART_BYTES:
                    assert (await ann.put(path, content=chunks(content))).status_code == status, "without a length too"
            assert kept(tmp_path) == set() and torn(tmp_path) == []
            assert (await ann.put(path, content=chunks(data))).status_code == 204
            assert (await ann.put(path, content=data)).status_code == 204, "twice is once"
            assert kept(tmp_path) == {bundle.manifest_sha256}

    asyncio.run(run())


def _announcements(bundle: Bundle) -> Iterator[tuple[dict[str, Any], int]]:
    plain = bundle.announcement().model_dump(mode="json")
    part = plain["parts"][0]
    yield {**plain, "recording_id": "../../etc"}, 422
    yield {**plain, "parts": []}, 422
    yield {**plain, "parts": [*plain["parts"], part]}, 422
    yield {**plain, "manifest": "0" * 64}, 422
    yield {**plain, "parts": [{**part, "num_bytes": MAX_PART_BYTES + 1}, *plain["parts"][1:]]}, 422
    yield {**plain, "parts": [{**part, "num_bytes": -1}, *plain["parts"][1:]]}, 422
    yield {**plain, "owner": "user-root"}, 422
    many = [{**part, "sha256": f"{number:064x}", "num_bytes": MAX_PART_BYTES, "media_type": "image/png"} for number in range(257)]
    yield {**plain, "parts": [*plain["parts"], *many]}, 413
    yield {**plain, "parts": [*plain["parts"], *({**one, "sha256": "g" * 100_000} for one in many)]}, 413


def test_announcements_out_of_bounds_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann, stranger = await there.program("ann"), await there.stranger()
            bundle = Bundle(reviewed(tmp_path / "made"))
            for plain, status in _announcements(bundle):
                assert (await ann.post(PATH, json=plain)).status_code == status, plain
            assert (await ann.post(PATH, content=b"{", headers={"content-type": "application/json"})).status_code in (400, 422)
            assert (await stranger.post(PATH, bundle.announcement().model_dump(mode="json"))).status_code == 401
            assert rows(there) == {}

    asyncio.run(run())


def test_nothing_is_taken_that_the_disk_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            store = reviewed(tmp_path / "made")
            bundle = Bundle(store)
            usage = parts.shutil.disk_usage(tmp_path)
            short = usage._replace(free=parts.KEPT_FREE_BYTES + 100)
            monkeypatch.setattr(parts.shutil, "disk_usage", lambda _: short)
            assert (await announced(ann, bundle)).status_code == 507 and rows(there) == {}
            monkeypatch.setattr(parts.shutil, "disk_usage", lambda _: usage)
            assert (await announced(ann, bundle)).status_code == 200
            monkeypatch.setattr(parts.shutil, "disk_usage", lambda _: short)
            digest = bundle.manifest_sha256
            answer = await ann.put(part_path(store.cover.recording_id, digest), content=bundle.read(digest))
            assert answer.status_code == 507 and "once there is room" in answer.json()["detail"] and kept(tmp_path) == set()

    asyncio.run(run())


def _spoiled(bundle: Bundle) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Whole bundles, by digest, with one thing wrong each; the first is the manifest."""
    manifest = json.loads(bundle.read(bundle.manifest_sha256))
    data = {part.sha256: bundle.read(part.sha256) for part in bundle.announcement().parts if part.sha256 != bundle.manifest_sha256}
    screen, speech = manifest["screens"][0], manifest["speech"][0]

    def with_part(old: str, content: bytes, *, renames: bool = True) -> dict[str, bytes]:
        new = hashlib.sha256(content).hexdigest()
        text = json.dumps(manifest).replace(old, new)
        text = text.replace(f"screen-{old[:16]}", f"screen-{new[:16]}") if renames else text
        return _whole(text.encode(), {**{key: value for key, value in data.items() if key != old}, new: content})

    def changed(**changes: Any) -> dict[str, bytes]:
        return _whole(json.dumps({**manifest, **changes}).encode(), data)

    png = data[screen["sha256"]]
    yield "not usable", _whole(b"{}", data)
    yield "not usable", _whole(b"\xff\xfe", data)
    yield "not usable", changed(surprise=1)
    yield "is of recording-", changed(recording_id="recording-0000000000000000")
    yield "nobody has looked", changed(review=None)
    yield "announced", changed(speech=[])
    yield "not a complete PNG", with_part(screen["sha256"], png[:-20])
    yield "not a complete PNG", with_part(screen["sha256"], b"GIF89a" + b"\0" * 100)
    yield "not a complete PNG", with_part(screen["sha256"], b"\x89PNG")
    middle = png.index(b"IDAT") + 40
    spoiled = png[:middle] + bytes([png[middle] ^ 255]) + png[middle + 1 :]
    yield "cannot be drawn (the picture cannot be read as PNG", with_part(screen["sha256"], spoiled)
    short = _chunk(b"IDAT", zlib.compress(b"\0" * 999))
    yield "cannot be drawn", with_part(screen["sha256"], png[: png.index(b"IDAT") - 4] + short + png[-12:])
    yield (
        "cannot be drawn (it has two sizes",
        with_part(screen["sha256"], png[:33] + _chunk(b"IHDR", struct.pack(">II", 5000, 5000) + png[24:29]) + png[33:]),
    )
    yield "header is broken", with_part(screen["sha256"], png[:20] + b"\0\0\0\1" + png[24:])
    yield "pixels", changed(screens=[{**screen, "width_px": 20_000}, *manifest["screens"][1:]])
    yield "is not the id", with_part(screen["sha256"], png[:-12] + b"\0\0\0\0tEXt" + b"\x9b\xb1\xd9\x9d"[:4] + png[-12:], renames=False)
    yield "not a WAV", with_part(speech["sha256"], b"RIFF" + b"\0" * 60)
    yield "samples of mono", with_part(speech["sha256"], data[speech["sha256"]][:-100])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _whole(manifest: bytes, data: dict[str, bytes]) -> dict[str, bytes]:
    return {hashlib.sha256(manifest).hexdigest(): manifest, **data}


@pytest.mark.slow
def test_nothing_of_a_bundle_is_believed(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            store = reviewed(tmp_path / "made")
            recording_id, kinds = store.cover.recording_id, {b"\x89": "image/png", b"G": "image/png", b"R": "audio/wav"}
            for why, data in _spoiled(Bundle(store)):
                digest = next(iter(data))
                plain = [
                    {"sha256": key, "num_bytes": len(value), "media_type": "application/json" if key == digest else kinds[value[:1]]}
                    for key, value in data.items()
                ]
                missing = (await ann.post(PATH, json={"recording_id": recording_id, "manifest": digest, "parts": plain})).json()["missing"]
                for key in missing:
                    assert (await ann.put(part_path(recording_id, key), content=data[key])).status_code == 204
                answer = await completed(ann, recording_id)
                assert answer.status_code == 422 and why in answer.json()["detail"], (why, answer.text)
                assert rows(there)[recording_id].state == "uploading"
            assert await uploaded(there, ann, store) <= 2, "the true manifest and the last part that was spoiled are all that is missing"
            assert rows(there)[recording_id].state == "pending"

    asyncio.run(run())


def test_a_picture_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "check_size", lambda size_px: check_size(size_px, 100))

    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            bundle = Bundle(reviewed(tmp_path / "made"))
            await announced(ann, bundle)
            for part in bundle.announcement().parts:
                await ann.put(part_path(bundle.manifest.recording_id, part.sha256), content=bundle.read(part.sha256))
            answer = await completed(ann, bundle.manifest.recording_id)
            assert answer.status_code == 422 and "1 to 100 in all" in answer.json()["detail"]
            monkeypatch.setattr(bundles, "check_size", check_size)
            monkeypatch.setattr(bundles, "MAX_RECORDING_PIXELS", 100)
            answer = await completed(ann, bundle.manifest.recording_id)
            assert answer.status_code == 422 and "100 are taken at most" in answer.json()["detail"]

    asyncio.run(run())


def test_a_recording_completed_twice_at_once_is_taken_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path) as there:
            ann = await there.program("ann")
            bundle = Bundle(reviewed(tmp_path / "made"))
            await announced(ann, bundle)
            puts = (
                ann.put(part_path(bundle.manifest.recording_id, part.sha256), content=bundle.read(part.sha256))
                for part in bundle.announcement().parts
                for _ in range(3)
            )
            assert {one.status_code for one in await asyncio.gather(*puts)} == {204}
            done = await asyncio.gather(*(completed(ann, bundle.manifest.recording_id) for _ in range(4)))
            assert [one.status_code for one in done] == [200] * 4 and threading.active_count() < 100
            with there.database.read() as session:
                assert sum(one.action == "recording.completed" for one in session.scalars(select(AuditEntry))) == 1

    asyncio.run(run())


def a_recording(folder: Path, num_pictures: int, size_px: tuple[int, int]) -> tuple[str, dict[str, bytes], list[dict[str, Any]]]:
    """Its id, its parts by digest with the manifest first, and their announcement: with so many more pictures, a colour each."""
    bundle = Bundle(reviewed(folder))
    manifest = json.loads(bundle.read(bundle.manifest_sha256))
    kinds = {part.sha256: part.media_type for part in bundle.announcement().parts}
    data = {digest: bundle.read(digest) for digest in kinds if digest != bundle.manifest_sha256}
    for number in range(num_pictures):
        png = io.BytesIO()
        Image.new("RGB", size_px, (number, 0, 0)).save(png, "PNG", compress_level=1)
        digest = hashlib.sha256(png.getvalue()).hexdigest()
        more = {"screen_id": f"screen-{digest[:16]}", "sha256": digest, "width_px": size_px[0], "height_px": size_px[1]}
        manifest["screens"].append({**manifest["screens"][0], **more})
        data[digest], kinds[digest] = png.getvalue(), "image/png"
    whole = _whole(json.dumps(manifest).encode(), data)
    kinds[next(iter(whole))] = "application/json"
    parts = [{"sha256": digest, "num_bytes": len(content), "media_type": kinds[digest]} for digest, content in whole.items()]
    return manifest["recording_id"], whole, parts


async def sent(program: httpx.AsyncClient, recording_id: str, data: dict[str, bytes], parts: list[dict[str, Any]]) -> None:
    announced = await program.post(PATH, json={"recording_id": recording_id, "manifest": next(iter(data)), "parts": parts})
    assert announced.status_code == 200, announced.text
    for digest, content in data.items():
        assert (await program.put(part_path(recording_id, digest), content=content)).status_code == 204


@pytest.mark.slow
def test_a_recording_of_large_pictures_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Another person's recording is whole while the large one is still looked at, and so is every other request answered."""

    async def run() -> tuple[int, int]:
        async with site(tmp_path) as there:
            eve, ann = await there.program("eve"), await there.program("ann")
            large = a_recording(tmp_path / "large", 12, (5760, 5760))
            small = a_recording(tmp_path / "small", 0, (1, 1))
            await sent(eve, *large)
            await sent(ann, *small)
            first = asyncio.create_task(completed(eve, large[0]))
            while not (check := there.recordings._checks.get(large[0])) or not check.num_pictures:
                await asyncio.sleep(0.01)
            assert (await completed(ann, small[0])).status_code == 200
            num_before = check.num_checked
            assert (await first).status_code == 200
            return num_before, check.num_checked

    before, after = asyncio.run(run())
    assert before < after, "the small one did not wait for the large one"


def test_one_person_has_so_many_pixels_looked_at_in_a_day(tmp_path: Path) -> None:
    async def run() -> None:
        async with site(tmp_path, settings=WebSettings(max_pixels_a_day=1)) as there:
            eve, ann = await there.program("eve"), await there.program("ann")
            for program, name, status in ((eve, "one", 200), (eve, "two", 429), (ann, "three", 200)):
                recording = a_recording(tmp_path / name, 1, (8, 8))
                await sent(program, *recording)
                answer = await completed(program, recording[0])
                assert answer.status_code == status, answer.text
            assert rows(there)[recording[0]].state == "pending"

    asyncio.run(run())


def _hold(pipe: Path, held: list[int]) -> bool:
    """Open a named pipe for writing as soon as somebody reads it, who then waits for what is written."""
    with suppress(OSError):  # nobody reads yet
        held.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(held)


def test_a_picture_that_its_decoder_does_not_survive_is_refused(tmp_path: Path) -> None:
    """More processor time than a picture may take ends the process, not the server; the next picture gets another."""
    png = tmp_path / "one.png"
    Image.new("RGB", (8, 8)).save(png)
    digest = hashlib.sha256(png.read_bytes()).hexdigest()
    wanted = Wanted(path=str(png), sha256=digest, screen_id=f"screen-{digest[:16]}", width_px=8, height_px=8)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def run() -> list[str | None]:
        workers = PictureWorkers(num=1)
        found = [await workers.fault_of(wanted)]
        (process,) = workers._idle
        asking = asyncio.create_task(workers.fault_of(replace(wanted, path=str(pipe))))  # which never comes to an end
        held: list[int] = []
        await _until(lambda: _hold(pipe, held))
        os.kill(process.pid, signal.SIGXCPU)
        found.append(await asking)
        os.close(held[0])
        found += [await workers.fault_of(wanted), await workers.fault_of(replace(wanted, path=str(tmp_path / "gone")))]
        await workers.close()
        return found

    first, second, third, fourth = asyncio.run(run())
    assert first is None and third is None
    assert second is not None and "takes more than" in second and fourth is not None and "no longer here" in fourth
