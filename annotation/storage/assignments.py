"""The work queue's rows: which assignment is whose, for how long. Every change of hands is one transaction that locks the row, so that an
assignment is never with two people.

A lease has a number that grows with each: the holder of an earlier one finds out by `held_by` before anything is written. One that
ran out may go on for as long as nobody else has taken the assignment; that is done last, when nothing lies open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select, true, update
from sqlalchemy.orm import Session, aliased

from annotation.storage.campaigns import may_work
from annotation.storage.database import lock
from annotation.storage.instances import same_instance
from annotation.storage.run_status import VOID, state_that_counts
from annotation.storage.schema import Assignment, Campaign, Run, Skip
from warehouse.core.errors import AssignmentLost, UnknownSubject

SKIPS_UNTIL_FLAGGED = 3
"""What so many people passed on is looked at before anybody else is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """An assignment that its holder may work on, and what was begun under this lease."""

    assignment: Assignment
    campaign: Campaign
    run_id: str | None
    is_new: bool
    abandoned_run_id: str | None = None
    """A run that somebody else left behind under an earlier lease."""


def take(
    session: Session, user_id: str, campaign_id: str | None, *, without: Collection[str] = (), overdue: bool = True, now_s: float
) -> Leased | None:
    """The assignment that the user holds, whatever the campaign; else the most urgent one that is free to them, leased. None: there is
    none. What is overdue is free to all, but taken only where nothing lies open: somebody is at it, and may be back. Not `overdue`:
    nor then. `without`: ids of campaigns that are left out."""
    lock(session, f"work of {user_id}")
    if (held := held_by_user(session, user_id, for_update=True)) is not None:
        campaign = session.get_one(Campaign, held.campaign_id)
        held.lease_until_s = now_s + campaign.lease_s
        return Leased(assignment=held, campaign=campaign, run_id=live_run(session, held), is_new=False)
    is_overdue = case((Assignment.state == "open", 0), else_=1)
    order = (is_overdue, Campaign.priority.desc(), Assignment.priority.desc(), Assignment.copy, Assignment.assignment_id)
    query = select(Assignment).join(Campaign).where(_is_open_to(user_id, campaign_id, without, now_s if overdue else None))
    found = session.scalar(query.order_by(*order).limit(1).with_for_update(skip_locked=True, of=Assignment))
    if found is None:
        return None
    abandoned = abandon_runs(session, found)
    campaign = session.get_one(Campaign, found.campaign_id)
    found.state, found.user_id, found.lease_number = "leased", user_id, found.lease_number + 1
    found.lease_until_s, found.changed_at_s = now_s + campaign.lease_s, now_s
    return Leased(assignment=found, campaign=campaign, run_id=None, is_new=True, abandoned_run_id=abandoned)


def any_free(
    session: Session, user_id: str, campaign_id: str | None, *, without: Collection[str] = (), overdue: bool = True, now_s: float
) -> bool:
    """Whether there is one that `take` would give, be it locked by another transaction at the moment."""
    query = select(Assignment.assignment_id).join(Campaign)
    return session.scalar(query.where(_is_open_to(user_id, campaign_id, without, now_s if overdue else None)).limit(1)) is not None


def held_by_user(session: Session, user_id: str, *, for_update: bool = False) -> Assignment | None:
    """What the user has on lease, overdue or not. At most one."""
    query = select(Assignment).where(Assignment.user_id == user_id, Assignment.state == "leased").limit(1)
    return session.scalar(query.with_for_update() if for_update else query)


def held(session: Session, assignment_id: str, user_id: str, lease_number: int | None = None) -> Assignment:
    """The row, locked, of what the user holds under this lease (None: any). Raises AssignmentLost where it is not theirs any more,
    UnknownSubject where it never was: call it first in a transaction that writes anything about a run."""
    assignment = session.get(Assignment, assignment_id, with_for_update=True, populate_existing=True)
    if assignment is None:
        raise UnknownSubject(f"there is no assignment {assignment_id[:80]!r}")
    if assignment.state != "leased" or assignment.user_id != user_id or lease_number not in (None, assignment.lease_number):
        raise AssignmentLost("this assignment is not yours any more: the lease ran out and somebody else has it, or it was ended elsewhere")
    return assignment


