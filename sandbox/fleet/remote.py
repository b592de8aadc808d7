"""FleetSession: a session in a worker process, as its user sees it. Satisfies Session."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sandbox import wire
from sandbox.actions import Action
from sandbox.fleet.channel import Channel
from sandbox.session import FileEntry, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import LeaseLost, SandboxError


class FleetSession:
    """One lease on one slot of a worker. Once the lease is over, every call raises LeaseLost and says why. `screenshots` may be set
    before a reset."""

    def __init__(self, channel: Channel, slot: int, *, screenshots: bool) -> None:
        self.screenshots = screenshots
        self._channel, self._slot = channel, slot
        self._environment = ""
        self._over: str | None = None
        self._is_reset = False
        self.is_closed = False
        self._calls: dict[asyncio.Task[Any], float] = {}
        """Calls under way, and when they began."""
        self._used_s = time.monotonic()

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        return self._environment

    @property
    def unused_s(self) -> float:
        """Seconds since the last call; 0 while one is under way."""
        return 0.0 if self._calls else time.monotonic() - self._used_s

    @property
    def call_age_s(self) -> float:
        """Seconds that the oldest call under way has taken; 0 without one."""
        return time.monotonic() - min(self._calls.values()) if self._calls else 0.0

    def end(self, reason: str) -> None:
        """The lease is over: calls, those under way too, raise LeaseLost with the reason. The first reason stands."""
        self._over = self._over or reason
        for call in self._calls:
            call.cancel()

    async def check_out(self, task: Task | None) -> None:
        """Have the slot get a session that can run the task: what the fleet does first."""
        await self._call("check_out", task=None if task is None else wire.TASK.to_plain(task), screenshots=self.screenshots)

    async def reset(self, task: Task, seed: int) -> Observation:
        self._is_reset = False
        reply = await self._call("reset", task=wire.TASK.to_plain(task), seed=seed, screenshots=self.screenshots)
        self._environment, self._is_reset = str(reply["environment"]), True
        return wire.OBSERVATION.from_plain(reply["observation"])

    async def step(self, action: Action) -> Transition:
        return wire.TRANSITION.from_plain(await self._ask("step", action=wire.ACTION.to_plain(action)))

    async def evaluate(self) -> Verdict:
        return wire.VERDICT.from_plain(await self._ask("evaluate"))

    async def oracle_action(self) -> Action | None:
        return wire.ACTION.from_plain(await self._ask("oracle_action"))

    async def files(self) -> tuple[FileEntry, ...] | None:
        return wire.FILES.from_plain(await self._ask("files"))

    async def read_file(self, path: str) -> str | None:
        return wire.TEXT.from_plain(await self._ask("read_file", path=path))

    async def close(self) -> None:
        """The session is closed in its worker; the slot is free when the lease ends."""
        if self._over is None:
            self.is_closed = True
            await self._call("close_session")
            self.end("The session was closed; lease another one.")

    async def _ask(self, method: str, **params: Any) -> Any:
        """About the instance that runs: never about one of the session's previous user."""
        if not self._is_reset and self._over is None:
            raise SandboxError("No task runs in this session: call reset(task, seed) first, and again after an error.")
        return await self._call(method, **params)

    async def _call(self, method: str, **params: Any) -> Any:
        if self._over is not None:
            raise LeaseLost(self._over)
        call = asyncio.create_task(self._channel.call(method, slot=self._slot, **params))
        self._calls[call] = time.monotonic()
        try:
            return await call
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._over is None or (caller is not None and caller.cancelling()):
                raise
            raise LeaseLost(self._over) from None
        finally:
            del self._calls[call]
            self._used_s = time.monotonic()
