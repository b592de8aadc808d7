"""LivePage: a page in any headless Chromium, driven by the DevTools protocol in real time. For machines without begin-frame control.

What is lost against FramedPage: pages run on while we think, so real-time tasks are not reproducible; and a step takes as long as the
page time it is given.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Sequence

from sandbox.browser.cdp.connection import Params
from sandbox.browser.cdp.page import CdpPage
from sandbox.browser.input import Pause, Phase


class LivePage(CdpPage):
    def _set_up(self) -> list[asyncio.Future[Params]]:
        self._born_s = time.monotonic()
        return [*super()._set_up(), self._send("Emulation.setFocusEmulationEnabled", {"enabled": True})]

    @property
    def time_ms(self) -> float:
        return (time.monotonic() - self._born_s) * 1000

    async def load(self, url: str) -> None:
        self._loading = True
        try:
            await self._navigate(url)
            while not self._is_loaded:
                await self.browser.connection.expect(self._session_id, "Page.lifecycleEvent")
        finally:
            self._loading = False

    async def _perform(self, phases: Sequence[Phase]) -> None:
        for phase in phases:
            if isinstance(phase, Pause):
                await self.browser.connection.sleep(phase.ms / 1000)
            else:
                await asyncio.gather(*(answer for gesture in phase for answer in self._send_gesture(gesture)))

    async def rest(self) -> None:
        await asyncio.gather(*await self._send_rest())

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        await self.browser.connection.sleep(ms / 1000)
        if not screenshot:
            return None
        answer = await self._send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        return b64decode(answer["data"])
