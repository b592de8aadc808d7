"""Looking through a recording: what is deleted is off the disk, what is drawn is black, who may not has no way in; and the page itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from made_recording import BUTTON, STEPS, make
from playwright.async_api import async_playwright, expect

from annotation.recorder.review import edits
from annotation.recorder.review.review import create_app
from annotation.recorder.screen.pixels import pixels_of
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Box, Span
from sandbox.actions import TypeText
from sandbox.browser.chromium import find_chromium
from sandbox.http.serving import Server, address_of, bind, running
from warehouse.core.errors import RecordingRefused

KEY = "key-of-this-page-0123456789"
OWN = {"x-flywheel-review": "1"}
EVIL = "<img src=x onerror='window.evil = 1'>"


def stored(store: Store) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(store.folder.rglob("*")) if path.is_file())


def test_a_deleted_span_is_off_the_disk(tmp_path: Path):
    store = make(tmp_path)
    before = store.manifest()
    gone = before.actions[2].screen_id
    assert gone is not None and b"Bremen" in stored(store)
    after = edits.delete_span(store, Span(start_s=9.0, end_s=13.0))
    assert len(after.actions) == 3 and b"Bremen" not in stored(store) and gone not in store.screen_ids()
    assert [action.start_s for action in after.actions] == [3.0, 7.0, 16.0]
    samples = np.frombuffer(store.speech(), dtype="<i2")
    assert samples.size == 18 * 16_000, "times stay"
    quiet = samples[int(8.6 * 16_000) : int(12.4 * 16_000)]
    assert not quiet.any() and samples[: 8 * 16_000].any() and samples[13 * 16_000 :].any()
    assert after.deleted == (Span(start_s=9.0, end_s=13.0),) and after == store.manifest()
    assert [path.name for path in store.folder.iterdir() if path.name.endswith(".old")] == []


def test_an_action_that_reaches_into_a_deleted_span_goes_with_it(tmp_path: Path):
    store = make(tmp_path)
    manifest = store.manifest()
    typing = manifest.actions[1].model_copy(update={"end_s": 11.5, "action": TypeText(text="my bank is in Kassel")})
    store.put_manifest(manifest.model_copy(update={"actions": (manifest.actions[0], typing, *manifest.actions[2:])}), "recorded")
    assert b"Kassel" in stored(store)
    after = edits.delete_span(store, Span(start_s=10.0, end_s=11.0))
    assert [action.start_s for action in after.actions] == [3.0, 12.0, 16.0]
    assert b"Kassel" not in stored(store) and typing.screen_id not in store.screen_ids()
    again = edits.delete_span(store, Span(start_s=16.5, end_s=17.0))
    assert [action.start_s for action in again.actions] == [3.0, 12.0], "an edge in common is enough"


def test_the_task_can_be_reworded_without_what_is_private_in_it(tmp_path: Path):
    store = make(tmp_path)
    edits.confirm(store)
    after = edits.edit_query(store, " Write to\nlena.fischer@posteo.de ")
    assert after.task.query == "Write to [e-mail]" and after.task.applications == ("Editor",) and store.cover.state == "recorded"
    assert b"posteo" not in stored(store) and b"Write to Emma" not in stored(store)
    edits.confirm(store)
    edits.edit_query(store, "Write to [e-mail]")
    assert store.cover.state == "reviewed", "nothing changed"
    for wrong in (" ", "x" * 4001):
        with pytest.raises(RecordingRefused, match="1 to 4000"):
            edits.edit_query(store, wrong)


def test_only_what_was_said_can_go(tmp_path: Path):
    store = make(tmp_path)
    after = edits.delete_span(store, Span(start_s=9.0, end_s=11.8), speech_only=True)
    assert len(after.actions) == len(STEPS) and after.actions[2].thought is None and b"Bremen" not in stored(store)
    part = edits.delete_span(store, Span(start_s=1.0, end_s=1.65), speech_only=True)
    assert part.actions[0].thought is not None and part.actions[0].thought.raw == "i press new"


def test_a_drawn_box_is_black_in_a_picture_that_replaces_the_old_one(tmp_path: Path):
    store = make(tmp_path)
    before = store.manifest()
    screen_id = before.actions[0].screen_id or ""
    box = Box(x=30, y=50, width=200, height=60)
    after = edits.draw_box(store, screen_id, box)
    new = after.actions[0].screen_id or ""
    assert new != screen_id and screen_id not in store.screen_ids()
    assert not pixels_of(store.screen(new))[50:110, 30:230].any()
    assert after.actions[0].target is not None and after.actions[0].target.text == ""
    assert after.screen(new).elements[0].text == "" and after.screen(new).redacted == (box,)
    assert after.actions[3].target is not None and after.actions[3].target.text == "New", "the other pictures stay"
    everywhere = edits.draw_box(store, new, box, everywhere=True)
    assert all(not pixels_of(store.screen(screen.screen_id))[50:110, 30:230].any() for screen in everywhere.screens)
    assert all(not action.target.box.overlaps(BUTTON) or action.target.text == "" for action in everywhere.actions if action.target)


def test_a_thought_is_reworded_and_what_was_heard_stays(tmp_path: Path):
    store = make(tmp_path)
    after = edits.edit_thought(store, 0, "  I press the button New. ")
    thought = after.actions[0].thought
    assert thought is not None and (thought.text, thought.raw, thought.origin) == ("I press the button New.", "first i press new", "person")
    with pytest.raises(RecordingRefused, match="no action 9"):
        edits.edit_thought(store, 9, "x")


def test_a_change_takes_the_confirmation_back(tmp_path: Path):
    store = make(tmp_path)
    edits.delete_span(store, Span(start_s=15.0, end_s=17.0))
    review = edits.confirm(store).review
    assert review is not None and review.num_deleted_spans == 1 and store.cover.state == "reviewed"
    edits.say_result(store, "done")
    assert store.cover.state == "recorded" and store.manifest().review is None
    edits.delete_span(store, Span(start_s=0.0, end_s=20.0))
    with pytest.raises(RecordingRefused, match="nothing to upload"):
        edits.confirm(store)


def test_a_sealed_recording_stays_sealed_through_the_review(tmp_path: Path):
    store = make(tmp_path, passphrase="correct horse")
    edits.edit_thought(store, 0, "tulips")
    edits.draw_box(store, store.manifest().screens[0].screen_id, Box(x=0, y=0, width=9, height=9))
    edits.delete_span(store, Span(start_s=9.0, end_s=13.0))
    everything = stored(store)
    for plain in (b"tulips", b"Hello Emma", b"\x89PNG\r\n", b"WAVEfmt"):  # a shorter one ciphertext has by chance now and then
        assert plain not in everything


@contextlib.asynccontextmanager
async def page_of(store: Store) -> AsyncIterator[str]:
    with bind("127.0.0.1", 0) as listener:
        address = address_of(listener)
        async with running(Server(create_app(store, KEY), grace_s=1, lifespan="off"), listener):
            yield address


def test_nobody_else_gets_in(tmp_path: Path):
    store = make(tmp_path)
    screen = store.manifest().screens[0].screen_id

    async def main() -> None:
        async with page_of(store) as url, httpx.AsyncClient(base_url=url) as client:
            for path in ("/api/recording", "/api/peaks", f"/api/screens/{screen}", "/api/speech/0", "/nothing"):
                assert (await client.get(path)).status_code == 401, path
            changes = {"/api/confirm": {}, "/api/delete": {"span": {"start_s": 0, "end_s": 9}}, "/api/thought": {"index": 0, "text": "x"}}
            for path, body in changes.items():
                assert (await client.post(path, json=body, headers=OWN)).status_code == 401, path
            page = await client.get("/")
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
            assert page.headers["x-frame-options"] == "DENY" and KEY not in page.text and "Emma" not in page.text
            assert (await client.post("/login", json={"key": "wrong"}, headers=OWN)).status_code == 401
            assert (await client.post("/login", json={"key": KEY})).status_code == 403, "only the page itself"
            assert (await client.get("/files/..%2freview.py")).status_code in (401, 404)
            assert (await client.post("/login", json={"key": KEY}, headers=OWN)).status_code == 204
            cookie = client.cookies["flywheel_review"]
            assert (await client.get("/api/recording")).json()["query"] == "Write to Emma"
            assert (await client.get("/api/recording", headers={"host": "evil.example"})).status_code == 421
            for headers in ({}, {**OWN, "sec-fetch-site": "cross-site"}):
                assert (await client.post("/api/confirm", json={}, headers=headers)).status_code == 403
            assert (await client.post("/api/thought", json={"index": -1, "text": "x"}, headers=OWN)).status_code == 422
            assert (await client.post("/api/thought", json={"index": 99, "text": "x"}, headers=OWN)).status_code == 409
            assert (await client.post("/api/thought", content=b"x" * (2 << 20), headers=OWN)).status_code == 413
            assert (await client.get("/api/screens/screen-0000000000000000")).status_code == 409
            part = await client.get("/api/speech/0", headers={"range": "bytes=0-3"})
            assert (part.status_code, part.content) == (206, b"RIFF")
            assert len(cookie) >= 32 and store.cover.state == "recorded"

    asyncio.run(main())


async def confirm_without_a_task(page: Any, *, is_quick: bool) -> None:
    """The field is left when the button is pressed down: the refusal comes before the button is let go, or after."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.locator("#query").fill("")
    await page.hover("#confirm")
    await page.mouse.down()
    if not is_quick:
        await expect(page.locator("#notice")).to_contain_text("has 0 characters")
    await page.mouse.up()
    await page.wait_for_timeout(300)
    assert asked and not any(url.endswith("/api/confirm") for url in asked)
    await expect(page.locator("#notice")).to_contain_text("has 0 characters")
    await expect(page.locator("#query")).to_have_value("")
    await page.locator("#query").fill("Write to Emma")
    await page.locator("#query").blur()


