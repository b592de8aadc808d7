"""Lists of finished runs: whose, and of what. Who may see which is service/finished_runs.py's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from annotation.storage.reviews import Listed
from annotation.storage.run_status import has_status
from annotation.storage.schema import Assignment, Campaign, Run, User


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for; None: whatever it is."""

    user_id: str | None = None
    campaign_id: str | None = None
    status: str | None = None


def listed(session: Session, wanted: Wanted, *, before: str | None, limit: int) -> list[Listed]:
    """The newest first. `before`: only what comes after this run in that order; none of its kind is not an error, the list is then
    empty."""
    query = select(Run, Assignment, Campaign.name).join(Assignment, Assignment.assignment_id == Run.assignment_id)
    query = query.join(Campaign, Campaign.campaign_id == Assignment.campaign_id).where(*_conditions(wanted))
    if before is not None:
        last = session.get(Run, before)
        if last is None or last.finished_at_s is None:
            return []
        is_older = or_(Run.finished_at_s < last.finished_at_s, and_(Run.finished_at_s == last.finished_at_s, Run.run_id > last.run_id))
        query = query.where(is_older)
    found = session.execute(query.order_by(Run.finished_at_s.desc(), Run.run_id).limit(limit))
    return [Listed(run=run, assignment=assignment, campaign_name=name) for run, assignment, name in found]


def num(session: Session, wanted: Wanted) -> int:
    query = select(func.count()).select_from(Run).join(Assignment, Assignment.assignment_id == Run.assignment_id)
    return session.scalar(query.where(*_conditions(wanted))) or 0


def campaigns_of(session: Session, user_id: str | None) -> Sequence[tuple[str, str]]:
    """(id, name) of campaigns that have finished runs, a person's or anybody's."""
    query = select(Campaign.campaign_id, Campaign.name).join(Assignment, Assignment.campaign_id == Campaign.campaign_id)
    query = query.join(Run, Run.assignment_id == Assignment.assignment_id).where(*_conditions(Wanted(user_id=user_id))).distinct()
    return [(campaign_id, name) for campaign_id, name in session.execute(query.order_by(Campaign.name))]


def people(session: Session) -> Sequence[str]:
    """Names of the people who finished a run."""
    query = select(User.name).where(User.user_id.in_(select(Run.user_id).where(Run.state == "finished")))
    return session.scalars(query.order_by(User.name)).all()


def _conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [Run.state == "finished"]
    if wanted.user_id is not None:
        found.append(Run.user_id == wanted.user_id)
    if wanted.campaign_id is not None:
        found.append(Assignment.campaign_id == wanted.campaign_id)
    if wanted.status is not None:
        found.append(has_status(wanted.status))
    return found
