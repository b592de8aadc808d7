"""The status of a finished run: it counts, it waits for a review, it was rejected, or it was withdrawn. As conditions of queries, so that
lists, progress and the queue mean the same; what brings a run from one to another is run_endings.py's.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, case, exists, or_
from sqlalchemy.orm import aliased

from annotation.storage.instances import same_instance
from annotation.storage.schema import Assignment, Run

COUNTS = ("none", "approved")
"""States of review in which a finished run counts."""
_STATES = {"counts": COUNTS, "waiting": ("pending",), "rejected": ("rejected",)}
VOID = "void"
"""As the state of an assignment whose run came to nothing: it is wanted as if nobody had done it."""


def status_of(run: Run) -> str:
    """Of a finished run: counts, waiting, rejected or withdrawn."""
    if run.withdrawn_at_s is not None:
        return "withdrawn"
    return next(status for status, states in _STATES.items() if run.review_state in states)


def has_status(status: str) -> ColumnElement[bool]:
    """The same as a condition on finished runs."""
    if status == "withdrawn":
        return Run.withdrawn_at_s.is_not(None)
    return and_(Run.withdrawn_at_s.is_(None), Run.review_state.in_(_STATES[status]))


def state_that_counts(assignment: type[Assignment]) -> ColumnElement[str]:
    """An assignment's state, or VOID where it was finished for nothing: the run was rejected or taken back."""
    return case((_is_void(assignment), VOID), else_=assignment.state)


def copy_that_counts(assignment: type[Assignment]) -> ColumnElement[int]:
    """Which copy of its instance an assignment counts as: the second one stands in for a first that came to nothing."""
    first = aliased(Assignment)
    has_void_first = exists().where(same_instance(first, assignment), first.copy == 0, _is_void(first))
    return case((and_(assignment.copy == 1, has_void_first), 0), else_=assignment.copy)


def _is_void(assignment: type[Assignment]) -> ColumnElement[bool]:
    run = aliased(Run)
    came_to_nothing = or_(run.withdrawn_at_s.is_not(None), run.review_state == "rejected")
    of_it = exists().where(run.assignment_id == assignment.assignment_id, run.state == "finished", came_to_nothing)
    return and_(assignment.state == "finished", of_it)