async def look_through(page: Any, url: str, store: Store) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" and "of 409" not in message.text else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(f"{url}/#{KEY}")
    await expect(page.locator("#query")).to_have_value("Write to Emma")
    assert KEY not in page.url
    await expect(page.locator("#actions li")).to_have_count(4)
    await page.locator("#thought").fill(EVIL)
    await expect(page.locator("#notice")).to_have_text("The thought is saved.")
    await expect(page.locator("#actions li .said").first).to_have_text(EVIL)
    assert not await page.evaluate("Boolean(window.evil)")
    picture = page.locator("#picture")
    await expect(picture).to_have_js_property("complete", True)
    place = await picture.bounding_box()
    await page.mouse.move(place["x"] + 20, place["y"] + 20)
    await page.mouse.down()
    await page.mouse.move(place["x"] + 120, place["y"] + 90, steps=4)
    await page.mouse.up()
    await page.click("#blacken")
    await expect(page.locator("#notice")).to_contain_text("Blackened")
    wave = await page.locator("#wave").bounding_box()
    for share in (0.42, 0.65):
        await page.mouse.move(wave["x"] + wave["width"] * share, wave["y"] + 20)
        await (page.mouse.down() if share == 0.42 else page.mouse.up())
    await expect(page.locator("#words")).to_contain_text("Bremen")
    await page.click("#delete")
    await expect(page.locator("#actions li")).to_have_count(3)
    await page.select_option("#result", "done")
    await expect(page.locator("#notice")).to_have_text("Saved.")
    await page.locator("#actions li").first.click()
    await page.keyboard.press("j")
    await expect(page.locator("#actions li").nth(1)).to_have_attribute("aria-current", "true")
    for is_quick in (True, False):
        await confirm_without_a_task(page, is_quick=is_quick)
        assert store.cover.state == "recorded"
    await page.locator("#query").fill("Write to Emma at emma@posteo.de")
    await page.click("#confirm")
    await expect(page.locator("#confirm")).to_have_text("Confirmed")
    await expect(page.locator("#query")).to_have_value("Write to Emma at [e-mail]")
    assert said == []
    manifest = store.manifest()
    assert store.cover.state == "reviewed" and manifest.result == "done" and manifest.hidden == {"drawn": 1}
    assert manifest.task.query == "Write to Emma at [e-mail]"
    assert manifest.actions[0].thought is not None and manifest.actions[0].thought.text == EVIL
    assert b"Bremen" not in stored(store) and len(manifest.actions) == 3


@pytest.mark.slow
def test_a_person_looks_through_a_recording(tmp_path: Path):
    store = make(tmp_path)

    async def main() -> None:
        async with page_of(store) as url, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium().path), args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1280, "height": 720})
            await look_through(page, url, store)
            await browser.close()

    asyncio.run(main())
