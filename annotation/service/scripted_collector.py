"""The scripted annotator at the service: episodes that are played as annotated runs, each step stored, asked and decided as a person's are,
in a database of its own. A collector as annotation/scripted.py asks for; its episodes are those of a PoolCollector.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session as DatabaseSession

from agent.episode import concurrency
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.loop import EpisodeLimits, Intervene
from agent.episode.pool_collector import CollectorSettings, crashed_episode
from agent.policy.action_source import ORACLE_POLICY_ID
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder
from annotation.config import Mode
from annotation.platform.live import Retries
from annotation.scripted import Labels
from annotation.service.choices import Choice, chosen
from annotation.service.live_run import LiveRun
from annotation.service.policies import NEWEST, Served
from annotation.service.run_keeper import EpisodeOptions
from annotation.service.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.ids import new_id
from annotation.storage.migrating import open_database
from annotation.storage.runs import Decided
from annotation.storage.schema import Assignment, Campaign, User
from annotation.wire.runs import Finish
from sandbox import wire
from sandbox.pool.pool_protocol import Pool
from sandbox.session import Session
from sandbox.tasks.task import Task
from warehouse.core.errors import ModelError, SandboxError

LET_STAND = "let_stand"
"""What a program decides where it has nothing to say: the policy goes on. People do not have it."""
LEASE_S = 1e9


class ServiceCollector:
    """Plays episodes on a pool through LiveRuns. The limits' time is not counted: in a run it is the person's."""

    def __init__(
        self, pool: Pool, builder: PromptBuilder, limits: EpisodeLimits | None = None, settings: CollectorSettings | None = None
    ) -> None:
        self._pool, self._builder = pool, builder
        self._limits = (limits or EpisodeLimits()).model_copy(update={"policy_timeout_s": None})
        self._settings = settings or CollectorSettings()
        self._database: Database | None = None
        self._drop: weakref.finalize[..., ServiceCollector] | None = None

    async def collect(
        self, policy: Policy, requests: Sequence[EpisodeRequest], *, intervene: Intervene | None = None
    ) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes. Raises what the policy's engine raises. Where `intervene` is a scripted annotator's,
        what it thought right is stored too."""
        settings = self._settings
        batcher = Batcher(policy, max_batch=settings.max_batch, max_wait_ms=settings.max_wait_ms, fixed_batch=settings.fixed_batch)
        served = Served(
            policy_id=policy.policy_id, policy=_Batched(batcher), builder=self._builder, max_new_tokens=self._limits.max_new_tokens
        )
        retries = Retries(max_in_a_row=settings.max_retries + 1, pause_s=settings.retry_delay_s)
        labels = intervene if isinstance(intervene, Labels) else None
        database = self._own_database()
        blobs = Blobs(Path(str(database.url.database)).parent / "screens")
        runs = LiveRuns(database, blobs, _Counting(self._pool, batcher), _Only(served), retries=retries)
        entered = await database.writing(_enter, requests, "relabel" if labels is None else labels.mode)
        async with aclosing(self._run_all(runs, entered, intervene, labels)) as episodes:
            async for episode in episodes:
                yield episode

    async def close(self) -> None:
        """End the sessions, and drop what was kept of the runs; may be called twice."""
        if self._drop is not None:
            self._drop()
        await self._pool.close()

    def _own_database(self) -> Database:
        """For as long as the collector lives: what scripted annotators do is no person's work."""
        if self._database is None:
            folder = tempfile.mkdtemp(prefix="flywheel-scripted-")
            self._database = open_database(f"sqlite:///{folder}/annotation.db")
            event.listen(self._database.engine, "connect", _hurry)
            self._database.engine.dispose()  # so that every connection is a hurried one
            self._drop = weakref.finalize(self, _drop, self._database, folder)
        return self._database

    async def _run_all(
        self, runs: LiveRuns, entered: list[tuple[str, EpisodeRequest]], intervene: Intervene | None, labels: Labels | None
    ) -> AsyncGenerator[Episode, None]:
        def run(item: tuple[str, EpisodeRequest]) -> Awaitable[Episode]:
            return self._run(runs, *item, intervene, labels)

        num_workers = self._settings.concurrency
        try:
            async with aclosing(concurrency.bounded_map(entered, run, num_workers=num_workers, name="scripted annotator")) as episodes:
                async for episode in episodes:
                    yield episode
        finally:
            await runs.close()

    async def _run(
        self, runs: LiveRuns, assignment_id: str, request: EpisodeRequest, intervene: Intervene | None, labels: Labels | None
    ) -> Episode:
        started_s = time.monotonic()
        run_id = await runs.start(assignment_id, 1, ORACLE_POLICY_ID, EpisodeOptions(request=request, limits=self._limits))
        while (run := await runs.waiting(run_id)).phase == "deciding":
            await runs.choose(run_id, run.version, await _choice(run, intervene, labels))
        episode = runs.take_episode(run_id)
        if episode is None:
            await runs.abandon(run_id)
            if not isinstance(run.error, SandboxError) or not run.error.is_retryable:
                raise run.error or SandboxError(f"run {run_id} is {run.phase}: {run.problem}")
            num_retries, duration_ms = run.episode.num_failures - 1, (time.monotonic() - started_s) * 1000
            return crashed_episode(request, run.error, num_retries=num_retries, duration_ms=duration_ms)
        await runs.finish(run_id, ORACLE_POLICY_ID, Finish(version=run.version, is_success=episode.is_success))
        return episode.model_copy(update={"num_retries": run.episode.num_failures})


