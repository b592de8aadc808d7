"""What the flywheel may take in, numbered in the order of its commits: nothing appears before what has been seen."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.schema import Landing


def append(session: Session, kind: str, subject_id: str, *, now_s: float) -> int:
    """Land a run, a recording or a withdrawal; its number. The caller holds a lock until its commit, so that numbers are committed in
    their order: call it last in a transaction."""
    lock(session, "landings")
    row = Landing(kind=kind, subject_id=subject_id, at_s=now_s)
    session.add(row)
    session.flush()
    return row.landing_id


def num(session: Session, kinds: Sequence[str]) -> int:
    """How many runs or recordings have landed as one of these kinds; one that landed again is counted once."""
    return session.scalar(select(func.count(Landing.subject_id.distinct())).where(Landing.kind.in_(kinds))) or 0
