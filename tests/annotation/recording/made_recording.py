"""A finished recording without a display: drawn screens, a tone for a voice, actions, words and thoughts."""

from __future__ import annotations

import io
import math
import struct
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from annotation.recorder.review.finish import Stretch, speech_parts
from annotation.recorder.speech.alignment import align
from annotation.recorder.store import store as stores
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Box, Machine, Manifest, RecordedAction, Screen, ScreenElement, TaskQuery, Window, Word
from annotation.recordings.consent import sign
from sandbox.actions import Action, Click, Hotkey, TypeText
from warehouse.core.identity import bytes_id

SIZE = (640, 400)
BUTTON = Box(x=40, y=60, width=120, height=30)
STEPS: tuple[tuple[float, Action, str], ...] = (
    (3.0, Click(x=100, y=75), "first i press new"),
    (7.0, TypeText(text="Hello Emma\n"), "now the greeting"),
    (12.0, Hotkey(keys=("ctrl", "s")), "my aunt lives in Bremen"),
    (16.0, Click(x=100, y=75), "and again"),
)


def drawn(text: str) -> bytes:
    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    pen.rectangle((BUTTON.x, BUTTON.y, BUTTON.x + BUTTON.width, BUTTON.y + BUTTON.height), outline="black", fill="lightgray")
    pen.text((60, 66), "New", fill="black", font=ImageFont.load_default(16))
    pen.text((40, 200), text, fill="black", font=ImageFont.load_default(20))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@cache
def tone(seconds: float) -> bytes:
    return b"".join(struct.pack("<h", int(9000 * math.sin(i / 6))) for i in range(int(seconds * 16_000)))


def words_of(text: str, end_s: float) -> list[Word]:
    parts = text.split()
    start_s = end_s - 0.3 * len(parts)
    times = [(round(start_s + 0.3 * i, 3), round(start_s + 0.3 * i + 0.25, 3)) for i in range(len(parts))]
    return [Word(text=part, start_s=start, end_s=end) for part, (start, end) in zip(parts, times, strict=True)]


def make(root: Path, name: str = "one", passphrase: str | None = None, *, text: str = "page") -> Store:
    store = stores.create(root, name, passphrase)
    words = [word for start_s, _, said in STEPS for word in words_of(said, start_s - 0.4)]
    screens, actions = [], []
    thoughts = align(words, [start_s for start_s, _, _ in STEPS])
    for number, ((start_s, action, _), thought) in enumerate(zip(STEPS, thoughts, strict=True)):
        png = drawn(f"{text} {number}")
        screen_id = bytes_id("screen", png)
        store.put_screen(screen_id, png)
        button = ScreenElement(role="button", text="New", box=BUTTON)
        line = ScreenElement(role="textarea", text=f"{text} {number}", states=("focused",), box=Box(x=30, y=190, width=400, height=60))
        screens.append(
            Screen(screen_id=screen_id, sha256=sha256(png).hexdigest(), width_px=SIZE[0], height_px=SIZE[1], elements=(button, line))
        )
        target = button if isinstance(action, Click) else line
        window = Window(title="Notes", application="Editor")
        actions.append(
            RecordedAction(
                action=action, start_s=start_s, end_s=start_s + 0.5, screen_id=screen_id, target=target, window=window, thought=thought
            )
        )
    samples = tone(18.0)
    store.append_speech(samples)
    parts = speech_parts([Stretch(at=0, num_samples=len(samples) // 2, start_s=0.5)], samples)
    manifest = Manifest(
        recording_id=store.cover.recording_id,
        source="desktop",
        started_at=datetime.now(UTC),
        length_s=20.0,
        track="expert",
        task=TaskQuery(query="Write to Emma", applications=("Editor",)),
        consent=sign("Ann Example", with_microphone=True),
        machine=Machine(system="Linux", width_px=SIZE[0], height_px=SIZE[1], input_source="x11-record", accessibility=True),
        actions=tuple(actions),
        screens=tuple(screens),
        words=tuple(words),
        speech=tuple(part for _, part in parts),
    )
    store.put_manifest(manifest, "recorded")
    return store
