"""Messages of the script in a page (script.js), as events and as elements without what is private in them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from annotation.recorder.browser.pages import SIGN_PX
from annotation.recorder.input.events import Event, Key, Press, Wheel
from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.pixels import grown
from annotation.recorder.screen.snapshots import Snapshot
from annotation.recordings.bundle import Box, ScreenElement
from annotation.recordings.redaction import Redactor

MAX_LAG_S = 5.0


@dataclass(slots=True)
class PageSnapshots:
    """The elements of each frame, as the page listed them at its event, with what is private in them found. Known for as long as anything
    holds the frame, which is until it is stored: a picture whose secrets were forgotten would show them."""

    redactor: Redactor
    found: dict[int, Snapshot] = field(default_factory=dict)
    _frames: dict[int, weakref.ref[Frame]] = field(default_factory=dict)

    def of(self, frame: Frame) -> Snapshot | None:
        return self.found.get(frame.number)

    def black(self, frame: Frame) -> tuple[Box, ...]:
        snapshot = self.of(frame)
        return snapshot.black if snapshot is not None else ()

    def learn(self, frame: Frame, message: dict[str, Any], now_s: float) -> None:
        if frame.number in self.found or "elements" not in message:
            return
        secrets = [box_of(*values) for values in message.get("secrets", ())]
        elements, black = [], [grown(box, 0) for box in secrets]
        for one in message["elements"]:
            box = box_of(one["x"] - one["width"] / 2, one["y"] - one["height"] / 2, one["width"], one["height"])
            is_secret = any(secret.holds(one["x"], one["y"]) for secret in secrets)
            text = "" if is_secret else str(one["text"])[:2000]
            if self.redactor.find(text, loose=True):
                black.append(grown(box))
            text = self.redactor.redact(text, loose=True)[0][:2000]
            elements.append(ScreenElement(role=str(one["role"])[:40], text=text, states=tuple(map(str, one["states"])), box=box))
        names = ("",) * len(elements)
        self.found[frame.number] = Snapshot(start_s=now_s, end_s=now_s, elements=tuple(elements), names=names, black=tuple(black))
        self._frames[frame.number] = weakref.ref(frame, partial(self._forget, frame.number))

    def _forget(self, number: int, _: weakref.ref[Frame]) -> None:
        self.found.pop(number, None)
        self._frames.pop(number, None)


def addresses_of(message: dict[str, Any]) -> Iterator[str]:
    """Of the frame, of the page that filled it, and of the page around it: frames that a page fills itself have no site in their own."""
    for name in ("url", "origin", "top_url"):
        if isinstance(message.get(name), str):
            yield message[name]


def event_of(message: dict[str, Any]) -> Event | None:
    """An event from the script's message; its time by our clock."""
    now_s, lag_s = time.monotonic(), time.time() - message["epoch_ms"] / 1000
    when = now_s - lag_s if 0 <= lag_s <= MAX_LAG_S else now_s
    match message["kind"]:
        case "key":
            is_down = bool(message["is_down"])
            return Key(time_s=when, name=str(message["name"]), is_down=is_down, text=str(message["text"]) if is_down else "")
        case "press":
            return Press(time_s=when, button=message["button"], is_down=bool(message["is_down"]), x=int(message["x"]), y=int(message["y"]))
        case "wheel":
            return Wheel(time_s=when, dx=int(message["dx"]), dy=int(message["dy"]), x=int(message["x"]), y=int(message["y"]))
    return None


def notches(event: Event) -> Iterator[Event]:
    """A scroll by several notches, one by one."""
    if not isinstance(event, Wheel):
        yield event
        return
    for dx, dy, times in ((event.dx, 0, abs(event.dx)), (0, event.dy, abs(event.dy))):
        for _ in range(min(times, 60)):
            yield Wheel(time_s=event.time_s, dx=(dx > 0) - (dx < 0), dy=(dy > 0) - (dy < 0), x=event.x, y=event.y)


def is_on_sign(event: Event) -> bool:
    return False if isinstance(event, Key) else event.x < SIGN_PX[0] and event.y < SIGN_PX[1]


def box_of(x: float, y: float, width: float, height: float) -> Box:
    return Box(x=round(x), y=round(y), width=max(0, round(width)), height=max(0, round(height)))
