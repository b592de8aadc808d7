"""The kinds of tabs: with frames and clock under control, with frames in real time, and in any Chromium. What they share is tabs.py."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import ClassVar

from sandbox.browser.cdp.beginframe import EPOCH_S, EXTRA_FRAME_MS, FramedPage, budget_ms
from sandbox.browser.cdp.connection import Listener, Params
from sandbox.browser.cdp.plain import LivePage
from sandbox.browser.cdp.realtime import RealTime
from sandbox.browser.window.request_order import Request
from sandbox.browser.window.tabs import UNAWAITED, Tab, TabWindow


class FramedTab(Tab, FramedPage):
    """A tab whose frames and clock are ours. All tabs of a window live in one process and go by its clock; frames are drawn for the active
    one alone."""

    def __init__(self, window: TabWindow, info: Params, session_id: str) -> None:
        super().__init__(window, info, session_id)
        self._clock = window.clock
        self._is_first = window.num_switches == 0
        self._ticks_offset_ms = 0.0
        self._framed_ms = 0.0
        """When the last frame was drawn, in ticks."""
        self._clock_key: tuple[float, int] | None = None
        self._has_lingering_request = False

    def _start_clock(self) -> list[asyncio.Future[Params]]:
        """Later tabs live in the process of the first, whose clock is already ours and may be running just now."""
        return [self._send("Emulation.setVirtualTimePolicy", self._paused())] if self._is_first else []

    def _paused(self) -> Params:
        return {"policy": "pause", "initialVirtualTime": EPOCH_S + self._clock.granted_ms / 1000}

    def _listeners(self) -> dict[str, Listener]:
        return super()._listeners() | {
            "Emulation.virtualTimeBudgetExpired": lambda _: self.window.requests.stop(),
            "Network.dataReceived": self._on_response,
        }

    def _on_request(self, event: Params, session_id: str | None = None) -> None:
        """An answer that comes while page time stands still costs the page 0 ms, one that comes while it runs 10 ms: so it comes while it
        runs, in the order of the requests. Page time waits for it then. What page time itself waits for, and what a worker asks for, which
        a page that is opened may wait for, is answered at once."""
        if session_id is not None or self._stops_the_clock(event):
            self._answer(event, session_id)
            return
        self.window.requests.add(
            Request(
                session_id=self._session_id,
                network_id=event.get("networkId", ""),
                answer=partial(self._answer, event),
                is_awaited="networkId" in event and event.get("resourceType") not in UNAWAITED,
            )
        )

    def _on_responded(self, event: Params) -> None:
        super()._on_responded(event)
        self._on_response(event)

    def _on_response(self, event: Params) -> None:
        self.window.requests.arriving(self._session_id, event["requestId"])

    def _on_request_done(self, event: Params) -> None:
        super()._on_request_done(event)
        self.window.requests.ended(self._session_id, event["requestId"])

    def _stops_the_clock(self, event: Params) -> bool:
        """Whether page time cannot go on before the answer: the tab's own page, and what a script waits for without letting go (Chromium
        gives only that the highest priority)."""
        kind = event.get("resourceType")
        if kind == "Document":
            return bool(event.get("frameId") == self._target_id)
        return kind == "XHR" and event["request"].get("initialPriority") == "VeryHigh"

    async def _advance_clock(self, ms: float, policy: str = "pauseIfNetworkFetchesPending") -> None:
        """A page that moves to another process takes the policy along, with the time it began at. A request that outlived the limit (a
        stream, a server that hangs) is not waited for again before the next page."""
        if self._has_lingering_request:
            policy = "advance"
        initial = {"initialVirtualTime": EPOCH_S + self._clock.granted_ms / 1000, "budget": budget_ms(self._clock.grant(ms))}
        spent = self._expect_spent()
        answer = await self._send("Emulation.setVirtualTimePolicy", {"policy": policy, **initial})
        self.window.requests.start(is_spent=spent.done())
        await asyncio.wait([spent], timeout=max(self._limit_at_s - time.monotonic(), 1.0))
        if not spent.done():
            self._has_lingering_request = True
            self.window.requests.release()
            spent = self._expect_spent()
            answer = await self._send("Emulation.setVirtualTimePolicy", {"policy": "advance", **initial})
        await spent
        self._ticks_base_ms = answer["virtualTimeTicksBase"]
        key = (self._ticks_base_ms, self.window.num_switches)
        if key != self._clock_key or self._has_lingering_request:
            await self._follow_ticks()
            self._clock_key = key

    def _expect_spent(self) -> asyncio.Future[Params]:
        return self.browser.connection.expect(self._session_id, "Emulation.virtualTimeBudgetExpired")

    async def _follow_ticks(self) -> None:
        """Where page time stands in the ticks of the page's process, which counts them from when it was made. Page time may have outrun the
        real time that a new process begins at: its frames still come after those of the process before, or none would be answered."""
        metrics = (await self._send("Performance.getMetrics"))["metrics"]
        now_ms = next(entry["value"] for entry in metrics if entry["name"] == "Timestamp") * 1000
        self._ticks_offset_ms = max(now_ms, self._framed_ms + EXTRA_FRAME_MS) - self._clock.granted_ms

    def _frame_time(self, ms: float) -> Params:
        self._framed_ms = self._ticks_offset_ms + self._clock.granted_ms
        return {"frameTimeTicks": self._framed_ms, "interval": ms}

    def _on_navigated(self, event: Params) -> None:
        super()._on_navigated(event)
        if "parentId" not in event["frame"]:
            self._has_lingering_request = False
            self._clock_key = None
            self.window.requests.release()  # those of the page before are gone

    async def _pass_time(self, ms: float) -> None:
        num_frames, frame_ms = self._frames_of(ms)
        late_at_s = time.monotonic() + 2 * self.window.web.settle_limit_s + ms / 1000
        for number in range(1, num_frames):
            if time.monotonic() > late_at_s:  # a page whose frames take so long gets the rest of its time without any
                return await self._advance_clock(frame_ms * (num_frames - number))
            await self._tick(frame_ms)

    async def _draw(self, ms: float, *, screenshot: bool) -> bytes | None:
        return await self._tick(self._frames_of(ms)[1], screenshot=screenshot)

    async def _hold(self) -> None:
        await self._send("Emulation.setVirtualTimePolicy", self._paused())


class RealTimeTab(RealTime, FramedTab):
    """A tab with frames of ours, in real time."""

    _max_missed_frames: ClassVar[int] = 600
    """Some ten seconds: the page has no time of its own that would pass too far on a busy machine."""

    def _on_request(self, event: Params, session_id: str | None = None) -> None:
        """Nothing stands still that an answer would wait for."""
        Tab._on_request(self, event, session_id)

    async def _hold(self) -> None:
        """Real time does not stop."""


class LiveTab(Tab, LivePage):
    """A tab of any Chromium, in real time."""

    async def _pass_time(self, ms: float) -> None:
        await self.browser.connection.sleep(ms / 1000)

    async def _draw(self, ms: float, *, screenshot: bool) -> bytes | None:
        return await LivePage.settle(self, 0, screenshot=screenshot)


def tab_class(*, begin_frame: bool, real_time: bool) -> type[FramedTab | LiveTab]:
    """The kind of tab for a browser and a task."""
    if not begin_frame:
        return LiveTab
    return RealTimeTab if real_time else FramedTab
