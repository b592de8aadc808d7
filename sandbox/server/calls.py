"""What clients do with a session on lease: the calls of the Session protocol, noted for viewers and counted. No HTTP here."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from prometheus_client import Histogram

from sandbox.actions import Action
from sandbox.http.serving import api_version
from sandbox.server import identity
from sandbox.server.bodies import OneStep, ServerStatus, SessionStatus, Started, SteppedSession
from sandbox.server.lease import Lease
from sandbox.server.leases import Leases
from sandbox.server.metrics import Metrics
from sandbox.server.problems import problem_of
from sandbox.server.settings import ServerSettings
from sandbox.session import FileEntry, HasFiles, Observation, Session, Transition, Verdict
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import kind_of
from sandbox.tasks.task import Task
from warehouse.core.errors import AccessDenied, FlywheelError, SandboxError

T = TypeVar("T")


def started(lease: Lease, session: Session) -> Started:
    """The state of a lease on a session, as the answer to who started it."""
    return Started(
        session_id=lease.session_id,
        ttl_s=lease.ttl_s,
        num_calls=lease.num_calls,
        environment=environment_of(session),
        observation=lease.journal.observation,
    )


async def reset(lease: Lease, metrics: Metrics, task: Task, seed: int, *, screenshots: bool, number: int | None) -> Started:
    async def work(session: Session) -> Started:
        if hasattr(session, "screenshots"):
            session.screenshots = screenshots
        observation = await _timed(metrics, metrics.reset_s, task, session.reset(task, seed))
        lease.journal.note_reset(task, seed, observation)
        return started(lease, session)

    answer: Started = await lease.call_numbered(number, work)
    return answer


async def step(lease: Lease, metrics: Metrics, action: Action, *, number: int | None) -> Transition:
    async def work(session: Session) -> Transition:
        _check_started(lease)
        transition = await _timed(metrics, metrics.step_s, lease.journal.task, session.step(action))
        lease.journal.note_step(action, transition)
        return transition

    answer: Transition = await lease.call_numbered(number, work)
    return answer


async def one_of_many(leases: Leases, client: str, metrics: Metrics, one: OneStep) -> SteppedSession:
    """A step of a batch: an error is its own and not its neighbours'."""
    try:
        transition = await step(leases.get(client, one.session_id), metrics, one.action, number=one.number)
    except FlywheelError as error:
        return SteppedSession(session_id=one.session_id, transition=None, problem=problem_of(error))
    return SteppedSession(session_id=one.session_id, transition=transition, problem=None)


async def evaluate(lease: Lease, metrics: Metrics, settings: ServerSettings) -> Verdict:
    """Without its reasons where the server gives no hints: a policy could read there what it was to find out."""

    async def work(session: Session) -> Verdict:
        _check_started(lease)
        return await _counted(metrics, session.evaluate())

    verdict: Verdict = await lease.call(work)
    return verdict if settings.oracles else replace(verdict, reasons=())


async def oracle_action(lease: Lease, metrics: Metrics, settings: ServerSettings) -> Action | None:
    if not settings.oracles:
        raise AccessDenied("This server gives no hints: start it with `flywheel sandbox serve --oracles`, but not to evaluate a policy.")

    async def work(session: Session) -> Action | None:
        _check_started(lease)
        return await _counted(metrics, session.oracle_action())

    action: Action | None = await lease.call(work)
    return action


async def files(lease: Lease, metrics: Metrics) -> tuple[FileEntry, ...] | None:
    async def work(session: Session) -> tuple[FileEntry, ...] | None:
        _check_started(lease)
        return await _counted(metrics, session.files()) if isinstance(session, HasFiles) else None

    found: tuple[FileEntry, ...] | None = await lease.call(work)
    return found


async def read_file(lease: Lease, metrics: Metrics, path: str) -> str | None:
    async def work(session: Session) -> str | None:
        _check_started(lease)
        return await _counted(metrics, session.read_file(path)) if isinstance(session, HasFiles) else None

    text: str | None = await lease.call(work)
    return text


def last_observation(lease: Lease) -> Observation:
    _check_started(lease)
    if lease.journal.observation is None:
        raise SandboxError(f"Session {lease.session_id} has observed nothing.")
    return lease.journal.observation


def _check_started(lease: Lease) -> None:
    """What the session did in other hands is nobody's to see."""
    if lease.journal.task is None:
        raise SandboxError("No task runs in this session: call reset(task, seed) first.")


def status_of(lease: Lease) -> SessionStatus:
    journal = lease.journal
    return SessionStatus(
        session_id=lease.session_id,
        task=journal.task,
        seed=journal.seed,
        age_s=round(lease.age_s, 3),
        left_s=round(max(lease.left_s, 0.0), 3),
        num_calls=lease.num_calls,
        num_steps=journal.num_steps,
        reward=journal.reward,
        is_over=journal.is_over,
        instruction=journal.observation.instruction if journal.observation is not None else "",
        screenshot_id=journal.observation.screenshot_id if journal.observation is not None else None,
    )


def server_status(client: str, leases: Leases) -> ServerStatus:
    return ServerStatus(
        version=api_version(),
        code=identity.code_id(),
        sources=identity.source_ids(),
        num_sessions=leases.settings.max_sessions,
        num_leased=leases.num_live,
        num_waiting=leases.num_waiting,
        num_free=leases.num_free(client),
        oracles=leases.settings.oracles,
        is_draining=leases.is_draining or leases.is_closing,
        free_disk_mib=round(leases.disk.free_mib(), 1),
        is_disk_short=leases.disk.is_short,
    )


def environment_of(session: Session) -> str:
    return str(getattr(session, "environment", ""))


async def _timed(metrics: Metrics, histogram: Histogram, task: Task | None, work: Awaitable[T]) -> T:
    started_s = time.monotonic()
    result = await _counted(metrics, work)
    kind = kind_of(task) if task is not None and task.source in SOURCES else "page"
    histogram.labels(kind=kind).observe(time.monotonic() - started_s)
    return result


async def _counted(metrics: Metrics, work: Awaitable[T]) -> T:
    try:
        return await work
    except SandboxError as error:
        metrics.failures.labels(error=type(error).__name__).inc()
        raise
