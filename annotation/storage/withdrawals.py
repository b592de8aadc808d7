"""Taking back what people gave, from the command line: single runs and recordings, or all that somebody ever gave. What a person may take
back of their own in the pages is service/review.py's and service/recordings.py's."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from annotation.storage import audit, recordings, run_endings
from annotation.storage.schema import Recording, Run
from warehouse.core.errors import UnknownSubject


def of_user(session: Session, user_id: str) -> list[str]:
    """Ids of a person's finished runs and of their recordings that still count, or may."""
    runs = select(Run.run_id).where(Run.user_id == user_id, Run.state == "finished", Run.withdrawn_at_s.is_(None))
    own = select(Recording.recording_id).where(Recording.user_id == user_id, Recording.state != "withdrawn")
    return [*session.scalars(runs.order_by(Run.run_id)), *session.scalars(own.order_by(Recording.recording_id))]


def withdraw(session: Session, ids: Sequence[str], reason: str, *, now_s: float) -> list[str]:
    """Those of the runs and recordings that were not withdrawn before: they disappear from the next version of every dataset. All or none.
    Raises UnknownSubject, NotNow for a run that is not finished."""
    return [subject for subject in ids if _withdraw(session, subject, reason, now_s)]


def _withdraw(session: Session, subject: str, reason: str, now_s: float) -> bool:
    run = session.get(Run, subject, with_for_update=True)
    recording = session.get(Recording, subject, with_for_update=True) if run is None else None
    if run is not None:
        kind, changed = "run", run_endings.withdraw(session, run, now_s=now_s)
    elif recording is not None:
        kind, changed = "recording", recordings.set_state(session, recording, "withdrawn", now_s=now_s)
    else:
        raise UnknownSubject(f"there is no run or recording {subject[:80]!r}")
    if changed:
        audit.record(session, f"{kind}.withdrawn", now_s=now_s, subject=subject, reason=reason)
    return changed