async def _choice(run: LiveRun, intervene: Intervene | None, labels: Labels | None) -> Choice:
    """What the annotator does at a moment. A step about which it says nothing is carried out as the policy has it."""
    moment, opened = run.moment, run.open
    if moment is None or opened is None:
        raise ValueError("a run that waits for a decision has a moment")
    if not opened.candidates:
        raise ModelError(run.problem or "the policy did not answer")
    response = opened.candidates[0].response
    override = None if intervene is None else await intervene(moment, response)
    label = None if labels is None else labels.label_at(moment)
    at = run.situation
    if override is not None:
        return chosen("override", None, override, response, at)
    if label is not None and label.agrees:
        return chosen("accept", 0, response.text, response, at)
    if label is not None and label.text is not None and at.mode == "relabel":
        return chosen("override", None, label.text, response, at)
    is_lost = label is not None and label.text is None
    decided = Decided(
        decision="beyond_repair" if is_lost else LET_STAND, candidate=0, response=None, executed=response.text, thought=None, action=None
    )
    return Choice(decided=decided, base=response, override=None)


class _Batched:
    """A policy whose prompts are gathered over all runs."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    @property
    def policy_id(self) -> str:
        return self._batcher.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return list(await asyncio.gather(*(self._batcher.act(prompt) for prompt in prompts)))


class _Counting:
    """A pool that tells the batcher how many episodes are under way."""

    def __init__(self, pool: Pool, batcher: Batcher) -> None:
        self._pool, self._batcher = pool, batcher

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[Session]:
        async with self._pool.lease(task, screenshots=screenshots) as session:
            with self._batcher.live():
                yield session

    async def close(self) -> None:
        await self._pool.close()


class _Only:
    """The policy that is annotated."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def check(self, policy: str) -> None:
        return None

    async def get(self, policy: str) -> Served:
        return self._served

    async def close(self) -> None:
        return None


def _hurry(connection: Any, _: Any) -> None:
    """Nothing of it outlives the process."""
    connection.execute("pragma synchronous=off")


def _drop(database: Database, folder: str) -> None:
    database.close()
    shutil.rmtree(folder, ignore_errors=True)


def _enter(session: DatabaseSession, requests: Sequence[EpisodeRequest], mode: Mode) -> list[tuple[str, EpisodeRequest]]:
    """A campaign, and each request as an assignment that the oracle has on lease."""
    now_s = time.time()
    campaign = Campaign(
        campaign_id=(campaign_id := new_id("campaign")),
        name=campaign_id,
        guidelines="",
        mode=mode,
        tasks=[],
        policy=NEWEST,
        num_candidates=1,
        temperature=0.0,
        target_count=max(1, len(requests)),
        double_share=0.0,
        lease_s=LEASE_S,
        state="active",
        created_at_s=now_s,
    )
    session.merge(User(user_id=ORACLE_POLICY_ID, name=ORACLE_POLICY_ID, role="annotator", created_at_s=now_s))
    session.add(campaign)
    session.flush()
    entered = []
    for request in requests:
        task = request.task
        assignment = Assignment(
            assignment_id=new_id("assignment"),
            campaign_id=campaign.campaign_id,
            task_id=task.task_id,
            task_name=task.name,
            domain=task.domain,
            task=wire.TASK.to_plain(task),
            seed=request.seed,
            copy=request.attempt,
            priority=0.0,
            state="leased",
            user_id=ORACLE_POLICY_ID,
            lease_number=1,
            lease_until_s=now_s + LEASE_S,
            changed_at_s=now_s,
        )
        session.add(assignment)
        entered.append((assignment.assignment_id, request))
    return entered
