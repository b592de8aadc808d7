"""The episode worker of a node: sessions and the episode loop beside each other, as a Ray actor. The stage sends it answers
of the policy, and gets finished episodes. Screens that no prompt shows stay on the node until then. Where the disk
under the sessions runs out, the stage gets that report before the outcome of an episode there.

This module knows nothing of Ray: the stage makes an actor of the class.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from itertools import count
from typing import Any, TypeVar

from agent.episode.runner import EpisodeRunner
from agent.policy.action_source import PolicyActionSource
from agent.policy.policy import Prompt, Response
from assets.settings.execution import RaySettings, SandboxSettings
from pipelines.cluster.sessions import collecting, limits, open_pool
from pipelines.cluster.wire import (
    About,
    Answer,
    Cancel,
    Ended,
    Failed,
    FreeDisk,
    Order,
    Play,
    Question,
    Report,
    SlotChange,
    WorkerSettings,
    own_code,
)
from sandbox.loop_thread import LoopThread
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server.disk import Disk
from sandbox.server.identity import plugin_ids
from warehouse.core.errors import to_plain

T = TypeVar("T")
OpenPool = Callable[[SandboxSettings], AbstractAsyncContextManager[SessionPoolProtocol]]

DISK_LOOK_S = 0.5
"""Between two looks at the disk."""


class EpisodeWorker:
    """`open`, then `submit` orders and `read` its reports, until `close`."""

    def __init__(self, open_pool: OpenPool = open_pool) -> None:
        self._open_pool = open_pool
        self._stack = AsyncExitStack()
        self._runner: EpisodeRunner | None = None
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._last_run = 0
        self._answers: dict[tuple[int, int], asyncio.Future[Response]] = {}
        self._questions = count(1)
        self._reports: deque[tuple[int, Report]] = deque()
        """Those that the stage has not confirmed, numbered in their order."""
        self._numbers = count(1)
        self._has_reports = asyncio.Event()
        self._disk = Disk(RaySettings().min_free_disk_mib)
        self._was_short = self._was_full = False
        self._watching: asyncio.Task[None] | None = None

    async def about(self) -> About:
        return About(code=own_code())

    async def open(self, settings: str) -> None:
        """Get the sessions ready; may be called twice. Raises ConfigError for other plug-ins, and what the pool raises."""
        if self._runner is not None:
            return
        parsed = WorkerSettings.model_validate_json(settings)
        os.environ.update(parsed.plugins)
        parsed.require_plugins(plugin_ids())
        acting = parsed.acting
        pool = await self._stack.enter_async_context(self._open_pool(acting.sandbox))
        self._runner = EpisodeRunner(pool, acting.agent.builder(), limits(acting), collecting(acting.sandbox), to_choose=parsed.to_choose)
        self._disk = Disk((acting.sandbox.ray or RaySettings()).min_free_disk_mib)
        self._watching = asyncio.create_task(self._watch_disk(), name="disk")

    async def submit(self, orders: Sequence[Order]) -> None:
        """Take orders; those that are known already are ignored."""
        for order in orders:
            match order:
                case Play():
                    if order.run > self._last_run:
                        self._last_run = order.run
                        self._runs[order.run] = asyncio.create_task(self._play(order), name=f"episode-{order.run}")
                case Answer():
                    answer = self._answers.get((order.run, order.question))
                    if answer is not None and not answer.done():
                        answer.set_result(order.response)
                case Cancel():
                    if (run := self._runs.get(order.run)) is not None:
                        run.cancel()

    async def read(self, confirmed: int, wait_s: float) -> list[tuple[int, Report]]:
        """All reports after number `confirmed`, as soon as there are any; none after `wait_s`. Those up to it are forgotten."""
        while self._reports and self._reports[0][0] <= confirmed:
            self._reports.popleft()
        if not self._reports:
            self._has_reports.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_reports.wait()
        return list(self._reports)

    async def close(self) -> None:
        """Cancel the episodes and end the sessions; may be called twice."""
        if self._watching is not None:
            self._watching.cancel()
        for run in list(self._runs.values()):
            run.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        await self._stack.aclose()

    async def _play(self, order: Play) -> None:
        async def ask(prompt: Prompt) -> Response:
            question = next(self._questions)
            answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            self._answers[order.run, question] = answer
            self._look_at_disk()
            self._report(Question(run=order.run, question=question, prompt=prompt))
            try:
                return await answer
            finally:
                del self._answers[order.run, question]

        @contextmanager
        def in_slot() -> Iterator[None]:
            self._report(SlotChange(run=order.run, has_session=True))
            try:
                yield
            finally:
                self._report(SlotChange(run=order.run, has_session=False))

        if self._runner is None:
            raise RuntimeError("the worker is not open")
        try:
            episode = await self._runner.run(order.request, order.source or PolicyActionSource(ask), live=in_slot)
            self._look_at_disk()
            self._report(Ended(run=order.run, episode=episode))
        except Exception as error:
            self._report(Failed(run=order.run, error=to_plain(error)))
        finally:
            del self._runs[order.run]

    async def _watch_disk(self) -> None:
        while True:
            self._look_at_disk()
            await asyncio.sleep(DISK_LOOK_S)

    def _look_at_disk(self) -> None:
        """Report a change."""
        is_short, is_full = self._disk.is_short, self._disk.is_full
        if (is_short, is_full) != (self._was_short, self._was_full):
            self._was_short, self._was_full = is_short, is_full
            disk = self._disk
            self._report(FreeDisk(free_mib=disk.free_mib(), needed_mib=disk.min_free_mib, is_short=is_short, is_full=is_full))

    def _report(self, report: Report) -> None:
        self._reports.append((next(self._numbers), report))
        self._has_reports.set()


class EpisodeActor:
    """The worker as an actor: on an event loop of asyncio. Ray makes all loops of its processes uvloop's, on which a fleet does not run."""

    def __init__(self, open_pool: OpenPool = open_pool) -> None:
        asyncio.set_event_loop_policy(None)
        self._worker, self._loop = EpisodeWorker(open_pool), LoopThread("episodes")

    async def about(self) -> About:
        return await self._run(self._worker.about())

    async def open(self, settings: str) -> None:
        await self._run(self._worker.open(settings))

    async def submit(self, orders: Sequence[Order]) -> None:
        await self._run(self._worker.submit(orders))

    async def read(self, confirmed: int, wait_s: float) -> list[tuple[int, Report]]:
        return await self._run(self._worker.read(confirmed, wait_s))

    async def close(self) -> None:
        await self._run(self._worker.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._loop.submit(work))
