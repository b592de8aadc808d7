"""A small environment of our own for tests of the server and its client: sessions that count clicks, and that are slow or crash when a
test wants it. In a module of its own because several test files use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

from sandbox.actions import Action, Click, Finished, InvalidAction, ToolCall, Wait
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import BrowserCrashed, TaskError

TASK = Task(source="counting", name="count", domain="pointing", max_steps=100)
MARKUP = "<img src=x onerror='window.evil = 1'>"
PNG = b"\x89PNG\r\n\x1a\n"


class CountingSession:
    """Counts clicks. `Wait` takes real time; the tool `crash` fails as a browser does."""

    def __init__(self, pool: CountingPool | None = None) -> None:
        self.pool = pool
        self.screenshots = True
        self.environment = "counting 1"
        self.count = -1
        self.num_closed = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        if task.source != TASK.source:
            raise TaskError(f"source {task.source!r} is not known")
        self.count, self.seed = 0, seed
        return self._observe()

    async def step(self, action: Action) -> Transition:
        match action:
            case Click():
                self.count += 1
            case Wait(seconds=seconds):
                with self.pool.waiting() if self.pool is not None else nullcontext():
                    await asyncio.sleep(seconds)
            case ToolCall(name="crash"):
                raise BrowserCrashed("the browser went away")
            case InvalidAction(reason=reason):
                return Transition(observation=self._observe(), reward=0.0, terminated=False, truncated=False, info={"invalid": reason})
        output = "one\ntwo\n" if isinstance(action, ToolCall) else ""
        is_over = isinstance(action, Finished)
        return Transition(observation=self._observe(output), reward=float(is_over), terminated=is_over, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=min(self.count / 10, 1.0), threshold=1.0, reasons=(f"{self.count} of 10 clicks",))

    async def oracle_action(self) -> Action | None:
        return Click(x=1, y=1)

    async def close(self) -> None:
        self.num_closed += 1

    def _observe(self, output: str = "") -> Observation:
        return Observation(
            instruction=f"seed {self.seed}, count {self.count}",
            elements=(Element(role="button", text="<b>more</b>", x_px=10, y_px=10, width_px=8, height_px=8),),
            screenshot=PNG + f"{self.seed}/{self.count}".encode() if self.screenshots else None,
            width_px=160,
            height_px=210,
            time_ms=float(self.count),
            url=f"https://x.test/{MARKUP}",
            output=output,
        )


class CountingPool:
    """So many sessions, each lent to one user at a time; counts how each lease ended."""

    def __init__(self, size: int = 4) -> None:
        self.free = [CountingSession(self) for _ in range(size)]
        self.size = size
        self.errors: list[str] = []
        self._room = asyncio.Semaphore(size)
        self.num_waiting = self.most_waiting = 0
        """Sessions that are in a `Wait` now, and the most that were at one time."""

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[CountingSession]:
        async with self._room:
            session = self.free.pop()
            session.screenshots = screenshots
            try:
                yield session
            except BaseException as error:
                self.errors.append(type(error).__name__)
                raise
            finally:
                self.free.append(session)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.num_waiting += 1
        self.most_waiting = max(self.most_waiting, self.num_waiting)
        try:
            yield
        finally:
            self.num_waiting -= 1

    async def is_waiting(self) -> None:
        """Wait until a session is in a `Wait`."""
        async with asyncio.timeout(20):
            while not self.num_waiting:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        pass

    async def is_whole(self) -> None:
        """Wait until every session is back."""
        async with asyncio.timeout(20):
            while len(self.free) < self.size:
                await asyncio.sleep(0.01)
