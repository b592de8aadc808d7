"""FramedPage: a page whose frames and clock are ours (headless shell with begin-frame control, virtual time from the page's birth).

Page time stands still unless we let it pass (`settle`, `run_to`), a frame at a time: first the clock advances and timers fire, then a frame
is drawn at the same instant. So a page sees the same times, frames and inputs in every run, at whatever speed the machine has; between our
calls everything is frozen, CSS animations included. While a page loads, its clock waits for its files.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Params
from sandbox.browser.cdp.page import CdpPage, answers_without_frame
from sandbox.browser.input import Pause, Phase
from sandbox.tasks.page_task import PageSettings
from warehouse.core.errors import SandboxError

GESTURE_FRAME_MS = 1000 / 60
"""Between the phases of a gesture frames follow each other as on a screen."""

EPOCH_S = 1_750_000_000
"""Every page is born at this moment (2025-06-15, 15:06:40 UTC)."""

LOAD_MS = 50.0
"""Page time from a document's birth to its load event."""

GRAIN_US = 100
"""Pages see times in steps of 0.1 ms, and which way a time between two steps is rounded is left to chance (blink's TimeClamper). So
page time only ever stands at a whole step."""

LATE_ANSWER_S = 0.2
"""A frame's own answer may overtake that of an input which the frame delivered, by less than a millisecond."""

REST_GRID_MS = 1000.0
"""Instances start at a multiple of this."""

EXTRA_FRAME_MS = 0.01
"""Between a frame and one that is drawn again: a frame that is no later than the one before it is never answered."""

MAX_EXTRA_FRAMES = 20
"""An input that so many frames did not deliver never will be."""


@dataclass(slots=True, kw_only=True)
class PageClock:
    """Page time that has passed. The tabs of a window share one."""

    elapsed_ms: float = 0.0
    granted_us: int = 0
    """The same as the browser has counted it, in whole grains, so that sixty frames a second add up to a second."""

    def grant(self, ms: float) -> int:
        """Let so much time pass; how many microseconds that are for the browser."""
        self.elapsed_ms += ms
        passed_us = round(self.elapsed_ms * 1000 / GRAIN_US) * GRAIN_US - self.granted_us
        self.granted_us += passed_us
        return passed_us

    @property
    def granted_ms(self) -> float:
        return self.granted_us / 1000


