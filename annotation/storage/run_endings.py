"""How runs end: the person's verdict, whether somebody has to look at it, and whether it counts for the flywheel.

A run is looked at by a reviewer where the person and the verifier disagree, or two people who annotated the same instance. It counts
as soon as it is finished and nobody has to. One that counted and is disputed afterwards, by the second copy or by a reviewer, is not
taken in until somebody has settled it; what was taken in by then stays until it is rejected (service/intake.py). Who may settle what
is service/review.py's.
"""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from annotation.storage import assignments, changes, runs
from annotation.storage.database import lock
from annotation.storage.run_status import COUNTS
from annotation.storage.schema import Assignment, Run
from warehouse.core.errors import NotNow

_COPIES = (
    select(Run)
    .join(Assignment, Run.assignment_id == Assignment.assignment_id)
    .where(
        Assignment.campaign_id == bindparam("campaign"),
        Assignment.task_id == bindparam("task"),
        Assignment.seed == bindparam("seed"),
        Assignment.assignment_id != bindparam("own"),
        Run.state == "finished",
        Run.withdrawn_at_s.is_(None),
    )
    .order_by(Run.run_id)
    .with_for_update(of=Run)
)


def finish(session: Session, run_id: str, *, is_success: bool, note: str, now_s: float) -> Run:
    """The person's verdict closes a run and its assignment. Raises UnknownSubject, NotNow, AssignmentLost."""
    run, assignment = runs.hold(session, run_id, now_s=now_s)
    run.state, run.finished_at_s = "finished", now_s
    run.person_verdict, run.note = is_success, note or None
    assignments.finish(session, assignment, now_s=now_s)
    # Of two people who finish at once, the later one sees the earlier one's verdict.
    lock(session, f"copies of {assignment.campaign_id} {assignment.task_id} {assignment.seed}")
    disputed = run.verifier_verdict is not None and run.verifier_verdict != is_success
    others = [other for other in _copies(session, assignment) if _differ(session, run, other)]
    run.review_state = "pending" if disputed or others else "none"
    session.flush()
    for other in others:
        dispute(session, other, now_s=now_s)
    if run.review_state == "none":
        changes.append(session, "run", run_id, now_s=now_s)
    return run


def counts(run: Run) -> bool:
    """Whether the flywheel may learn from it: its newest change says so."""
    return run.state == "finished" and run.withdrawn_at_s is None and run.review_state in COUNTS


def dispute(session: Session, run: Run, *, now_s: float) -> None:
    """Somebody has to settle it before it counts again. What is settled or waits already stays as it is."""
    if run.review_state == "none":
        counted, run.review_state = counts(run), "pending"
        if counted:
            changes.append(session, "withdrawal", run.run_id, now_s=now_s)


def settle(session: Session, run: Run, *, approves: bool, now_s: float) -> None:
    """The verdict of the person who may settle it."""
    counted, run.review_state = counts(run), "approved" if approves else "rejected"
    if counts(run) != counted:
        changes.append(session, "withdrawal" if counted else "run", run.run_id, now_s=now_s)


def withdraw(session: Session, run: Run, *, now_s: float) -> bool:
    """Take a finished run back for good; whether it was not before. Raises NotNow."""
    if run.state != "finished":
        raise NotNow(f"run {run.run_id} is {run.state}: only what is finished can be withdrawn")
    if run.withdrawn_at_s is not None:
        return False
    counted, run.withdrawn_at_s = counts(run), now_s
    if counted:
        changes.append(session, "withdrawal", run.run_id, now_s=now_s)
    return True


def _copies(session: Session, assignment: Assignment) -> list[Run]:
    """Finished runs of others at the same instance in the same campaign."""
    of_instance = {"campaign": assignment.campaign_id, "task": assignment.task_id, "seed": assignment.seed, "own": assignment.assignment_id}
    return list(session.scalars(_COPIES, of_instance))


def _differ(session: Session, one: Run, other: Run) -> bool:
    """Whether two people disagree: about the whole, or, where both labelled what the same policy did, about a step that both saw."""
    if one.person_verdict != other.person_verdict:
        return True
    if one.policy_id != other.policy_id:
        return False
    mine, theirs = (_labels(session, run.run_id) for run in (one, other))
    return any(mine[seen] != theirs[seen] for seen in mine.keys() & theirs.keys())


def _labels(session: Session, run_id: str) -> dict[tuple[int, str], object]:
    """Of the steps of a run in mode relabel: what was said to be right, by step and what was seen. Other runs have none."""
    stored = runs.load(session, run_id)
    if stored.campaign.mode != "relabel":
        return {}
    return {(step.step_index, step.observation): step.action for step in stored.steps if step.decision is not None}