def renew(session: Session, assignment_id: str, user_id: str, *, now_s: float) -> float:
    """A sign of life; until when the lease runs now. Raises AssignmentLost, UnknownSubject."""
    assignment = held(session, assignment_id, user_id)
    until_s = now_s + session.get_one(Campaign, assignment.campaign_id).lease_s
    assignment.lease_until_s = until_s
    return until_s


def renew_after_outage(session: Session, *, now_s: float) -> int:
    """A server begins: leases that ran when the last one was alive run on, each for a whole one from now; how many were over meanwhile.
    The server was alive at the last sign of life of anybody; whose lease was over by then had gone away before."""
    query = select(Assignment, Campaign.lease_s).join(Campaign).where(Assignment.state == "leased")
    found = session.execute(query.with_for_update(of=Assignment)).all()
    alive_s = max(((one.lease_until_s or 0.0) - lease_s for one, lease_s in found), default=now_s)
    num = 0
    for one, lease_s in found:
        until_s = one.lease_until_s or 0.0
        if alive_s < until_s < now_s + lease_s:
            num += until_s <= now_s
            one.lease_until_s = now_s + lease_s
    return num


def finish(session: Session, assignment: Assignment, *, now_s: float) -> None:
    """Of what `held` gave: it is annotated."""
    assignment.state, assignment.lease_until_s, assignment.changed_at_s = "finished", None, now_s


def release(session: Session, assignment: Assignment, *, now_s: float) -> str | None:
    """Of what `held` gave: back into the queue. The id of the run that was given up with it."""
    assignment.state, assignment.user_id, assignment.lease_until_s, assignment.changed_at_s = "open", None, None, now_s
    return abandon_runs(session, assignment)


def skip(session: Session, assignment: Assignment, user_id: str, reason: str, *, now_s: float) -> str | None:
    """Of what `held` gave: somebody else shall do it. The id of the run that was given up with it."""
    session.add(Skip(assignment_id=assignment.assignment_id, user_id=user_id, reason=reason, at_s=now_s))
    session.flush()
    num = session.scalar(select(func.count()).select_from(Skip).where(Skip.assignment_id == assignment.assignment_id))
    abandoned = release(session, assignment, now_s=now_s)
    if (num or 0) >= SKIPS_UNTIL_FLAGGED:
        assignment.state, assignment.reason = "flagged", f"passed on by {num} people, last: {reason}"
    return abandoned


def flag(session: Session, assignment: Assignment, reason: str, *, now_s: float) -> str | None:
    """Of what `held` gave: something is wrong with the task, nobody shall do it. The id of the run that was given up with it."""
    assignment.state, assignment.reason, assignment.lease_until_s, assignment.changed_at_s = "flagged", reason, None, now_s
    return abandon_runs(session, assignment)


def reopen(session: Session, assignment_id: str, *, now_s: float) -> Assignment:
    """What was flagged goes back into the queue, also to the one who flagged it. Raises AssignmentLost, UnknownSubject."""
    assignment = session.get(Assignment, assignment_id, with_for_update=True)
    if assignment is None:
        raise UnknownSubject(f"there is no assignment {assignment_id[:80]!r}")
    if assignment.state != "flagged":
        raise AssignmentLost(f"the assignment {assignment_id} is {assignment.state}, not flagged")
    for passed in session.scalars(select(Skip).where(Skip.assignment_id == assignment_id)):
        session.delete(passed)
    assignment.state, assignment.user_id, assignment.reason, assignment.changed_at_s = "open", None, None, now_s
    return assignment


def live_run(session: Session, assignment: Assignment) -> str | None:
    """The run that goes on under the assignment's present lease."""
    return session.scalar(
        select(Run.run_id).where(
            Run.assignment_id == assignment.assignment_id, Run.lease_number == assignment.lease_number, Run.state == "live"
        )
    )


def abandon_runs(session: Session, assignment: Assignment) -> str | None:
    """Give up what goes on at an assignment; the run's id. Its sandbox is the caller's to end."""
    where = and_(Run.assignment_id == assignment.assignment_id, Run.state == "live")
    run_id = session.scalar(select(Run.run_id).where(where).limit(1))
    if run_id is not None:
        session.execute(update(Run).where(where).values(state="abandoned"))
    return run_id


