"""One episode of a harness: lease and retries are the episode runner's (agent/episode/runner.py), and so is the log; the program is
started here, watched, and ended, and what the gateway recorded of it becomes the episode's steps. V is the task's own verifier's.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.episode.log import EpisodeLog
from agent.episode.loop import UNKNOWN_ENVIRONMENT
from agent.episode.runner import EpisodeRunner
from agent.harness.driven import DrivenSession
from agent.harness.endpoint import open_endpoint
from agent.harness.harness import Assignment, Harness
from sandbox.session import Session, Verdict, first_content
from warehouse.core.errors import EngineUnreachable, HarnessFailed, SandboxError

LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAddress:
    """Where a model answers one episode: the gateway's address, and the key that names the episode."""

    url: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the gateway recorded of an episode, and the pictures that its steps name. `failure`: why the policy's server did not answer
    the last call, if that was the server's fault."""

    steps: tuple[Step, ...]
    pictures: Mapping[str, bytes]
    failure: str | None = None


class Calls(Protocol):
    """The calls of one episode, for a gateway."""

    async def admit(self) -> str | None:
        """Before each call: why it is not answered any more; None where it is."""
        ...

    def left(self, *, is_answered: bool) -> None:
        """An admitted call is over."""
        ...


class Gateway(Protocol):
    """Answers episodes, and records what is asked and answered. models/gateway/episode_gateway.py is one."""

    def begin(self, name: str, calls: Calls) -> ModelAddress:
        """Where the episode of this name is answered, until its end. Every client that knows the name can call in it."""
        ...

    async def end(self, name: str, verdict: Verdict) -> Recorded:
        """After it no call of the episode is answered. Calls under way come to their end first."""
        ...


