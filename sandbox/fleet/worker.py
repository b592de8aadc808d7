"""A worker of a fleet: `python -m sandbox.fleet.worker FD` serves the slots of one process over an inherited socket.

It ends when the socket closes, on SIGTERM, and when its manager is silent for too long; the kernel kills it with its manager. Which slot
is whose is the manager's business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import psutil

from sandbox import wire
from sandbox.browser.backend import resolve
from sandbox.fleet.channel import Channel, Params
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.kinds import PooledSession
from sandbox.pool.slots import CLOSE_TIMEOUT_S, LocalSlot, Slots
from sandbox.session import HasFiles
from warehouse.core.errors import SandboxError

EXIT_LIMIT_S = 15


class Worker:
    """Answers the manager's requests: each names a slot by its number."""

    def __init__(self) -> None:
        self._settings: FleetSettings | None = None
        self._slots: Slots | None = None
        self._watch: asyncio.Task[None] | None = None
        self._calls: dict[int, set[asyncio.Task[Any]]] = {}
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "start": self._start,
            "ping": self._ping,
            "check_out": self._check_out,
            "reset": self._reset,
            "step": self._step,
            "evaluate": self._evaluate,
            "oracle_action": self._oracle_action,
            "files": self._files,
            "read_file": self._read_file,
            "close_session": self._close_session,
            "put_back": self._put_back,
        }

    async def answer(self, method: str, params: Params) -> Any:
        """The reply to a request. What is still under way at a slot is cut off when the slot is put back."""
        task = asyncio.current_task()
        if (number := params.get("slot")) is None or method == "put_back" or task is None:
            return await self._methods[method](**params)
        calls = self._calls.setdefault(number, set())
        calls.add(task)
        try:
            return await self._methods[method](**params)
        finally:
            calls.discard(task)

    @property
    def lonely_after_s(self) -> float:
        return self._settings.lonely_after_s if self._settings is not None else FleetSettings().lonely_after_s

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._slots is not None:
            await self._slots.close()

    async def _start(self, settings: Params) -> Params:
        self._settings = parsed = FleetSettings.model_validate(settings)
        self._slots = Slots(
            parsed.page_tasks(),
            kind=resolve(parsed.kind),
            size=parsed.sessions_per_worker,
            num_browsers=parsed.browsers_per_worker,
            limits=parsed.limits(),
            recycle=parsed.recycle(),
        )
        self._watch = asyncio.create_task(self._slots.watch(), name="slots")
        return self._report(self._slots)

    async def _ping(self) -> Params:
        return self._report(self._all())

    def _report(self, slots: Slots) -> Params:
        """How the worker stands; browsers' memory is as last measured."""
        return {
            "browser_pids": [backend.pid for backend in slots.backends()],
            "counts": asdict(slots.counts),
            "memory_mib": psutil.Process().memory_info().rss / 2**20,
            "browsers_memory_mib": slots.memory_mib(),
            "slots": [[slot.kind, slot.page] for slot in slots.all],
        }

    async def _check_out(self, slot: int, task: Params | None, screenshots: bool) -> None:
        await self._all().check_out(self._slot(slot), None if task is None else wire.TASK.from_plain(task), screenshots=screenshots)

    async def _reset(self, slot: int, task: Params, seed: int, screenshots: bool) -> Params:
        session = self._session(slot)
        session.screenshots = screenshots
        observation = await session.reset(wire.TASK.from_plain(task), seed)
        return {"observation": wire.OBSERVATION.to_plain(observation), "environment": session.environment}

    async def _step(self, slot: int, action: Params) -> Params:
        parsed = wire.ACTION.from_plain(action)
        if parsed is None:
            raise SandboxError("A step without an action came over the wire. Both ends must run the same version of Flywheel.")
        return dict(wire.TRANSITION.to_plain(await self._session(slot).step(parsed)))

    async def _evaluate(self, slot: int) -> Params:
        return dict(wire.VERDICT.to_plain(await self._session(slot).evaluate()))

    async def _oracle_action(self, slot: int) -> Params | None:
        action = wire.ACTION.to_plain(await self._session(slot).oracle_action())
        return None if action is None else dict(action)

    async def _files(self, slot: int) -> Any:
        session = self._session(slot)
        return wire.FILES.to_plain(await session.files() if isinstance(session, HasFiles) else None)

    async def _read_file(self, slot: int, path: str) -> str | None:
        session = self._session(slot)
        return await session.read_file(path) if isinstance(session, HasFiles) else None

    async def _close_session(self, slot: int) -> None:
        await self._session(slot).close()

    async def _put_back(self, slot: int, keep: bool, unhealthy: str | None) -> Params:
        slots, local = self._all(), self._slot(slot)
        if unhealthy is not None:
            slots.mark_unhealthy(local, SandboxError(unhealthy))
        if calls := self._calls.pop(slot, None):
            for call in calls:
                call.cancel()
            await asyncio.wait(calls, timeout=CLOSE_TIMEOUT_S)
        await slots.put_back(local, keep=keep)
        return self._report(slots)

    def _all(self) -> Slots:
        if self._slots is None:
            raise SandboxError("The worker was not started: its manager must send `start` first.")
        return self._slots

    def _slot(self, number: int) -> LocalSlot:
        return self._all().all[number]

    def _session(self, number: int) -> PooledSession:
        session = self._slot(number).session
        if session is None:
            raise SandboxError("This slot has no session: it was not checked out.")
        return session


async def serve(fd: int) -> None:
    """Answer until there is a reason to end."""
    os.set_inheritable(fd, False)  # a browser that held it would hide our end from the manager
    worker = Worker()
    channel = await Channel.open(socket.socket(fileno=fd), answer=worker.answer)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    waits = [asyncio.create_task(event.wait()) for event in (ended, channel.lost)]
    while not (ended.is_set() or channel.is_lost):
        await asyncio.wait(waits, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        if loop.time() - channel.heard_s > worker.lonely_after_s:
            break
    for wait in waits:
        wait.cancel()
    signal.alarm(EXIT_LIMIT_S)  # the kernel ends us where closing hangs, and our browsers with us
    channel.close("The worker ends.")
    await worker.close()


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the manager decides
    asyncio.run(serve(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
