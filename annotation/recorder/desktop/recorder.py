"""The recorder: hears events, keeps the picture from before each, makes actions of them, takes out what is private, and writes the rest to
the journal. One thread decides; listening, pictures, elements and reading of pixels are threads of their own.

An action is held back for a moment before it is written, since programs report a little late what had the focus; typing is held back until
its run is over, since an address is one whether or not its writer pauses in the middle. That is what a killed recorder loses.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from annotation.recorder.desktop.screening import RecorderBackends, Screening, text_of
from annotation.recorder.input.events import Event, Key
from annotation.recorder.input.gestures import Draft, Gestures
from annotation.recorder.input.hotkeys import Hotkeys
from annotation.recorder.screen.camera import Camera, Frame
from annotation.recorder.screen.screens import Screens
from annotation.recorder.screen.snapshots import Snapshots
from annotation.recorder.screen.windows import SeenWindow
from annotation.recorder.settings import Header, RecordSettings
from annotation.recorder.speech.microphone import Sound
from annotation.recorder.speech.sound_lines import SoundLines
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Consent, Machine, Result, TaskQuery
from annotation.recordings.consent import check
from annotation.recordings.redaction import Redactor, redacted_task
from sandbox.actions import ACTION, TypeText
from warehouse.core.errors import RecorderUnavailable

TICK_S = 0.05
SYNC_S = 2.0
AROUND_S = 0.15
"""Windows are looked at so much before and after an action, too, to know whether it was in an excluded one."""


class Recorder:
    """One session. `start`, then `pause` and `resume` at will, then `stop`; `wait` returns when the stop keys were pressed."""

    def __init__(self, store: Store, backends: RecorderBackends, settings: RecordSettings, task: TaskQuery, consent: Consent) -> None:
        """Raises RecordingRefused for a consent under another text, and RecorderUnavailable where exclusions could not be kept."""
        check(consent)
        settings.exclusions.check(knows_windows=backends.windows.knows_windows)
        self._store, self._backends, self._settings, self._consent = store, backends, settings, consent
        self.redactor = Redactor()
        self.task, self.hidden_in_task = redacted_task(task, self.redactor)
        self._gestures: Gestures[Frame] = Gestures()
        self._camera = Camera(backends.windows, settings.exclusions, lambda: backends.sign.box, per_second=settings.pictures_per_s)
        self._snapshots = Snapshots(backends.accessibility, self._camera, settings.exclusions, self.redactor)
        self._screens = Screens(store, self._snapshots, self.redactor, backends.text_reader, with_elements=settings.with_elements)
        self.hidden: Counter[str] = Counter()
        self._screening = Screening(backends, settings, self._camera, self._snapshots, self.redactor, self.hidden)
        self._events: queue.SimpleQueue[tuple[Event, Frame | None] | Sound] = queue.SimpleQueue()
        self._held: list[Draft[Frame]] = []
        self._after: dict[float, Frame | None] = {}
        """By the end of held typing, the picture from a moment after it."""
        self._sound = SoundLines(store, self._at)
        self._hotkeys = Hotkeys(settings, pause=lambda: self.pause(not self._is_paused), stop=self.ask_to_stop)
        self._is_paused = False
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self.num_actions = 0
        self.failure: str | None = None

    # --- from outside ---

    def start(self) -> None:
        """Raises RecorderUnavailable; then nothing runs, and nothing was recorded."""
        backends = self._backends
        self._lock = self._store.lock()
        self.start_s = time.monotonic()
        started_at = datetime.now(UTC)
        try:
            backends.accessibility.start()
            self._camera.start()
            first = self._camera.newest()
            if first is None:
                raise RecorderUnavailable(f"The screen cannot be read: {self._camera.failure or 'no picture came'}.")
            self._store.append(self._header(started_at, first).model_dump(mode="json"))
            self._snapshots.start()
            self._screens.start()
            self._thread.start()
            if backends.speech is not None:
                backends.speech.start(self._events.put)
            backends.inputs.start(lambda event: self._events.put((self._placed(event), self._camera.before(event.time_s))))
        except BaseException:
            self._shut_down()
            raise

    def _header(self, started_at: datetime, first: Frame) -> Header:
        width, height = first.size_px
        machine = Machine(
            system=platform.system(),
            width_px=width,
            height_px=height,
            input_source=self._backends.inputs.name,
            accessibility=self._backends.accessibility.is_available,
            text_reader=self._backends.text_reader.name if self._backends.text_reader else "",
        )
        return Header(
            source="desktop", started_at=started_at, track=self._settings.track, task=self.task, consent=self._consent, machine=machine
        )

    def _placed(self, event: Event) -> Event:
        if isinstance(event, Key):
            return event
        x, y = self._camera.placed(event.x, event.y)
        return event if (x, y) == (event.x, event.y) else replace(event, x=x, y=y)

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the stop keys are pressed, `ask_to_stop` is called, or something failed; false where the time ran out before."""
        return self._stopping.wait(timeout_s)

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def stop(self, result: Result = "unsaid", progress: Callable[[int], None] | None = None) -> None:
        """End the session and wait until everything that is kept is on the disk."""
        self._stopping.set()
        self._backends.inputs.stop()
        if self._backends.speech is not None:
            self._backends.speech.stop()
        time.sleep(self._settings.hold_s)
        self._stopped.set()
        self._thread.join()
        last = None if self._is_paused else self._screens.keep(self._camera.newest())
        end_s = self._at(time.monotonic())
        self._camera.stop()
        self._snapshots.stop()
        self._screens.finish(progress)
        self._store.append({"type": "end", "time_s": end_s, "frame": last, "result": result, "hidden": dict(+self.hidden)})
        self._shut_down()

    def _shut_down(self) -> None:
        self._backends.inputs.stop()
        if self._backends.speech is not None:
            self._backends.speech.stop()
        self._stopped.set()
        self._camera.stop()
        self._snapshots.stop()
        self._backends.accessibility.stop()
        self._backends.sign.close()
        self._backends.windows.close()
        self._store.close()
        os.close(self._lock)

    # --- the deciding thread ---

    def _run(self) -> None:
        synced_s = time.monotonic()
        try:
            while not self._stopped.is_set() or not self._events.empty():
                with suppress(queue.Empty):
                    self._take(self._events.get(timeout=TICK_S))
                now_s = time.monotonic()
                self._hold(self._gestures.tick(now_s))
                self._release(now_s)
                if now_s - synced_s > SYNC_S:
                    self._store.sync()
                    synced_s = now_s
                self._look_for_failure()
            self._hold(self._gestures.flush())
            self._release(float("inf"))
            self._sound.write()
        except Exception as error:  # reported to the caller that waits; what was written stays
            self.failure = self.failure or type(error).__name__
            self._stopping.set()

    def _look_for_failure(self) -> None:
        """A part that ended by itself ends the recording: silence must not be taken for a person who does nothing."""
        failures = (
            ("the screen cannot be read any more", self._camera.failure),
            ("keyboard and pointer are no longer heard", self._backends.inputs.failure),
            ("what stands on the screen is no longer known", self._snapshots.failure),
        )
        failed = next(((what, why) for what, why in failures if why is not None), None)
        if self.failure is None and failed is not None and not self._stopping.is_set():
            self.failure = f"{failed[0]} ({failed[1]})"
            self._stopping.set()

    def _take(self, item: tuple[Event, Frame | None] | Sound) -> None:
        if isinstance(item, Sound):
            if not self._is_paused:
                self._sound.hear(item)
            return
        event, frame = item
        if isinstance(event, Key) and self._hotkeys.obeys(event):
            return
        if self._is_paused:
            return
        was_typing = self._gestures.is_typing
        self._hold(self._gestures.feed(event, frame))
        if self._gestures.is_typing and not was_typing:
            self._backends.accessibility.ask_focus()

    def pause(self, is_paused: bool) -> None:
        """Pause or go on. Called on the deciding thread, by the pause keys."""
        if is_paused == self._is_paused:
            return
        if is_paused:
            self._hold(self._gestures.flush())
            self._release(float("inf"))
            self._sound.write()
        self._gestures.forget()
        self._snapshots.forget()
        self._is_paused = is_paused
        self._camera.pause(is_paused)
        if self._backends.speech is not None:
            self._backends.speech.pause(is_paused)
        self._backends.sign.show(is_paused)
        self._store.append({"type": "pause" if is_paused else "go on", "time_s": self._at(time.monotonic())})

    def _hold(self, drafts: Sequence[Draft[Frame]]) -> None:
        self._held += drafts

    def _release(self, now_s: float) -> None:
        """Write what was held long enough: typing that goes on in the next draft waits for it."""
        for draft in self._held:
            if draft.end_s not in self._after and now_s - draft.end_s >= self._settings.hold_s:
                self._after[draft.end_s] = self._camera.before(draft.end_s + self._settings.hold_s)
        while self._held and now_s - self._held[0].end_s >= self._settings.hold_s:
            run = 0
            while run < len(self._held) and isinstance(self._held[run].action, TypeText):
                run += 1
            if run == 0:
                self._keep([self._held.pop(0)])
                continue
            last = self._held[run - 1]
            is_over = run < len(self._held) or text_of(last).endswith("\n") or self._pause_after(last, now_s)
            if not is_over or now_s - last.end_s < self._settings.hold_s:
                return
            self._keep(self._held[:run])
            del self._held[:run]

    def _pause_after(self, draft: Draft[Frame], now_s: float) -> bool:
        return not self._gestures.is_typing and now_s - draft.end_s > self._settings.run_pause_s

    def _keep(self, run: Sequence[Draft[Frame]]) -> None:
        """Write one action, or a run of typing: unless it was in an excluded place, and without what is private."""
        seen = [(draft, self._camera.looks(draft.start_s - AROUND_S, draft.end_s + AROUND_S)) for draft in run]
        open_ = [(draft, looks) for draft, looks in seen if not self._screening.is_excluded(draft, looks)]
        self.hidden["excluded"] += len(seen) - len(open_)
        texts, kinds = self._screening.private(open_, self._after)
        for (draft, looks), text, hidden in zip(open_, texts, kinds, strict=True):
            action = draft.action if text is None else TypeText(text=text)
            self._write(draft, looks, ACTION.dump_python(action, mode="json"), hidden)
        for draft in run:
            self._after.pop(draft.end_s, None)

    def _write(self, draft: Draft[Frame], looks: Sequence[tuple[SeenWindow, ...]], action: dict[str, Any], hidden: tuple[str, ...]) -> None:
        target, window = self._screening.target(draft), self._screening.window(draft, looks)
        self._store.append(
            {
                "type": "action",
                "action": action,
                "start_s": self._at(draft.start_s),
                "end_s": self._at(draft.end_s),
                "frame": self._screens.keep(draft.before),
                "target": target,
                "window": window,
                "hidden": list(hidden),
            }
        )
        self.num_actions += 1

    def _at(self, time_s: float) -> float:
        """A moment by the recording's clock."""
        return round(max(0.0, time_s - self.start_s), 4)
