"""What people have finished, as figures are made of it: rows without their pictures and prompts. What they amount to is
service/quality.py's. Withdrawn runs are among them: the work was done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Select, and_, exists, func, select
from sqlalchemy.orm import Session, aliased, load_only

from annotation.storage.instances import same_instance
from annotation.storage.reviews import OLDEST_FIRST, decided
from annotation.storage.schema import Assignment, Proposal, Recording, Review, Run, RunStep

S = TypeVar("S", bound=Select[*tuple[Any, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is asked for: runs that were finished since a time, of one campaign or all."""

    since_s: float
    campaign_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedStep:
    """`policy_id`: whose proposals were shown."""

    user_id: str
    policy_id: str
    decision: str
    asked_at_s: float
    decided_at_s: float
    finished_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """A step of an instance that several people annotated. `screen` identifies what was seen."""

    run_id: str
    step_index: int
    screen: str
    elements: list[dict[str, Any]]
    decision: str
    action: dict[str, Any] | None


def runs(session: Session, window: Window) -> Sequence[Run]:
    """Finished runs, oldest first."""
    return session.scalars(_of(select(Run), window).order_by(Run.finished_at_s, Run.run_id)).all()


def steps(session: Session, window: Window) -> list[DecidedStep]:
    """Decided steps that stand, of the same runs, in the order of their decisions."""
    policy_id = func.coalesce(Proposal.policy_id, Run.policy_id)
    columns = select(Run.user_id, policy_id, RunStep.decision, RunStep.asked_at_s, RunStep.decided_at_s, Run.finished_at_s)
    query = columns.join(RunStep, RunStep.run_id == Run.run_id)
    query = query.outerjoin(Proposal, and_(Proposal.step_id == RunStep.step_id, Proposal.rank == 0))
    found = session.execute(_of(query, window).where(*decided()).order_by(RunStep.decided_at_s, RunStep.step_id))
    return [
        DecidedStep(
            user_id=user_id,
            policy_id=policy,
            decision=decision or "",
            asked_at_s=asked_s,
            decided_at_s=decided_s or asked_s,
            finished_at_s=finished_s or 0.0,
        )
        for user_id, policy, decision, asked_s, decided_s, finished_s in found
    ]


def run_reviews(session: Session, window: Window) -> Sequence[Review]:
    """Reviews of those runs, oldest first."""
    query = _of(select(Review).join(Run, Run.run_id == Review.run_id), window)
    return session.scalars(query.order_by(*OLDEST_FIRST)).all()


def recording_reviews(session: Session, *, since_s: float) -> Sequence[Review]:
    """Reviews of recordings since a time, oldest first."""
    query = select(Review).join(Recording, Recording.recording_id == Review.recording_id).where(Review.created_at_s >= since_s)
    return session.scalars(query.order_by(*OLDEST_FIRST)).all()


def shared_instances(session: Session, window: Window) -> dict[str, list[Run]]:
    """Runs of the same instance in the same campaign by several people, oldest first, by instance."""
    copy, other, other_run = aliased(Assignment), aliased(Run), Run
    is_shared = exists().where(
        same_instance(copy, Assignment),
        other.assignment_id == copy.assignment_id,
        other.state == "finished",
        other.user_id != other_run.user_id,
    )
    query = select(Run, Assignment.campaign_id, Assignment.task_id, Assignment.seed).join(Assignment).where(is_shared)
    found: dict[str, list[Run]] = {}
    for run, *instance in session.execute(_of(query, window, is_joined=True).order_by(Run.finished_at_s, Run.run_id)):
        found.setdefault(" ".join(map(str, instance)), []).append(run)
    return found


def seen_steps(session: Session, run_ids: Collection[str]) -> list[SeenStep]:
    """Their decided steps that stand, in order. Where there are elements or output these identify what was seen, else the picture."""
    columns = load_only(
        RunStep.run_id, RunStep.step_index, RunStep.observation, RunStep.screenshot_id, RunStep.screen, RunStep.decision, RunStep.action
    )
    query = select(RunStep).options(columns).where(RunStep.run_id.in_(run_ids), *decided()).order_by(RunStep.run_id, RunStep.step_index)
    return [
        SeenStep(
            run_id=step.run_id,
            step_index=step.step_index,
            screen=step.observation or str(step.screenshot_id),
            elements=list(step.screen.get("elements", [])),
            decision=step.decision or "",
            action=step.action,
        )
        for step in session.scalars(query)
    ]


def _of(query: S, window: Window, *, is_joined: bool = False) -> S:
    query = query.where(Run.state == "finished", Run.finished_at_s >= window.since_s)
    if window.campaign_id is not None:
        if not is_joined:
            query = query.join(Assignment, Assignment.assignment_id == Run.assignment_id)
        query = query.where(Assignment.campaign_id == window.campaign_id)
    return query
