"""Recordings as lists show them. Who may see which is recordings.py's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from sqlalchemy.orm import Session

from annotation.recordings.bundle import Track
from annotation.storage import accounts, recordings
from annotation.storage.schema import Recording
from annotation.wire.review import RecordingItem, RecordingList, RecordingState


def list_of(session: Session, *, user: str | None = None, state: RecordingState | None = None, limit: int) -> RecordingList:
    """Everybody's, the newest first. Raises UnknownSubject for a `user` who is nobody."""
    user_id = accounts.named(session, user).user_id if user is not None else None
    found, num = recordings.everybodys(session, user_id=user_id, state=state, limit=limit)
    names = accounts.names(session)
    return RecordingList(recordings=tuple(item_of(one, names, None) for one in found), num=num)


def item_of(one: Recording, names: Mapping[str, str], viewer_id: str | None) -> RecordingItem:
    """`names`: of accounts, by id; `viewer_id` None: nobody in particular."""
    summary = one.summary
    return RecordingItem(
        recording_id=one.recording_id,
        person=names.get(one.user_id, one.user_id),
        track=cast(Track | None, one.track),
        state=cast(RecordingState, one.state),
        query=summary.get("query", ""),
        applications=tuple(summary.get("applications", ())),
        num_actions=summary.get("num_actions", 0),
        length_s=summary.get("length_s", 0.0),
        is_executable=one.is_executable,
        is_own=one.user_id == viewer_id,
        created_at_s=one.created_at_s,
    )