class HarnessRunner:
    """Runs single episodes with a harness, on the sessions of an EpisodeRunner's pool."""

    def __init__(self, runner: EpisodeRunner, name: str, harness: Harness, gateway: Gateway, *, timeout_s: float | None) -> None:
        """`timeout_s`: wall clock of the program, else the outcome is `timeout`."""
        self._runner, self._name, self._harness, self._gateway, self._timeout_s = runner, name, harness, gateway, timeout_s

    async def run(self, request: EpisodeRequest, *, log: EpisodeLog | None = None) -> Episode:
        """The episode, once it is in the log. Raises as EpisodeRunner.run."""

        async def play(session: Session) -> Episode:
            return await self._play(request, session, f"{request.episode_id}.{secrets.token_urlsafe(16)}")

        return await self._runner.play(request, play, log=log)

    async def _play(self, request: EpisodeRequest, session: Session, name: str) -> Episode:
        started_s = time.monotonic()
        first = await session.reset(request.task, request.seed)
        driven = DrivenSession(session, first)
        calls = _Calls(driven, request.task.max_steps)
        model = self._gateway.begin(name, calls)
        try:
            end = await self._drive(request, driven, model, calls)
            await driven.look()
            verdict = await session.evaluate()
        except BaseException:
            await self._gateway.end(name, NO_VERDICT)
            raise
        recorded = await self._gateway.end(name, verdict)
        if recorded.failure is not None and not verdict.success:
            raise EngineUnreachable(f"the policy's server failed during {request.episode_id}: {recorded.failure}")
        if not recorded.steps:
            raise end.failure or HarnessFailed(f"none of the calls of the harness {self._name!r} was answered; its own log says why")
        end = _settled(end, driven, calls)
        return Episode(
            request=request,
            instruction=first.instruction,
            content_id=first_content(first),
            steps=recorded.steps,
            outcome=Outcome.SUCCESS if verdict.success else end.outcome,
            reward=min(1.0, max(-1.0, verdict.score)),
            points=verdict.points,
            error=None if end.failure is None else str(end.failure),
            duration_ms=(time.monotonic() - started_s) * 1000,
            environment=self._environment(session, driven),
            screenshots=dict(recorded.pictures),
        )

    def _environment(self, session: Session, driven: DrivenSession) -> str:
        name = getattr(session, "environment", UNKNOWN_ENVIRONMENT)
        return f"{name}{DRIVEN_BY_DEVTOOLS if driven.has_devtools else ''}; harness {self._name}"

    async def _drive(self, request: EpisodeRequest, driven: DrivenSession, model: ModelAddress, calls: _Calls) -> _End:
        """Start the program, and end it where the environment or a limit ends the episode."""
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True))
            assignment = Assignment(
                episode=request.episode_id,
                task=request.task.name,
                instruction=driven.last.observation.instruction,
                max_steps=request.task.max_steps,
                temperature=request.temperature,
                seed=request.sampling_seed(0),
                openai_url=f"{model.url}/v1",
                anthropic_url=model.url,
                key=model.key,
                session_url=await stack.enter_async_context(open_endpoint(driven)),
                devtools_url=await driven.devtools(),
                folder=Path(folder),
            )
            program = asyncio.ensure_future(self._harness(assignment))
            watch = asyncio.ensure_future(_until_over(driven, calls))
            try:
                await asyncio.wait((program, watch), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if driven.failure is not None:
                    raise driven.failure
                return _end_of(program, watch)
            finally:
                for task in (program, watch):
                    task.cancel()
                await asyncio.wait((program, watch))


@dataclass(frozen=True, slots=True)
class _End:
    """`outcome` stands where the verifier does not say success. `failure`: why the program failed, if it did."""

    outcome: Outcome
    failure: SandboxError | None = None


DRIVEN_BY_DEVTOOLS = "; DevTools"
"""In an episode's environment: its program had a DevTools address, so it may have run scripts there (warehouse/quality/overlap.py)."""
NO_VERDICT = Verdict(origin="verifier", score=0.0, threshold=1.0, reasons=("the infrastructure failed",))


class _Calls:
    """The calls of an episode, up to its task's steps. Calls that are not answered are not steps. `was_refused`: one more was asked for."""

    def __init__(self, driven: DrivenSession, most: int) -> None:
        self._driven, self._most = driven, most
        self._num_running = self._num_answered = 0
        self.was_refused = False

    @property
    def are_used_up(self) -> bool:
        return self._num_answered >= self._most

    async def admit(self) -> str | None:
        """As Calls, after a last look: what comes after the end is not a step of the episode."""
        await self._driven.look()
        if self._driven.is_over:
            return "the environment has ended the episode"
        if self._num_running + self._num_answered >= self._most:
            self.was_refused = True
            return f"the task's {self._most} steps are used up"
        self._num_running += 1
        return None

    def left(self, *, is_answered: bool) -> None:
        self._num_running -= 1
        self._num_answered += is_answered


async def _until_over(driven: DrivenSession, calls: _Calls) -> Outcome:
    """How the environment or the task's limit ended the episode. Raises SandboxError."""
    while True:
        last = await driven.look()
        if last.terminated:
            return Outcome.FAILURE
        if last.truncated or calls.was_refused:
            return Outcome.TRUNCATED
        await asyncio.sleep(LOOK_EVERY_S)


def _end_of(program: asyncio.Future[None], watch: asyncio.Future[Outcome]) -> _End:
    """Raises the SandboxError of a session that failed."""
    if watch.done():
        return _End(watch.result())
    if not program.done():
        return _End(Outcome.TIMEOUT)
    error = program.exception()
    if error is None or isinstance(error, SandboxError):
        return _End(Outcome.FAILURE, error)
    return _End(Outcome.FAILURE, HarnessFailed(f"the harness raised {type(error).__name__}: {error}"))


def _settled(end: _End, driven: DrivenSession, calls: _Calls) -> _End:
    """A program that ends after the environment did, or when its steps are used up, ended by that: also one that fails as its call was
    refused."""
    if driven.last.terminated:
        return _End(Outcome.FAILURE)
    is_cut_off = driven.last.truncated or calls.are_used_up
    return _End(Outcome.TRUNCATED) if is_cut_off and end.outcome is Outcome.FAILURE else end
