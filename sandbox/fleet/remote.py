"""RemoteSession: a session in a worker process, as its user sees it. Satisfies Session."""

from __future__ import annotations

import time
from typing import Any

from sandbox import wire
from sandbox.actions import Action
from sandbox.fleet.channel import Channel
from sandbox.session import Observation, Transition, Verdict
from sandbox.task import Task
from warehouse.errors import LeaseLost, SandboxError


class RemoteSession:
    """One lease on one seat of a worker. Once the lease is over, every call raises LeaseLost and says why. `screenshots` may be set
    before a reset."""

    def __init__(self, channel: Channel, seat: int, *, screenshots: bool) -> None:
        self.screenshots = screenshots
        self._channel, self._seat = channel, seat
        self._environment = ""
        self._over: str | None = None
        self._is_reset = False
        self.is_closed = False
        self._num_calls = 0
        self._used_s = time.monotonic()

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        return self._environment

    @property
    def unused_s(self) -> float:
        """Seconds since the last call; 0 while one is under way."""
        return 0.0 if self._num_calls else time.monotonic() - self._used_s

    def end(self, reason: str) -> None:
        """The lease is over: calls raise LeaseLost with the reason. The first reason stands."""
        self._over = self._over or reason

    async def reset(self, task: Task, seed: int) -> Observation:
        self._is_reset = False
        reply = await self._call("reset", task=wire.TASK.to_plain(task), seed=seed, screenshots=self.screenshots)
        self._environment, self._is_reset = str(reply["environment"]), True
        return wire.OBSERVATION.from_plain(reply["observation"])

    async def step(self, action: Action) -> Transition:
        return wire.TRANSITION.from_plain(await self._ask("step", action=wire.ACTION.to_plain(action)))

    async def evaluate(self) -> Verdict:
        return wire.VERDICT.from_plain(await self._ask("evaluate"))

    async def hint(self) -> Action | None:
        return wire.ACTION.from_plain(await self._ask("hint"))

    async def close(self) -> None:
        """The session is closed in its worker; the seat is free when the lease ends."""
        if self._over is None:
            self.is_closed = True
            await self._call("close_session")
            self.end("The session was closed; lease another one.")

    async def _ask(self, method: str, **params: Any) -> Any:
        """About the instance that runs: never about one of whoever had the session before."""
        if not self._is_reset and self._over is None:
            raise SandboxError("No task runs in this session: call reset(task, seed) first, and again after an error.")
        return await self._call(method, **params)

    async def _call(self, method: str, **params: Any) -> Any:
        if self._over is not None:
            raise LeaseLost(self._over)
        self._num_calls += 1
        try:
            return await self._channel.call(method, seat=self._seat, **params)
        finally:
            self._num_calls -= 1
            self._used_s = time.monotonic()
