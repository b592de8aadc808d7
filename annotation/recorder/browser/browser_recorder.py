"""The recorder for work in a browser: hears what a person does in its pages, takes out what is private, writes the rest to a journal as the
desktop's recorder does. Points and pictures are those of the page, without the browser's own frame.

Passwords do not leave the page (script.js). Sites are excluded by their name. Beside typed text, addresses are redacted too: links
carry tokens.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from annotation.recorder.browser.page_events import PageSnapshots, addresses_of, box_of, event_of, is_on_sign, notches
from annotation.recorder.browser.pages import SIGN_PX, BrowserPages, Tab
from annotation.recorder.input.events import Key, Press
from annotation.recorder.input.gestures import Draft, Gestures
from annotation.recorder.input.hotkeys import Hotkeys
from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.pixels import pixels_of
from annotation.recorder.screen.screens import Screens
from annotation.recorder.screen.snapshots import cover
from annotation.recorder.screen.text_reader import TextReader
from annotation.recorder.settings import Header, RecordSettings
from annotation.recorder.speech.microphone import Sound, SpeechSource
from annotation.recorder.speech.sound_lines import SoundLines
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Box, Consent, Machine, Result, TaskQuery
from annotation.recordings.consent import check
from annotation.recordings.redaction import Redactor, redacted_task
from sandbox.actions import ACTION, Action, Navigate, TypeText
from warehouse.core.errors import RecorderUnavailable

DOT = "•"
TICK_S = 0.1
PICTURE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """What an event came with: the picture before it, and what the page reported."""

    tab: Tab
    frame: Frame | None
    url: str
    title: str
    focus: Box | None = None


class BrowserRecorder:
    def __init__(
        self,
        store: Store,
        settings: RecordSettings,
        task: TaskQuery,
        consent: Consent,
        *,
        text_reader: TextReader | None = None,
        speech: SpeechSource | None = None,
        excluded_sites: Sequence[str] = (),
    ) -> None:
        """Raises RecordingRefused for a consent under another text."""
        check(consent)
        self._store, self._settings, self._consent = store, settings, consent
        self._text_reader, self._speech_source = text_reader, speech
        self._excluded = tuple(pattern.casefold() for pattern in excluded_sites)
        self.redactor = Redactor()
        self.task, self.hidden_in_task = redacted_task(task, self.redactor)
        self._snapshots = PageSnapshots(self.redactor)
        self._screens = Screens(store, self._snapshots, self.redactor, text_reader, with_elements=settings.with_elements)
        self._gestures: Gestures[EventContext] = Gestures()
        self._numbers = count(1)
        self._frames: dict[tuple[str, float], Frame] = {}
        self._held: list[Draft[EventContext]] = []
        self._sound = SoundLines(store, self._at)
        self._hotkeys = Hotkeys(settings, pause=lambda: self._pause(not self.is_paused), stop=self.ask_to_stop)
        self._current: Tab | None = None
        self._stopping = asyncio.Event()
        self.is_paused = False
        self.hidden: Counter[str] = Counter()
        self.num_actions = 0
        self.pages = BrowserPages(self._heard, self._went, lambda tab: None, self._is_excluded)

    async def start(self, executable: Path, profile: Path, url: str, flags: tuple[str, ...] = ()) -> None:
        """Raises RecorderUnavailable."""
        self._lock = self._store.lock()
        self.start_s, self._started_at = time.monotonic(), datetime.now(UTC)
        self._screens.start()
        try:
            await self.pages.launch(executable, profile, url, flags)
            self._store.append((await self._header()).model_dump(mode="json"))
            if self._speech_source is not None:
                loop = asyncio.get_running_loop()
                self._speech_source.start(lambda sound: _in_loop(loop, self._hear, sound))
        except BaseException:
            await self.pages.close()
            self._screens.finish()
            self._store.close()
            os.close(self._lock)
            raise

    async def _header(self) -> Header:
        """Once there is a picture, whose size is the screen's."""
        end_s = time.monotonic() + PICTURE_S
        while not (sizes := [tab.size_px for tab in self.pages.tabs.values() if tab.size_px is not None]):
            if time.monotonic() > end_s:
                raise RecorderUnavailable(
                    f"The browser gave no picture of its page in {PICTURE_S:g} s (Page.startScreencast): name another with --chromium."
                )
            await asyncio.sleep(TICK_S)
        width, height = sizes[0]
        machine = Machine(
            system=platform.system(),
            width_px=width,
            height_px=height,
            input_source="chromium",
            accessibility=True,
            text_reader=self._text_reader.name if self._text_reader else "",
        )
        return Header(
            source="browser",
            started_at=self._started_at,
            track=self._settings.track,
            task=self.task,
            consent=self._consent,
            machine=machine,
        )

    async def run(self, limit_s: float = float("inf")) -> None:
        """Until the stop keys, `ask_to_stop`, the last page's end, or the limit."""
        end_s = time.monotonic() + limit_s
        while not self._stopping.is_set() and self.pages.is_open and time.monotonic() < end_s:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._held += self._gestures.tick(now_s)
            self._release(now_s)

    def ask_to_stop(self) -> None:
        self._stopping.set()

    async def stop(self, result: Result = "unsaid") -> None:
        """End it, and wait until everything that is kept is on the disk."""
        if self._speech_source is not None:
            self._speech_source.stop()
        self._held += self._gestures.flush()
        self._release(float("inf"))
        self._sound.write()
        last = self._current
        frame = self._frame(last) if last is not None and not self.is_paused and not self.pages.is_excluded(last) else None
        number, end_s = self._screens.keep(self._readable(frame)), self._at(time.monotonic())
        await self.pages.close()
        await asyncio.to_thread(self._screens.finish)
        self._store.append({"type": "end", "time_s": end_s, "frame": number, "result": result, "hidden": dict(+self.hidden)})
        self._store.close()
        os.close(self._lock)

    # --- what is heard ---

    def _heard(self, tab: Tab, message: dict[str, Any]) -> None:
        event = event_of(message)
        if event is None or (isinstance(event, Key) and self._hotkeys.obeys(event)) or self.is_paused:
            return
        self._current = tab
        if self.pages.is_excluded(tab) or any(map(self._is_excluded, addresses_of(message))) or is_on_sign(event):
            self.hidden["excluded"] += isinstance(event, Press) and event.is_down
            self._held += self._gestures.flush()
            return
        frame = self._frame(tab)
        if frame is not None:
            self._snapshots.learn(frame, message, event.time_s)
        focus = box_of(*message["focus"]) if message.get("focus") else None
        moment = EventContext(tab=tab, frame=frame, url=message["url"], title=message["title"], focus=focus)
        for one in notches(event):
            self._held += self._gestures.feed(one, moment)

    def _went(self, tab: Tab, url: str) -> None:
        """By the address bar, a bookmark or a button of the browser: none of them is in the page."""
        self._current = tab
        if self.is_paused or self._is_excluded(url):
            return
        now_s = time.monotonic()
        self._held += self._gestures.flush()
        moment = EventContext(tab=tab, frame=self._frame(tab), url=url, title="")
        self._held.append(Draft(action=Navigate(url=url), start_s=now_s, end_s=now_s, before=moment, latest=moment))

    def _frame(self, tab: Tab) -> Frame | None:
        """The tab's newest picture as a frame; the same picture is the same frame. None where the page is excluded."""
        if not tab.png:
            return None
        key = (tab.session_id, tab.png_s)
        if key not in self._frames:
            pixels = pixels_of(tab.png)
            mask = np.zeros(pixels.shape[:2], dtype=bool)
            mask[: SIGN_PX[1], : SIGN_PX[0]] = True
            self._frames = {k: v for k, v in self._frames.items() if k[0] in self.pages.tabs and k[0] != tab.session_id}
            self._frames[key] = Frame(number=next(self._numbers), since_s=tab.png_s, until_s=tab.png_s, pixels=pixels, mask=mask)
        return self._frames[key]

    def _readable(self, frame: Frame | None) -> Frame | None:
        """A frame whose text is known from the page's elements or a reader of pixels. Others are not stored."""
        return frame if frame is not None and (self._text_reader is not None or self._snapshots.of(frame) is not None) else None

    def _pause(self, is_paused: bool) -> None:
        self._held += self._gestures.flush()
        self._release(float("inf"))
        self._sound.write()
        self._gestures.forget()
        self.is_paused = is_paused
        if self._speech_source is not None:
            self._speech_source.pause(is_paused)
        self.pages.show_sign(is_paused)
        self._store.append({"type": "pause" if is_paused else "go on", "time_s": self._at(time.monotonic())})

    def _is_excluded(self, url: str) -> bool:
        site = (urlsplit(url.removeprefix("blob:")).hostname or "").casefold()
        return any(fnmatchcase(site, pattern if "*" in pattern else f"*{pattern}*") for pattern in self._excluded)

    # --- what is written ---

    def _release(self, now_s: float) -> None:
        while self._held and now_s - self._held[0].end_s >= self._settings.hold_s:
            run = 0
            while run < len(self._held) and isinstance(self._held[run].action, TypeText):
                run += 1
            if run == len(self._held) and run and not _text(self._held[-1]).endswith("\n"):
                last_s = self._held[-1].end_s
                if self._gestures.is_typing or now_s - last_s < self._settings.run_pause_s:
                    return
            drafts, self._held = self._held[: max(run, 1)], self._held[max(run, 1) :]
            for draft, text, hidden in self._private(drafts):
                self._write(draft, text, hidden)

    def _private(self, drafts: Sequence[Draft[EventContext]]) -> Iterator[tuple[Draft[EventContext], Action, tuple[str, ...]]]:
        redacted = self.redactor.redact_run([_text(draft) for draft in drafts])
        for draft, (text, kinds) in zip(drafts, redacted, strict=True):
            action = draft.action
            if isinstance(action, TypeText):
                ending = "\n" if action.text.endswith("\n") else ""
                is_secret = DOT in action.text
                hidden = ("password",) if is_secret else kinds
                action = TypeText(text=f"[password]{ending}" if is_secret else text)
                for finding in self.redactor.find(_text(draft)):
                    self.redactor.learn(_text(draft)[finding.start : finding.end], finding.kind)
            elif isinstance(action, Navigate):
                url, hidden = self.redactor.redact(action.url)
                action = Navigate(url=url)
            else:
                hidden = ()
            self.hidden.update(hidden)
            yield draft, action, hidden

    def _write(self, draft: Draft[EventContext], action: Action, hidden: tuple[str, ...]) -> None:
        moment = draft.before
        frame = moment.frame if moment is not None else None
        snapshot = self._snapshots.of(frame) if frame is not None else None
        target = None
        if snapshot is not None and draft.points:
            hit = snapshot.at(*draft.points[0])
            target = cover(hit[0], self.redactor).model_dump(mode="json") if hit is not None else None
        elif snapshot is not None and moment is not None and moment.focus is not None:
            middle = moment.focus.x + moment.focus.width // 2, moment.focus.y + moment.focus.height // 2
            hit = snapshot.at(*middle)
            target = cover(hit[0], self.redactor).model_dump(mode="json") if hit is not None else None
        title, url = (self.redactor.redact(text)[0] for text in ((moment.title, moment.url) if moment is not None else ("", "")))
        self._store.append(
            {
                "type": "action",
                "action": ACTION.dump_python(action, mode="json"),
                "start_s": self._at(draft.start_s),
                "end_s": self._at(draft.end_s),
                "frame": self._screens.keep(self._readable(frame)),
                "target": target,
                "hidden": list(hidden),
                "window": {"title": title[:2000], "application": "Chromium", "url": url[:4000]},
            }
        )
        self.num_actions += 1

    def _hear(self, sound: Sound) -> None:
        if not self.is_paused:
            self._sound.hear(sound)

    def _at(self, time_s: float) -> float:
        return round(max(0.0, time_s - self.start_s), 4)


def _text(draft: Draft[EventContext]) -> str:
    return draft.action.text if isinstance(draft.action, TypeText) else ""


def _in_loop(loop: asyncio.AbstractEventLoop, take: Callable[[Sound], None], sound: Sound) -> None:
    loop.call_soon_threadsafe(take, sound)
