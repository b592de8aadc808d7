"""The change log of what the flywheel may take in: runs, recordings and withdrawals, numbered in the order of their commits, so that
nothing appears before what a reader has seen. In the database it is the table `landings`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.schema import Change


def append(session: Session, kind: str, subject_id: str, *, now_s: float) -> int:
    """Log a run, a recording or a withdrawal; its number. The caller holds a lock until its commit, so that numbers are committed in
    their order: call it last in a transaction."""
    lock(session, Change.__tablename__)
    row = Change(kind=kind, subject_id=subject_id, at_s=now_s)
    session.add(row)
    session.flush()
    return row.change_id


def num(session: Session, kinds: Sequence[str]) -> int:
    """How many runs or recordings were logged as one of these kinds; one that was logged again is counted once."""
    return session.scalar(select(func.count(Change.subject_id.distinct())).where(Change.kind.in_(kinds))) or 0
