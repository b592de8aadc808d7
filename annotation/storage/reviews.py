"""What reviewers said, and which runs they are asked about: rows. The rules are service/review.py's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from annotation.storage.ids import new_id
from annotation.storage.instances import other_copy
from annotation.storage.schema import Assignment, Campaign, Review, Run, RunStep

SAMPLED_BY = 6
OLDEST_FIRST = (Review.created_at_s, Review.kind.desc(), Review.review_id)
"""At one time, the word that settles comes last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A finished run as a list shows it."""

    run: Run
    assignment: Assignment
    campaign_name: str


def add(
    session: Session,
    *,
    reviewer_id: str,
    kind: str,
    approves: bool,
    verdict: bool | None,
    steps: Mapping[str, Any],
    note: str,
    now_s: float,
    run_id: str | None = None,
    recording_id: str | None = None,
) -> Review:
    made = Review(
        review_id=new_id("review"),
        run_id=run_id,
        recording_id=recording_id,
        reviewer_id=reviewer_id,
        kind=kind,
        approves=approves,
        verdict=verdict,
        steps=dict(steps),
        note=note.strip() or None,
        created_at_s=now_s,
    )
    session.add(made)
    session.flush()
    return made


def reviews_of(session: Session, run_id: str) -> list[Review]:
    """Of a run, oldest first."""
    return by_run(session, [run_id])[run_id]


def of_recording(session: Session, recording_id: str) -> list[Review]:
    """Oldest first."""
    query = select(Review).where(Review.recording_id == recording_id)
    return list(session.scalars(query.order_by(*OLDEST_FIRST)))


def by_run(session: Session, run_ids: Collection[str]) -> defaultdict[str, list[Review]]:
    found: defaultdict[str, list[Review]] = defaultdict(list)
    for one in session.scalars(select(Review).where(Review.run_id.in_(run_ids)).order_by(*OLDEST_FIRST)):
        found[str(one.run_id)].append(one)
    return found


def num_by(session: Session, reviewer_id: str, *, since_s: float) -> int:
    query = select(func.count()).select_from(Review).where(Review.reviewer_id == reviewer_id, Review.created_at_s >= since_s)
    return session.scalar(query) or 0


def waiting(session: Session, reviewer_id: str, *, sampled: Iterable[str], limit: int) -> tuple[list[Listed], int]:
    """Runs that a reviewer may say something of, and how many there are in all: what waits for its third person first, then what is
    disputed, then the sample, each oldest first. `sampled`: the first SAMPLED_BY characters of the ids of undisputed runs that are
    looked at all the same."""
    is_sampled = func.substr(Run.run_id, 1, SAMPLED_BY).in_(list(sampled))
    where = and_(
        Run.state == "finished",
        Run.withdrawn_at_s.is_(None),
        Run.user_id != reviewer_id,
        ~_has_review(reviewer_id),
        or_(Run.review_state == "pending", and_(Run.review_state == "none", is_sampled, ~_has_review())),
        ~_annotated_copy(reviewer_id),
    )
    urgency = case((and_(Run.review_state == "pending", _has_review()), 0), (Run.review_state == "pending", 1), else_=2)
    query = _listed().where(where).order_by(urgency, Run.finished_at_s, Run.run_id).limit(limit)
    num = session.scalar(select(func.count()).select_from(Run).join(Assignment).where(where))
    return [_row(*row) for row in session.execute(query)], num or 0


def listed(session: Session, run_id: str) -> Listed | None:
    found = session.execute(_listed().where(Run.run_id == run_id)).one_or_none()
    return None if found is None else _row(*found)


def duplicates(session: Session, run_ids: Collection[str]) -> defaultdict[str, list[Run]]:
    """Other people's finished runs of the same instance in the same campaign, by run, oldest first."""
    copy, other = aliased(Assignment), aliased(Run)
    query = (
        select(Run.run_id, other)
        .join(Assignment, Assignment.assignment_id == Run.assignment_id)
        .join(copy, other_copy(copy, Assignment))
        .join(other, other.assignment_id == copy.assignment_id)
        .where(Run.run_id.in_(run_ids), other.state == "finished", other.withdrawn_at_s.is_(None), other.user_id != Run.user_id)
        .order_by(other.finished_at_s, other.run_id)
    )
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run_id, run in session.execute(query):
        found[run_id].append(run)
    return found


def annotated_instance(session: Session, run_id: str, user_id: str) -> bool:
    """Whether somebody annotated the instance of a run themselves, this copy or another."""
    query = select(Run.run_id).join(Assignment).where(Run.run_id == run_id, or_(Run.user_id == user_id, _annotated_copy(user_id)))
    return session.scalar(query) is not None


def num_steps(session: Session, run_ids: Collection[str]) -> dict[str, int]:
    """Decided steps that stand."""
    query = select(RunStep.run_id, func.count()).where(RunStep.run_id.in_(run_ids), *decided()).group_by(RunStep.run_id)
    return dict(session.execute(query).all())


def step_indexes(session: Session, run_id: str) -> set[int]:
    """Of decided steps that stand."""
    return set(session.scalars(select(RunStep.step_index).where(RunStep.run_id == run_id, *decided())))


def decided() -> tuple[ColumnElement[bool], ...]:
    return RunStep.superseded_at_s.is_(None), RunStep.decided_at_s.is_not(None)


def _listed() -> Select[Run, Assignment, str]:
    query = select(Run, Assignment, Campaign.name).join(Assignment, Assignment.assignment_id == Run.assignment_id)
    return query.join(Campaign, Campaign.campaign_id == Assignment.campaign_id)


def _row(run: Run, assignment: Assignment, name: str) -> Listed:
    return Listed(run=run, assignment=assignment, campaign_name=name)


def _has_review(reviewer_id: str | None = None) -> ColumnElement[bool]:
    by = [] if reviewer_id is None else [Review.reviewer_id == reviewer_id]
    return exists().where(Review.run_id == Run.run_id, *by)


def _annotated_copy(user_id: str) -> ColumnElement[bool]:
    """Of the instance that `Assignment` is of."""
    copy, other = aliased(Assignment), aliased(Run)
    return exists().where(other_copy(copy, Assignment), other.assignment_id == copy.assignment_id, other.user_id == user_id)
