"""The browser recorder on a real Chromium with a real page: trusted input through the DevTools protocol, as a hand would give it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_names import OTHER_NAMES, SECRET_NAMES
from PIL import Image

from annotation.recorder.browser import pages as browser_pages
from annotation.recorder.browser.browser_recorder import BrowserRecorder
from annotation.recorder.browser.page_events import PageSnapshots
from annotation.recorder.browser.pages import BrowserPages
from annotation.recorder.review.finish import finish
from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.text_reader import find_text_reader
from annotation.recorder.settings import RecordSettings
from annotation.recorder.store import store as stores
from annotation.recordings.bundle import Manifest, TaskQuery
from annotation.recordings.consent import sign
from annotation.recordings.redaction import Redactor
from sandbox.actions import Click, Hotkey, Navigate, Scroll, TypeText
from sandbox.browser.chromium import find_chromium

PAGE = """<!doctype html><title>Order for lena.fischer@posteo.de</title>
<style>body{font:20px sans-serif;margin:40px}input{font:18px sans-serif}</style>
<label>Name <input id=name></label><br><label>Password <input id=secret type=password></label><br>
<p id=card>Card 4539 1488 0343 6467</p><button id=go onclick="document.title='done';this.textContent='Thanks'">Order now</button>
<script>window.told = []; window.flywheelTell = (text) => window.told.push(text);</script><div style="height:3000px"></div>"""
SECRETS = (b"Tulip-42-rain", b"Tulip", b"lena.fischer", b"4539 1488", b"6467")


class Person:
    """Hands in a page, by input events that the browser trusts."""

    def __init__(self, pages: BrowserPages) -> None:
        self._tab = next(iter(pages.tabs.values()))
        self._connection = pages.connection

    async def do(self, method: str, **params: Any) -> Any:
        return await self._connection.send(method, params, self._tab.session_id)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def middle(self, selector: str) -> tuple[int, int]:
        box = await self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(document.querySelector('{selector}').getBoundingClientRect())"
        )
        return round(box[0]), round(box[1])

    async def press(self, selector: str) -> tuple[int, int]:
        x, y = await self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            await self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        return x, y

    async def type(self, text: str) -> None:
        """All keys are sent before the first is answered: the browser takes them in order, and a busy machine is not waited for at each."""
        events = [event for key in text for event in ({"type": "keyDown", "key": key, "text": key}, {"type": "keyUp", "key": key})]
        await asyncio.gather(*(self._connection.send("Input.dispatchKeyEvent", event, self._tab.session_id) for event in events))

    async def key(self, name: str, modifiers: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=name, modifiers=modifiers)

    async def sees(self, title: str) -> None:
        """A page that has loaded."""
        async with asyncio.timeout(90):
            while await self.evaluate("document.title + ' ' + document.readyState") != f"{title} complete":
                await asyncio.sleep(0.05)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds():
            await asyncio.sleep(0.02)


async def clicked(recorder: BrowserRecorder, person: Person, selector: str) -> tuple[int, int]:
    """Once the click is stored, and whatever came before it."""
    num_before = recorder.num_actions
    place = await person.press(selector)
    await until(lambda: recorder.num_actions > num_before and not recorder._held and not recorder._gestures.is_typing)
    return place


async def order(recorder: BrowserRecorder, other: str) -> dict[str, tuple[int, int]]:
    person, places = Person(recorder.pages), {}
    await person.sees("Order for lena.fischer@posteo.de")
    places["name"] = await clicked(recorder, person, "#name")
    await person.type("Lenx")
    await person.key("Backspace")
    await person.type("a")
    places["secret"] = await clicked(recorder, person, "#secret")
    await person.type("Tulip-42-rain")
    places["go"] = await clicked(recorder, person, "#go")
    await person.do("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=300, deltaX=0, deltaY=100)
    await until(lambda: recorder.num_actions == 6)
    assert await person.evaluate("window.told.length") == 0, "the page sees nothing of the recorder"
    assert await person.evaluate("typeof window.__flywheelRecorder") == "undefined"
    person._tab.asked_by_page_s = 0.0  # what the page itself asked for is long over
    await person.do("Page.navigate", url=other)
    await person.sees("Other")
    await until(lambda: recorder.num_actions == 7)
    for kind in ("rawKeyDown", "keyUp"):
        for key in ("Control", "Alt", "p") if kind == "rawKeyDown" else ("p", "Alt", "Control"):
            await person.do("Input.dispatchKeyEvent", type=kind, key=key, modifiers=3)
    await until(lambda: recorder.is_paused)
    await person.type("unheard")
    return places


def record(tmp_path: Path) -> tuple[Manifest, dict[str, tuple[int, int]], stores.Store]:
    (tmp_path / "page.html").write_text(PAGE)
    (tmp_path / "other.html").write_text("<!doctype html><title>Other</title><input autofocus>")
    store = stores.create(tmp_path / "recordings", "web")

    async def main() -> dict[str, tuple[int, int]]:
        task, consent = TaskQuery(query="Order"), sign("Ann Example", with_microphone=False)
        recorder = BrowserRecorder(store, RecordSettings(), task, consent, text_reader=find_text_reader())
        url = (tmp_path / "page.html").as_uri()
        await recorder.start(find_chromium().path, tmp_path / "profile", url, ("--no-sandbox", "--headless", "--window-size=900,600"))
        running = asyncio.create_task(recorder.run(60))
        try:
            return await order(recorder, (tmp_path / "other.html").as_uri())
        finally:
            recorder.ask_to_stop()
            await running
            await recorder.stop("done")

    places = asyncio.run(main())
    return finish(store), places, store


@pytest.mark.slow
def test_work_in_a_page_is_recorded_without_its_secrets(tmp_path: Path):
    manifest, places, store = record(tmp_path)
    (name, secret, go) = (Click(x=places[key][0], y=places[key][1]) for key in ("name", "secret", "go"))
    actions = [action.action for action in manifest.actions]
    assert actions[:6] == [name, TypeText(text="Lena"), secret, TypeText(text="[password]"), go, Scroll(direction="down", x=300, y=300)]
    assert isinstance(actions[6], Navigate) and actions[6].url.endswith("/other.html") and len(actions) == 7, actions
    assert not any(isinstance(action, Hotkey) for action in actions)
    targets = [action.target for action in manifest.actions]
    assert [target.role for target in targets[:5] if target] == ["input", "input", "input", "input", "button"]
    assert targets[4] is not None and targets[4].text == "Order now" and targets[4].box.holds(*places["go"])
    assert manifest.source == "browser" and manifest.machine.width_px > 700 and len(manifest.pauses) == 1
    stored = b"\0".join(path.read_bytes() for path in store.folder.rglob("*") if path.is_file())
    assert [secret for secret in SECRETS if secret in stored] == [] and b"unheard" not in stored
    assert "[e-mail]" in manifest.actions[0].window.title
    screen = manifest.screen(manifest.actions[0].screen_id or "")
    pixels = np.asarray(Image.open(io.BytesIO(store.screen(screen.screen_id))))
    card = next(element for element in screen.elements if "[card]" in element.text)
    x, y = card.box.x + card.box.width // 2, card.box.y + card.box.height // 2
    assert not pixels[y - 4 : y + 4, x - 40 : x + 40].any(), "the card is black"


NAMES = (*SECRET_NAMES, *OTHER_NAMES)
FIELDS = "".join(
    f'<input data-index={2 * i} aria-label="{name}"><input data-index={2 * i + 1} name="{name}">' for i, name in enumerate(NAMES)
)
SHOWN = """<!doctype html><title>Sign in</title><style>input{width:60px}#host{display:inline-block}</style><input id=first type=password>
<button id=show onclick="first.type='text'">Show</button><input id=second type=PASSWORD value=Rose-7-snow><div id=host></div>
<script>const third = document.createElement('input'); third.type = 'password'; third.value = 'Iris-9-hail';
host.attachShadow({mode: 'open'}).append(third);
const field = (index) => document.querySelector(`[data-index="${index}"]`);
addEventListener('keyup', ({target}) => field(Number(target.dataset.index) + 1)?.focus());</script><br>"""


def keys_down(reported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in reported if one["kind"] == "key" and one["is_down"]]


def test_pages_and_programs_know_the_same_names_and_a_password_that_is_shown_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(browser_pages, "START_S", 90.0)  # the machine may be busy
    (tmp_path / "page.html").write_text(SHOWN + FIELDS)
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        pages = BrowserPages(lambda tab, one: reported.append(one), lambda tab, url: None, lambda tab: None)
        flags = ("--no-sandbox", "--headless", "--window-size=900,600")
        await pages.launch(find_chromium().path, tmp_path / "profile", (tmp_path / "page.html").as_uri(), flags)
        try:
            person = Person(pages)
            await person.sees("Sign in")
            await person.evaluate("second.type = 'text'")  # before anything was heard of it
            await person.press("#first")
            await person.type("a")
            await person.press("#show")
            await person.evaluate("third.type = 'text'")
            await person.press("#first")
            await person.type("b")
            await person.press("#host")
            await person.type("c")
            await person.evaluate("field(0).focus()")
            await person.type("x" * 2 * len(NAMES))
            await until(lambda: len(keys_down(reported)) >= 3 + 2 * len(NAMES))
        finally:
            await pages.close()

    asyncio.run(main())
    keys = [(one["text"], one["is_secret"]) for one in keys_down(reported)]
    assert keys[:3] == [("•", True)] * 3
    wrong = [NAMES[i // 2] for i, (_, is_secret) in enumerate(keys[3:]) if is_secret != (i < 2 * len(SECRET_NAMES))]
    assert wrong == [] and len(keys) == 3 + 2 * len(NAMES)
    snapshots = PageSnapshots(Redactor())
    frames = [Frame(number=number, since_s=0.0, until_s=0.0, pixels=np.zeros((1, 1, 3), np.uint8)) for number in range(len(reported))]
    for frame, one in zip(frames, reported, strict=True):
        snapshots.learn(frame, one, 0.0)
    texts = {element.text for snapshot in snapshots.found.values() for element in snapshot.elements}
    assert "Show" in texts and not [text for text in texts if "Rose" in text or "Iris" in text or text in ("ab", "a")], texts
