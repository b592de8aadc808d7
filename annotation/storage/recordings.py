"""Recordings of people's own work: rows. Their parts are parts.py's, what may be done with them is service/recordings.py's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, defer

from annotation.storage import changes
from annotation.storage.database import lock
from annotation.storage.schema import Recording, TaskNode, TaskQuery
from warehouse.core.errors import NotNow, UnknownSubject

COMPLETE = ("pending", "approved", "rejected")
"""States in which others may see it."""
_UNFINISHED = (Recording.completed_at_s.is_(None), Recording.erased_at_s.is_(None))


def unknown(recording_id: str) -> UnknownSubject:
    return UnknownSubject(f"there is no recording {recording_id[:80]!r}, or it is somebody else's")


def announce(
    session: Session, recording_id: str, user_id: str, digest: str, parts: Sequence[dict[str, Any]], *, now_s: float
) -> tuple[Recording, set[str]]:
    """The row of a recording; what is announced again may have other parts as long as it is not complete. With it the digests that its
    last announcement named and that nothing names any more: the caller removes them before the transaction ends. Raises NotNow."""
    lock_parts(session, user_id)
    left: set[str] = set()
    found = session.get(Recording, recording_id, with_for_update=True)
    if found is None:
        found = Recording(
            recording_id=recording_id, user_id=user_id, digest=digest, parts=list(parts), summary={}, state="uploading", created_at_s=now_s
        )
        session.add(found)
    elif found.user_id != user_id:
        raise NotNow(f"{recording_id} is another person's recording: begin a new one")
    elif found.state == "uploading":
        left = digests(found.parts) - digests(parts)
        found.digest, found.parts, found.created_at_s, found.erased_at_s = digest, list(parts), now_s, None
        left -= parts_of_others(session, found) if left else set()
    elif found.state == "withdrawn" or found.digest != digest:
        raise NotNow(f"{recording_id} is {found.state} and stays as it is: record it again instead of changing it")
    session.flush()
    return found, left


def digests(parts: Iterable[dict[str, Any]]) -> set[str]:
    return {part["sha256"] for part in parts}


def is_named(session: Session, recording_id: str, user_id: str, sha256: str) -> bool:
    """Whether a recording of a person names a part, or another one of theirs does. Asked under `lock_parts`."""
    found = of_user(session, recording_id, user_id)
    return sha256 in digests(found.parts) or sha256 in parts_of_others(session, found)


def lock_parts(session: Session, user_id: str) -> None:
    """Held while recordings of a person are announced, completed or erased: what one relies on the other does not remove."""
    lock(session, f"parts of {user_id}")


def get(session: Session, recording_id: str) -> Recording:
    """Anybody's. Raises UnknownSubject."""
    found = session.get(Recording, recording_id)
    if found is None:
        raise unknown(recording_id)
    return found


def of_user(session: Session, recording_id: str, user_id: str, *, for_update: bool = False) -> Recording:
    """A person's own. Raises UnknownSubject, also for another's."""
    found = session.get(Recording, recording_id, with_for_update=for_update)
    if found is None or found.user_id != user_id:
        raise unknown(recording_id)
    return found


def seen_by(session: Session, recording_id: str, viewer_id: str, *, may_review: bool, for_update: bool = False) -> Recording:
    """One's own, or, for reviewers, what others completed and have not withdrawn. Raises UnknownSubject."""
    found = session.get(Recording, recording_id, with_for_update=for_update)
    if found is None or (found.user_id != viewer_id and not (may_review and found.state in COMPLETE)):
        raise unknown(recording_id)
    return found


def listed(session: Session, viewer_id: str, *, may_review: bool, limit: int) -> Sequence[Recording]:
    """What `seen_by` gives, the newest first."""
    allowed = Recording.user_id == viewer_id
    if may_review:
        allowed = or_(allowed, Recording.state.in_(COMPLETE))
    query = select(Recording).options(defer(Recording.parts)).where(allowed)
    return session.scalars(query.order_by(Recording.created_at_s.desc(), Recording.recording_id).limit(limit)).all()