class FramedPage(CdpPage):
    _is_drawn = True

    def __init__(self, browser: Browser, settings: PageSettings, root: Path) -> None:
        super().__init__(browser, settings, root)
        self._clock = PageClock()
        self._ticks_base_ms = 0.0
        self._lead_us = 0
        """From the moment when the page was born to the next whole step of the browser's own clock."""

    async def _open(self) -> None:
        await super()._open()
        await self.align_clock()

    def _set_up(self) -> list[asyncio.Future[Params]]:
        return [*super()._set_up(), *self._start_clock()]

    def _start_clock(self) -> list[asyncio.Future[Params]]:
        """Stop the page's time at its birth."""
        return [self._send("Emulation.setVirtualTimePolicy", {"policy": "pause", "initialVirtualTime": EPOCH_S})]

    @property
    def time_ms(self) -> float:
        return self._clock.elapsed_ms

    async def _advance_clock(self, ms: float, policy: str = "advance") -> None:
        """Let page time pass: timers fire in their order and at their time, nothing is drawn."""
        spent = self.browser.connection.expect(self._session_id, "Emulation.virtualTimeBudgetExpired")
        granting = {"policy": policy, "budget": budget_ms(self._clock.grant(ms))}
        answer, _ = await asyncio.gather(self._send("Emulation.setVirtualTimePolicy", granting), spent)
        self._ticks_base_ms = answer["virtualTimeTicksBase"]

    async def align_clock(self) -> None:
        """Let page time begin at a whole step of the browser's own clock, before there is a document to see it."""
        answer = await self._send("Emulation.setVirtualTimePolicy", {"policy": "pause", "initialVirtualTime": EPOCH_S})
        self._lead_us = -round(answer["virtualTimeTicksBase"] * 1000) % GRAIN_US
        if self._lead_us:
            spent = self.browser.connection.expect(self._session_id, "Emulation.virtualTimeBudgetExpired")
            granting = {"policy": "advance", "budget": budget_ms(self._lead_us)}
            await asyncio.gather(self._send("Emulation.setVirtualTimePolicy", granting), spent)
        # The first frame of a page brings up its compositor, which takes it a while on a busy machine: it is drawn of nothing.
        first = self._frame_time(GESTURE_FRAME_MS) | {"screenshot": {"format": "png", "optimizeForSpeed": True}}
        await self.browser.begin_frame_now(self._session_id, first)

    def _frame_time(self, ms: float) -> Params:
        """When the next frame is drawn, in the browser's ticks: now, in page time. The browser cuts it to whole microseconds, so it is a
        little more than one: a sum of milliseconds may be a hair less, and the frame would then lie a grain before its clocks."""
        now_us = round(self._ticks_base_ms * 1000) + self._lead_us + self._clock.granted_us
        return {"frameTimeTicks": (now_us + 0.25) / 1000, "interval": ms}

    async def _tick(self, ms: float = GESTURE_FRAME_MS, *, screenshot: bool = False) -> bytes | None:
        """Let page time pass, then draw a frame at that instant; None where the browser made no screenshot, asked for or not."""
        await self._advance_clock(ms)
        params = self._frame_time(ms)
        if screenshot:
            await self.evaluate("0")  # what the page did at this instant is done, or the frame might show it half
            params["screenshot"] = {"format": "png", "optimizeForSpeed": True}
        answer = await self.browser.begin_frame_now(self._session_id, params)
        if not screenshot:
            return None
        return b64decode(answer["screenshotData"]) if "screenshotData" in answer else None

    async def load(self, url: str) -> None:
        self._loading = True
        try:
            await self._navigate(url)
            while not self._is_loaded:
                await self._advance_clock(LOAD_MS, "pauseIfNetworkFetchesPending")
        finally:
            self._loading = False
        await self._tick()

    async def _perform(self, phases: Sequence[Phase]) -> None:
        """A frame follows each phase but the last: what follows a gesture draws one."""
        for number, phase in enumerate(phases, start=1):
            if isinstance(phase, Pause):
                await self.settle(phase.ms, screenshot=False)
                continue
            answers = [answer for gesture in phase for answer in self._send_gesture(gesture)]
            if not answers_without_frame(phase):
                await self._answered_by_frames(answers)
                continue
            await asyncio.gather(*answers)
            if number < len(phases):
                await self._tick()

    async def _answered_by_frames(self, answers: list[asyncio.Future[Params]]) -> None:
        """One frame delivers the input. Where it missed that by a hair another one does, at the same instant: page time does not depend on
        the machine."""
        await self.evaluate("0")  # by now the input has reached the page
        await self._tick()
        frame = self._frame_time(GESTURE_FRAME_MS)
        for _ in range(MAX_EXTRA_FRAMES):
            if not (await asyncio.wait(answers, timeout=LATE_ANSWER_S))[1]:
                break
            if "frameTimeTicks" in frame:
                frame["frameTimeTicks"] += EXTRA_FRAME_MS
            await self.browser.begin_frame_now(self._session_id, frame)
        else:
            raise SandboxError(f"The page did not take an input within {MAX_EXTRA_FRAMES + 1} frames; start the episode again.")
        await asyncio.gather(*answers)

    async def rest(self) -> None:
        """Page time then goes on at a whole second, so that what goes by the clock starts alike, whatever ran on the page before."""
        await self._answered_by_frames(await self._send_rest())
        await self._advance_clock(-self._clock.elapsed_ms % REST_GRID_MS)

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        num_frames, frame_ms = self._frames_of(ms)
        for _ in range(num_frames - 1):
            await self._tick(frame_ms)
        png = await self._tick(frame_ms, screenshot=screenshot)
        if screenshot and png is None:
            raise SandboxError("The browser drew a frame without the screenshot that was asked for; start the episode again.")
        return png

    def _frames_of(self, ms: float) -> tuple[int, float]:
        """How many frames are drawn in so much page time, and how far apart."""
        num_frames = max(1, round(ms / self._settings.frame_time_ms))
        return num_frames, max(ms, GESTURE_FRAME_MS) / num_frames

    async def run_to(self, time_ms: float, *, draw: bool = True) -> None:
        """Let page time pass until it is `time_ms` since the page was opened: frame by frame, or (without `draw`) timers alone and one
        frame at the end, which is faster and skips what goes by frames."""
        while (left_ms := time_ms - self._clock.elapsed_ms) > 0.0005:
            await self._tick(min(self._settings.frame_time_ms, left_ms) if draw else left_ms)


def budget_ms(us: int) -> float:
    """Microseconds as the protocol takes them; a little more, since it cuts off what is less than a microsecond."""
    return us / 1000 + 0.0001
