"""What the flywheel may take in, in the order of its commits: a reader keeps the number that it has seen, and asks for what came after."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.schema import Landing


def append(session: Session, kind: str, subject_id: str, *, now_s: float) -> int:
    """Land a run, a recording or a withdrawal; its number. Whoever lands holds a lock until its commit, so that numbers are committed in
    their order: call it last in a transaction."""
    lock(session, "landings")
    row = Landing(kind=kind, subject_id=subject_id, at_s=now_s)
    session.add(row)
    session.flush()
    return row.landing_id


def after(session: Session, number: int, *, limit: int | None = None) -> Sequence[Landing]:
    """What landed after a number, in order."""
    return session.scalars(select(Landing).where(Landing.landing_id > number).order_by(Landing.landing_id).limit(limit)).all()


def num(session: Session, kinds: Sequence[str]) -> int:
    """How many runs or recordings have landed as one of these kinds; one that landed again is counted once."""
    return session.scalar(select(func.count(Landing.subject_id.distinct())).where(Landing.kind.in_(kinds))) or 0


def newest(session: Session) -> int:
    """The number of what landed last; 0 where nothing has."""
    return session.scalar(select(func.max(Landing.landing_id))) or 0