def open_ones(session: Session, campaign_id: str) -> Sequence[Assignment]:
    """What is in the queue and nobody has, locked."""
    query = select(Assignment).where(Assignment.campaign_id == campaign_id, Assignment.state == "open").order_by(Assignment.assignment_id)
    return session.scalars(query.with_for_update(skip_locked=True)).all()


def second_copies(session: Session, campaign_id: str) -> dict[tuple[str, int], Assignment]:
    """Those that nobody has, be they asked for or called off, by (task id, seed); not locked."""
    where = (Assignment.campaign_id == campaign_id, Assignment.copy == 1, Assignment.state.in_(("open", "cancelled")))
    return {(one.task_id, one.seed): one for one in session.scalars(select(Assignment).where(*where))}


def instances(session: Session, campaign_id: str) -> dict[tuple[str, int], str]:
    """State of every instance, by (task id, seed): its first copy's, or that of the second where the first came to nothing."""
    query = select(Assignment.task_id, Assignment.seed, state_that_counts(Assignment)).where(Assignment.campaign_id == campaign_id)
    states: dict[tuple[str, int], str] = {}
    for task_id, seed, state in session.execute(query.order_by(Assignment.copy)):
        if states.get((task_id, seed), VOID) == VOID:
            states[task_id, seed] = state
    return states


def begun(session: Session, campaign_id: str) -> set[tuple[str, int]]:
    """Instances of which one copy is with somebody, or done: the other copy is wanted whatever becomes of the queue."""
    query = select(Assignment.task_id, Assignment.seed)
    where = and_(Assignment.campaign_id == campaign_id, Assignment.state.in_(("leased", "finished")))
    return {(task_id, seed) for task_id, seed in session.execute(query.where(where))}


def put_back(assignment: Assignment, *, priority: float, now_s: float) -> None:
    """What was called off is asked for after all."""
    assignment.state, assignment.reason, assignment.priority, assignment.changed_at_s = "open", None, priority, now_s


def cancel(assignments: Collection[Assignment], reason: str, *, now_s: float) -> None:
    for assignment in assignments:
        assignment.state, assignment.reason, assignment.changed_at_s = "cancelled", reason, now_s


def flagged(session: Session, *, limit: int = 200) -> Sequence[Assignment]:
    """What somebody has to look at, the newest first."""
    query = select(Assignment).where(Assignment.state == "flagged").order_by(Assignment.changed_at_s.desc()).limit(limit)
    return session.scalars(query).all()


def _is_open_to(user_id: str, campaign_id: str | None, without: Collection[str], overdue_s: float | None) -> ColumnElement[bool]:
    """Of an assignment joined with its campaign (None: any campaign, but for those `without`). `overdue_s`: what is overdue then, too."""
    in_campaign = true() if campaign_id is None else Assignment.campaign_id == campaign_id
    in_campaign = and_(in_campaign, Assignment.campaign_id.not_in(list(without))) if without else in_campaign
    may_have = and_(may_work(user_id), ~_has_passed_on(user_id), ~_has_other_copy(user_id))
    return and_(Campaign.state == "active", in_campaign, _is_free(overdue_s), may_have)


def _is_free(overdue_s: float | None) -> ColumnElement[bool]:
    if overdue_s is None:
        return Assignment.state == "open"
    return or_(Assignment.state == "open", and_(Assignment.state == "leased", Assignment.lease_until_s <= overdue_s))


def _has_passed_on(user_id: str) -> ColumnElement[bool]:
    """One of the two copies, so that they are not asked for the other."""
    copy = aliased(Assignment)
    return exists().where(same_instance(copy, Assignment), Skip.assignment_id == copy.assignment_id, Skip.user_id == user_id)


def _has_other_copy(user_id: str) -> ColumnElement[bool]:
    """Two people annotate the two copies of an instance."""
    copy = aliased(Assignment)
    return exists().where(same_instance(copy, Assignment), copy.copy != Assignment.copy, copy.user_id == user_id)
