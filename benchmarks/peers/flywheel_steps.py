"""Our own sessions as a worker of benchmarks/env_steps.py: `beginframe`, `plain`, `playwright`, and `floor`, the least that can be done
by bare commands to the same browser: click, one frame with a screenshot, the elements; no page time, nothing parsed."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from benchmarks.peers.worker_loop import AREA_PX, serve
from sandbox.actions import Click
from sandbox.browser.beginframe import FramedPage
from sandbox.browser.input import gestures
from sandbox.browser.page_session import PageSession
from sandbox.miniwob.source import MiniWobSource, load_tasks
from sandbox.pool import SessionPool
from sandbox.seats import Upkeep


class Ours:
    def __init__(self, kind: str) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._session: PageSession = self._runner.run(self._lease(kind))
        self._tasks = load_tasks()

    async def _lease(self, kind: str) -> PageSession:
        pool = await self._stack.enter_async_context(SessionPool(kind=kind, size=1, upkeep=Upkeep(recycle_resets=10**9)))  # type: ignore[arg-type]
        return await self._stack.enter_async_context(pool.lease())

    def reset(self, task: str, seed: int) -> None:
        long = self._tasks[task].model_copy(update={"max_steps": 1000})
        self._runner.run(self._session.reset(long, seed))

    def step(self, x: int, y: int) -> bool:
        transition = self._runner.run(self._session.step(Click(x=x, y=y)))
        if transition.observation.screenshot is None or not transition.observation.elements:
            raise ValueError(f"step without screenshot or elements: {transition.info}")
        return transition.terminated or transition.truncated

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


class Floor(Ours):
    def step(self, x: int, y: int) -> bool:
        return self._runner.run(self._bare(x, y))

    async def _bare(self, x: int, y: int) -> bool:
        page = self._session._page
        phases = gestures(Click(x=x, y=y), AREA_PX)
        if not isinstance(page, FramedPage) or not isinstance(phases, tuple):
            raise ValueError("the floor is measured in a begin-frame session")
        (phase,) = phases
        await asyncio.gather(*(answer for gesture in phase for answer in page._send_gesture(gesture)))  # type: ignore[union-attr]
        if not await page._tick(screenshot=True) or not await page.evaluate(MiniWobSource().state_script):
            raise ValueError("step without screenshot or elements")
        return False


if __name__ == "__main__":
    kind = sys.argv[1]
    serve(Floor("beginframe") if kind == "floor" else Ours(kind))
