"""Our own sessions as a worker of benchmarks/env_steps.py: `beginframe`, `plain`, `playwright`; `fleet`, a session in another process that
is asked over a Unix socket; `server`, one in another process that is asked over HTTP on loopback; and `floor`, the least that can be done
by bare commands to the same browser: start an instance or click, one frame with a screenshot, the elements; no page time, nothing left
behind by one episode cleared for the next, nothing parsed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from benchmarks.peers.worker_loop import WINDOWS, Window, arguments, serve
from sandbox.actions import Click
from sandbox.browser.cdp.beginframe import FramedPage
from sandbox.browser.input import gestures
from sandbox.browser.page_session import PageSession
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.pool import SessionPool
from sandbox.pool.slots import RecyclePolicy
from sandbox.server.client import SandboxClient
from sandbox.session import Observation, Session
from sandbox.tasks.miniwob.source import SETTINGS, MiniWobSource, load_tasks
from sandbox.tasks.page_task import PageSettings, PageTasks
from sandbox.tasks.task import Task

ENDLESS = 10**9
TOKEN = "token-of-the-benchmark-0123456789"


class Windowed(MiniWobSource):
    """MiniWoB in a window of another size."""

    def __init__(self, window: Window) -> None:
        self._settings = replace(SETTINGS, viewport_px=(window.width, window.height), area_px=(window.area_width, window.area_height))

    def settings(self, task: Task) -> PageSettings:
        return self._settings


def small() -> PageTasks:
    return {"miniwob": Windowed(WINDOWS["task"])}


def large() -> PageTasks:
    return {"miniwob": Windowed(WINDOWS["720p"])}


def pages(window: str) -> PageTasks:
    return large() if window == "720p" else small()


class Ours:
    def __init__(self, kind: str, window: Window) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._session: Any = self._runner.run(self._lease(kind, window))
        self._tasks = {name: task.model_copy(update={"max_steps": 1000}) for name, task in load_tasks().items()}

    async def _lease(self, kind: str, window: Window) -> Session:
        name = "720p" if window == WINDOWS["720p"] else "task"
        pool: SessionPool | Fleet | SandboxClient
        if kind == "server":
            command = [sys.executable, "-m", "benchmarks.ours.sandbox_server", name]
            server = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._stack.push_async_callback(end, server)
            assert server.stdout is not None
            pool = SandboxClient((await server.stdout.readline()).decode().strip(), TOKEN)
        elif kind == "fleet":
            sources = f"benchmarks.ours.env_steps:{'large' if name == '720p' else 'small'}"
            pool = Fleet(FleetSettings(max_workers=1, sessions_per_worker=1, recycle_resets=ENDLESS, page_sources=sources))
        else:
            pool = SessionPool(pages(name), kind=kind, size=1, recycle=RecyclePolicy(recycle_resets=ENDLESS))  # type: ignore[arg-type]
        entered = await self._stack.enter_async_context(pool)
        return await self._stack.enter_async_context(entered.lease())

    def reset(self, task: str, seed: int) -> None:
        check(self._runner.run(self._session.reset(self._tasks[task], seed)))

    def step(self, x: int, y: int) -> bool:
        transition = self._runner.run(self._session.step(Click(x=x, y=y)))
        check(transition.observation)
        return bool(transition.terminated or transition.truncated)

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


async def end(server: asyncio.subprocess.Process) -> None:
    assert server.stdin is not None
    server.stdin.close()
    await server.wait()


def check(observation: Observation) -> None:
    if observation.screenshot is None or not observation.elements:
        raise ValueError("an observation without screenshot or elements")


class Floor(Ours):
    def __init__(self, window: Window) -> None:
        super().__init__("beginframe", window)
        self._source, self._area_px, self._loaded = MiniWobSource(), (window.area_width, window.area_height), ""

    def reset(self, task: str, seed: int) -> None:
        if self._loaded != task:
            super().reset(task, seed)
            self._loaded = task
        else:
            self._runner.run(self._restart(task, seed))

    def step(self, x: int, y: int) -> bool:
        self._runner.run(self._click(x, y))
        return False

    async def _restart(self, task: str, seed: int) -> None:
        page = self._page()
        await page.evaluate(f"void ({self._source.start_script(self._tasks[task], seed)})")
        await self._look(page)

    async def _click(self, x: int, y: int) -> None:
        page, phases = self._page(), gestures(Click(x=x, y=y), self._area_px)
        if not isinstance(phases, tuple):
            raise ValueError(phases.reason)
        await asyncio.gather(*(answer for phase in phases for gesture in phase for answer in page._send_gesture(gesture)))  # type: ignore[union-attr]
        await self._look(page)

    async def _look(self, page: FramedPage) -> None:
        if not await page._tick(screenshot=True) or not await page.evaluate(self._source.state_script):
            raise ValueError("an observation without screenshot or elements")

    def _page(self) -> FramedPage:
        page = self._session._page if isinstance(self._session, PageSession) else None
        if not isinstance(page, FramedPage):
            raise ValueError("the floor is measured in a begin-frame session")
        return page


if __name__ == "__main__":
    variant, window = arguments()
    serve(Floor(window) if variant == "floor" else Ours(variant, window))
