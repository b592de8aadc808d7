"""NodeWorker: the episode worker of one node, as the stage holds it. It hands out episodes, answers questions, and notices that it is lost.

A call that fails on the way is made again, since either side ignores what it knows; a worker that answered nothing for `lost_after_s`, or
that Ray says is dead, is lost with all its episodes: they get WorkerCrashed, and the caller runs them elsewhere. Time in which this
process's own event loop stood still, and so heard nobody, does not count. How long a node takes from an answer to the next question is told
to `on_step`, by which the stage names a slow one. A worker whose disk runs out gives its episodes back (GivenBack):
first those that wait for a session, then all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.runner import Live
from agent.policy.action_source import ActionSource, PolicyActionSource
from agent.policy.policy import Prompt, Response
from pipelines.cluster.wire import Answer, Cancel, Ended, Failed, FreeDisk, Order, Play, Question, Report, SlotChange
from warehouse.core.errors import SandboxError, WorkerCrashed, from_plain

READS_IN_LOST = 4
"""A worker that has nothing to report says so this often in the time after which it would be lost."""
TICKS_IN_LOST = 20
REFUSED_S = 3.0
"""A worker whose machine has refused connections for so long is lost, before Ray says so. A link that is down refuses nothing."""
PAUSE_S = 0.2
"""Before a call that failed on the way is made again."""


class GivenBack(Exception):
    """The node cannot play an episode now, and another may. `was_begun`: it had a session there."""

    def __init__(self, why: str, *, was_begun: bool) -> None:
        super().__init__(why)
        self.was_begun = was_begun


@dataclass(eq=False, slots=True, kw_only=True)
class _Run:
    ended: asyncio.Future[Episode]
    act: Callable[[Prompt], Awaitable[Response]] | None
    live: Live
    has_session: bool = False
    since_s: float | None = None
    """Since when the node has been at work for it, without a question."""
    worked_s: float | None = None
    """How long it was at work for an episode that asks nothing."""
    slot: ExitStack = field(default_factory=ExitStack)


class NodeWorker:
    """One actor on one node. `num_places`: episodes that it takes at once."""

    def __init__(
        self,
        ray: Any,
        actor: Any,
        *,
        node: str,
        num_places: int,
        lost_after_s: float,
        on_lost: Callable[[NodeWorker], None],
        on_trouble: Callable[[NodeWorker], None],
        on_step: Callable[[NodeWorker, float], None],
    ) -> None:
        """`on_trouble` is called where `trouble` has changed, before any of the episodes is given back; `on_step` with the seconds that
        each step of an episode took."""
        self.node, self.num_places = node, num_places
        self._ray, self._actor, self._lost_after_s, self._on_lost, self._on_trouble = ray, actor, lost_after_s, on_lost, on_trouble
        self._on_step = on_step
        self._runs: dict[int, _Run] = {}
        self._numbers = count(1)
        self._orders: list[Order] = []
        self._has_orders = asyncio.Event()
        self._silent_ticks = 0
        self._refused_s: float | None = None
        """Since when it refuses connections; None where it does not."""
        self._answering: set[asyncio.Task[None]] = set()
        self.loss: str | None = None
        """Why it is lost."""
        self.trouble = ""
        """Why it is to get no episodes now; empty where it may."""
        work = {"read": self._read(), "submit": self._submit(), "watch": self._watch()}
        self._tasks = [asyncio.create_task(each, name=f"{name}-{node}") for name, each in work.items()]

    @property
    def num_running(self) -> int:
        return len(self._runs)

    async def run(self, request: EpisodeRequest, source: ActionSource, live: Live) -> Episode:
        """Raises WorkerCrashed where the worker is lost meanwhile, GivenBack where its disk runs out, what a policy raises, and what its
        runner raises there."""
        if self.loss is not None:
            raise WorkerCrashed(self.loss)
        number = next(self._numbers)
        act = source.act if isinstance(source, PolicyActionSource) else None
        run = self._runs[number] = _Run(ended=asyncio.get_running_loop().create_future(), act=act, live=live)
        self._send(Play(run=number, request=request, source=None if act else source))
        try:
            with run.slot:
                return await run.ended
        finally:
            del self._runs[number]
            if not run.ended.done() or run.ended.cancelled() or run.ended.exception() is not None:
                self._send(Cancel(run=number))

    def lose(self, why: str) -> None:
        """End it, with all its episodes."""
        if self.loss is not None:
            return
        self.loss = why
        for task in (*self._tasks, *self._answering):
            task.cancel()
        for run in self._runs.values():
            if not run.ended.done():
                run.ended.set_exception(WorkerCrashed(why))
        self._on_lost(self)

    async def close(self) -> None:
        """Let it end its sessions, then end it."""
        is_lost = self.loss is not None
        self.lose("the collection is over")
        if not is_lost:
            with suppress(TimeoutError, self._ray.exceptions.RayError):
                async with asyncio.timeout(self._lost_after_s):
                    await _call(self._actor.close)
        await asyncio.gather(*self._tasks, *self._answering, return_exceptions=True)
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """Blocks for a moment."""
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor)

    def _send(self, order: Order) -> None:
        if self.loss is None:
            self._orders.append(order)
            self._has_orders.set()

    async def _submit(self) -> None:
        while self.loss is None:
            await self._has_orders.wait()
            orders, self._orders = self._orders, []
            self._has_orders.clear()
            with suppress(WorkerCrashed):
                await self._until_done(partial(_call, self._actor.submit, orders))

    async def _read(self) -> None:
        confirmed, wait_s = 0, self._lost_after_s / READS_IN_LOST
        while self.loss is None:
            reports = []
            with suppress(WorkerCrashed):
                reports = await self._until_done(partial(_call, self._actor.read, confirmed, wait_s))
            for number, report in reports:
                if number > confirmed:
                    confirmed = number
                    self._take(report)

    async def _until_done(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Makes the call until it is answered. Raises WorkerCrashed once the worker is lost."""
        while self.loss is None:
            try:
                async with asyncio.timeout(self._lost_after_s):
                    answer = await call()
            except TimeoutError:
                continue
            except self._ray.exceptions.ActorUnavailableError:
                self._refused_s = self._refused_s or time.monotonic()
                if (for_s := time.monotonic() - self._refused_s) > REFUSED_S:
                    self.lose(f"{self.node} has refused connections for {for_s:.0f} s")
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError) as error:
                self.lose(f"the episode worker on {self.node} died: {_first_line(error)}")
            except self._ray.exceptions.RayError:
                pass  # e.g. an answer that was on a node which was cut off before it came here
            except Exception as error:  # Ray has errors of no class of its own where it does not know an actor any more
                self.lose(f"the episode worker on {self.node} cannot be asked: {_first_line(error)}")
            else:
                self._silent_ticks, self._refused_s = 0, None
                return answer
            await asyncio.sleep(PAUSE_S)
        raise WorkerCrashed(self.loss)

    async def _watch(self) -> None:
        """Lose it once it has been silent for too long: by ticks, of which a loop that stood still has missed all but one."""
        while self.loss is None:
            await asyncio.sleep(self._lost_after_s / TICKS_IN_LOST)
            self._silent_ticks += 1
            if self._silent_ticks > TICKS_IN_LOST:
                self.lose(f"{self.node} answered nothing for {self._lost_after_s:g} s")

    def _take(self, report: Report) -> None:
        if isinstance(report, FreeDisk):
            self._note_disk(report)
            return
        run = self._runs.get(report.run)
        if run is None or run.ended.done():
            return
        match report:
            case Question():
                self._note_step(run)
                task = asyncio.create_task(self._answer(report, run), name=f"answer-{report.run}")
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case SlotChange():
                run.slot.close()
                run.has_session = report.has_session
                if report.has_session:
                    run.since_s = time.monotonic()
                else:
                    self._note_step(run)
                if report.has_session:
                    run.slot.enter_context(run.live())
            case Ended():
                if run.worked_s is not None and report.episode.steps:
                    self._on_step(self, run.worked_s / len(report.episode.steps))
                run.ended.set_result(report.episode)
            case Failed():
                said = {**report.error, "message": f"on {self.node}: {report.error.get('message')}"}
                run.ended.set_exception(from_plain(said, SandboxError))

    def _note_step(self, run: _Run) -> None:
        """The node is at work for the episode no more: it has asked something, or given up its session."""
        if run.since_s is None:
            return
        seconds, run.since_s = time.monotonic() - run.since_s, None
        if run.act is None:
            run.worked_s = seconds  # of all its steps, whose number is known when it has ended
        else:
            self._on_step(self, seconds)

    def _note_disk(self, disk: FreeDisk) -> None:
        had_trouble = bool(self.trouble)
        needed = f"at least {disk.needed_mib:g} are needed (sandbox.ray.min_free_disk_mib)"
        self.trouble = f"only {disk.free_mib:.0f} MiB of its temporary folder are free, {needed}" if disk.is_short else ""
        if had_trouble != disk.is_short:
            self._on_trouble(self)
        for run in self._runs.values():
            if not run.ended.done() and (disk.is_full or (disk.is_short and not run.has_session)):
                run.ended.set_exception(GivenBack(f"{self.node}: {self.trouble}", was_begun=run.has_session))

    async def _answer(self, question: Question, run: _Run) -> None:
        if run.act is None:
            return
        try:
            response = await run.act(question.prompt)
        except Exception as error:
            if not run.ended.done():
                run.ended.set_exception(error)
        else:
            run.since_s = time.monotonic()
            self._send(Answer(run=question.run, question=question.question, response=response))


async def _call(method: Any, *arguments: Any) -> Any:
    return await method.remote(*arguments)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
