"""A corridor computed in Python, for tests of rollouts: walks that end by their step limit, through the same episode loop and collector as
on live browsers. About half are rewarded, which nothing on the page says. And a collector that runs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.episode.collector import Requests
from agent.episode.episode import Episode
from agent.episode.log import EpisodeLog
from agent.policy.policy import Policy
from sandbox.actions import Action
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Task

SHORT = Task(source="corridor", name="walk-1", domain="pointing", max_steps=1)
Gates = dict[tuple[str, int], asyncio.Event]
"""By task name and seed."""


class CorridorSession:
    """A page that never ends by itself; each step takes its time. A step behind a closed gate waits for it."""

    environment = "corridor 1"

    def __init__(self, gates: Gates, step_s: float) -> None:
        self._gates, self._step_s = gates, step_s

    async def reset(self, task: Task, seed: int) -> Observation:
        self._instance = (task.name, seed)
        return self._observe()

    async def step(self, action: Action) -> Transition:
        await asyncio.sleep(self._step_s)
        if self._instance in self._gates:
            await self._gates[self._instance].wait()
        return Transition(observation=self._observe(), reward=0.0, terminated=False, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=float(self._instance[1] % 2), threshold=1.0)

    async def oracle_action(self) -> Action | None:
        return None

    async def close(self) -> None: ...

    def _observe(self) -> Observation:
        element = Element(role="button", text="Ok", x_px=10, y_px=10, width_px=20, height_px=20)
        return Observation(instruction="Find", elements=(element,), screenshot=None, width_px=160, height_px=150, time_ms=0.0)


class CorridorPool:
    """`size` sessions."""

    def __init__(self, size: int, gates: Gates | None = None, *, step_s: float = 0.0) -> None:
        self.size, self._free, self._gates, self._step_s = size, asyncio.Semaphore(size), gates or {}, step_s

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[CorridorSession]:
        async with self._free:
            yield CorridorSession(self._gates, self._step_s)

    async def close(self) -> None: ...


class Refusing:
    """A collector that runs nothing: for a run that has all its episodes."""

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        async for request in requests:  # type: ignore[union-attr]
            raise AssertionError(f"{request.episode_id} was requested again")
            yield

    async def close(self) -> None: ...