def everybodys(session: Session, *, user_id: str | None, state: str | None, limit: int) -> tuple[Sequence[Recording], int]:
    """Of this account and in this state, or whatever they are, the newest first, and how many there are in all."""
    where = [] if user_id is None else [Recording.user_id == user_id]
    where += [] if state is None else [Recording.state == state]
    query = select(Recording).options(defer(Recording.parts)).where(*where)
    found = session.scalars(query.order_by(Recording.created_at_s.desc(), Recording.recording_id).limit(limit)).all()
    return found, session.scalar(select(func.count()).select_from(Recording).where(*where)) or 0


def waiting(session: Session, reviewer_id: str, *, limit: int) -> tuple[Sequence[Recording], int]:
    """What others recorded and nobody has judged, oldest first, and how much of it there is in all."""
    where = (Recording.state == "pending", Recording.user_id != reviewer_id)
    query = select(Recording).options(defer(Recording.parts)).where(*where)
    found = session.scalars(query.order_by(Recording.completed_at_s, Recording.recording_id).limit(limit)).all()
    return found, session.scalar(select(func.count()).select_from(Recording).where(*where)) or 0


def withdrawn(session: Session, *, also_erased: bool = False) -> Sequence[str]:
    """Ids of what was withdrawn and is not erased yet, or is (`also_erased`), in their order."""
    where = [] if also_erased else [Recording.erased_at_s.is_(None)]
    query = select(Recording.recording_id).where(Recording.state == "withdrawn", *where)
    return session.scalars(query.order_by(Recording.recording_id)).all()


def unfinished_of(session: Session, user_id: str) -> Sequence[Recording]:
    """What a person announced and never completed, and what was taken back before that, as long as its parts are kept."""
    return session.scalars(select(Recording).where(Recording.user_id == user_id, *_UNFINISHED)).all()


def unfinished_since(session: Session, before_s: float) -> Sequence[str]:
    """The same of everybody, where it was announced so long ago: ids in their order."""
    query = select(Recording.recording_id).where(*_UNFINISHED, Recording.created_at_s <= before_s)
    return session.scalars(query.order_by(Recording.recording_id)).all()


def untried(session: Session) -> list[str]:
    """Ids of what waits for a reviewer, names an environment, and was not tried there."""
    query = select(Recording.recording_id, Recording.summary).where(Recording.state == "pending", Recording.is_executable.is_(None))
    found = session.execute(query.order_by(Recording.completed_at_s))
    return [recording_id for recording_id, summary in found if summary.get("environment")]


def set_executable(session: Session, recording_id: str, is_executable: bool) -> None:
    """What came of trying it, which does not judge it."""
    found = session.get(Recording, recording_id, with_for_update=True)
    if found is not None and found.state in COMPLETE:
        found.is_executable = is_executable


def parts_of_others(session: Session, recording: Recording) -> set[str]:
    """Digests of the parts that the same person's other recordings name."""
    query = select(Recording.parts).where(Recording.user_id == recording.user_id, Recording.recording_id != recording.recording_id)
    return {part["sha256"] for parts in session.scalars(query) for part in parts}


def existing_query(session: Session, name: str) -> str | None:
    """The id of a query of the task design, where this is one."""
    return session.scalar(select(TaskQuery.query_id).where(TaskQuery.query_id == name))


def set_state(session: Session, recording: Recording, state: str, *, now_s: float) -> bool:
    """Whether it changed. What may be learned from lands, and what no longer may is withdrawn."""
    counted, changed = recording.state == "approved", recording.state != state
    recording.state = state
    session.flush()
    if counted != (state == "approved"):
        changes.append(session, "withdrawal" if counted else "recording", recording.recording_id, now_s=now_s)
    return changed


def num_by_query(session: Session) -> Counter[str]:
    """Recordings that were not refused or taken back, by query."""
    query = select(Recording.query_id, func.count())
    query = query.where(Recording.query_id.is_not(None), Recording.state.in_(("pending", "approved")))
    return Counter({str(query_id): num for query_id, num in session.execute(query.group_by(Recording.query_id))})


def num_by_application(session: Session) -> Counter[str]:
    """The same, by application."""
    query = (
        select(TaskNode.application_id, func.count())
        .join(TaskQuery, TaskQuery.node_id == TaskNode.node_id)
        .join(Recording, Recording.query_id == TaskQuery.query_id)
        .where(Recording.state.in_(("pending", "approved")))
        .group_by(TaskNode.application_id)
    )
    return Counter(dict(session.execute(query).all()))
