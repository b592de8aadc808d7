"""Real time under begin-frame control, for pages that ask for it: their clock is the machine's, and frames are drawn while we wait.

Between our calls timers and the network go on, but nothing is drawn. Nothing of this is reproducible.
"""

from __future__ import annotations

import asyncio
import time

from sandbox.browser.cdp.beginframe import FramedPage
from sandbox.browser.cdp.connection import Params


class RealTime(FramedPage):
    """A mix-in before a page class with frames: takes its clock away."""

    _born_s: float | None = None
    _next_frame_s = 0.0

    def _start_clock(self) -> list[asyncio.Future[Params]]:
        self._born_s = time.monotonic()
        return []

    async def align_clock(self) -> None:
        """The machine's clock is as it is."""

    @property
    def time_ms(self) -> float:
        return 0.0 if self._born_s is None else (time.monotonic() - self._born_s) * 1000

    async def _advance_clock(self, ms: float, policy: str = "advance") -> None:
        """Wait until a frame is due so long after the one before it, or after now where that was long ago."""
        now = time.monotonic()
        self._next_frame_s = max(self._next_frame_s, now - ms / 1000) + ms / 1000
        await self.browser.connection.sleep(max(self._next_frame_s - now, 0.0))

    def _frame_time(self, ms: float) -> Params:
        return {"interval": ms}


class RealTimePage(RealTime):
    """One page in real time."""
