"""The episode runner: one episode, from request to record. Every stage that acts runs its episodes through it.

It leases a session, runs the loop (loop.py), ends an episode that takes too long, retries what the infrastructure failed, records as
`crashed` what it never let finish, and writes to the log: each step as it is made, the episode once it has ended. A retry, and a start
after a kill, go on at the step they were cut off at (resume.py); the last retry starts from the beginning. How many episodes run at once is
pool_collector.py's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.log import EpisodeLog
from agent.episode.loop import UNKNOWN_ENVIRONMENT, EpisodeLimits, Intervene, run_episode
from agent.episode.resume import Diverged, RecordedSteps
from agent.policy.action_source import ActionSource
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.session import Session
from warehouse.core.errors import SandboxError, SandboxTimeout
from warehouse.evaluation.choosing import require_choosable

Live = Callable[[], AbstractContextManager[None]]
"""Entered while an episode runs on a session; the batcher counts by it."""


Play = Callable[[Session], Awaitable[Episode]]
"""Plays one try of an episode on a leased session. Raises SandboxError where the infrastructure failed."""


class RunnerSettings(BaseModel):
    """What the runner does about failures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retries: Annotated[int, Field(ge=0, description="tries after an infrastructure failure, then `crashed`")] = 2
    episode_timeout_s: Annotated[
        float | None, Field(gt=0, description="wall clock of an episode once it has a session; past it, an infrastructure failure")
    ] = None
    retry_delay_s: Annotated[float, Field(ge=0, description="pause before the first retry; doubles with each")] = 0.2


class EpisodeRunner:
    """Runs single episodes on the sessions of a pool. An episode does not depend on which session ran it, nor on its neighbours."""

    def __init__(
        self,
        session_pool: SessionPoolProtocol,
        builder: PromptBuilder,
        limits: EpisodeLimits | None = None,
        settings: RunnerSettings | None = None,
        *,
        to_choose: bool = False,
    ) -> None:
        """`to_choose`: for a stage that learns or chooses. It plays no instance that is only reported, and raises ReportedOnly."""
        self._session_pool = session_pool
        self._builder = builder
        self._limits = limits or EpisodeLimits()
        self._settings = settings or RunnerSettings()
        self._to_choose = to_choose
        self._meter = LeaseMeter()

    @property
    def leased_s(self) -> float:
        """Seconds that episodes held a session, summed over sessions, up to now."""
        return self._meter.leased_s

    async def run(
        self,
        request: EpisodeRequest,
        source: ActionSource,
        *,
        intervene: Intervene | None = None,
        live: Live = nullcontext,
        log: EpisodeLog | None = None,
    ) -> Episode:
        """The episode, once it is in the log, in which a fork has begun (fork.py). Raises what the source raises, and a SandboxError
        that a person must fix first; any other infrastructure failure is retried, then the episode's outcome is `crashed`."""
        recorded = RecordedSteps(request, log)

        async def play(session: Session) -> Episode:
            then = recorded.then(source, str(getattr(session, "environment", UNKNOWN_ENVIRONMENT)))
            with live():
                episode = await run_episode(request, session, then, self._builder, self._limits, intervene=intervene, watch=recorded.watch)
            recorded.require_whole(episode)
            return episode

        episode = await self._played(request, play, recorded)
        if recorded.fork_refused is not None:
            episode = episode.model_copy(update={"fork_refused": recorded.fork_refused})
        if episode.outcome is not Outcome.CRASHED:
            episode = episode.model_copy(update={"steps": recorded.as_first_made(episode.steps)})
        return await _logged(episode, log)

    async def play(self, request: EpisodeRequest, play: Play, *, log: EpisodeLog | None = None) -> Episode:
        """The same where `play` drives the session, from its reset on; each try begins again."""
        return await _logged(await self._played(request, play, RecordedSteps(request, None)), log)

    async def _played(self, request: EpisodeRequest, play: Play, recorded: RecordedSteps) -> Episode:
        """Try after try, until one is through or there are no more."""
        if self._to_choose:
            require_choosable({request.split}, f"episode {request.episode_id} of {request.task.name}")
        started_s = time.monotonic()
        num_retries = 0
        while True:
            try:
                episode = await self._play_once(request, play)
                return episode.model_copy(update={"num_retries": num_retries})
            except Diverged as difference:
                recorded.forget(difference)
            except SandboxError as error:
                if not error.is_retryable:
                    raise
                if num_retries >= self._settings.max_retries:
                    return crashed_episode(request, error, num_retries=num_retries, duration_ms=(time.monotonic() - started_s) * 1000)
                await asyncio.sleep(self._settings.retry_delay_s * 2**num_retries)
                num_retries += 1
                if num_retries == self._settings.max_retries:
                    recorded.drop()

    async def _play_once(self, request: EpisodeRequest, play: Play) -> Episode:
        async with self._session_pool.lease(request.task, screenshots=request.screenshots) as session:
            with self._meter.leased():
                return await _in_time(play(session), request, self._settings.episode_timeout_s)


async def _logged(episode: Episode, log: EpisodeLog | None) -> Episode:
    if log is not None:
        await asyncio.to_thread(log.append, episode)
    return episode


async def _in_time(running: Awaitable[Episode], request: EpisodeRequest, timeout_s: float | None) -> Episode:
    """Raises SandboxTimeout where the episode has not ended after `timeout_s`, and what it raises itself."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await running
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise SandboxTimeout(
            f"episode {request.episode_id} of {request.task.name} did not end within {timeout_s:g} s; it is retried, then recorded as "
            "crashed; raise sandbox.episode_timeout_s if its task is that long"
        ) from error


class LeaseMeter:
    """How long sessions are held by an episode that is under way."""

    def __init__(self) -> None:
        self._leased_s, self._num_leased, self._since_s = 0.0, 0, time.monotonic()

    @contextmanager
    def leased(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @property
    def leased_s(self) -> float:
        """Sum over all leases, up to now."""
        self._count(0)
        return self._leased_s

    def _count(self, change: int) -> None:
        now_s = time.monotonic()
        self._leased_s += self._num_leased * (now_s - self._since_s)
        self._since_s = now_s
        self._num_leased += change


def crashed_episode(request: EpisodeRequest, error: SandboxError, *, num_retries: int = 0, duration_ms: float) -> Episode:
    """The record of an episode that the infrastructure never let finish: no reward, neither good nor bad."""
    return Episode(
        request=request,
        instruction=None,
        steps=(),
        outcome=Outcome.CRASHED,
        reward=None,
        num_retries=num_retries,
        error=f"{type(error).__name__}: {error}",
        duration_ms=duration_ms,
        environment=UNKNOWN_ENVIRONMENT,
    )
