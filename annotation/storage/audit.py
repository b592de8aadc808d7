"""The audit log: who did what to whom. It is only ever appended to. Nothing secret belongs in it, no password, no token, no typed text."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from annotation.storage.schema import AuditEntry


def record(
    session: Session,
    action: str,
    *,
    now_s: float,
    user_id: str | None = None,
    subject: str | None = None,
    address: str | None = None,
    **detail: Any,
) -> None:
    """`action` as `noun.verb`, e.g. `login.failed`; `subject` the id of what it was done to; `user_id` None: from the command line."""
    session.add(AuditEntry(at_s=now_s, user_id=user_id, action=action, subject=subject, detail=detail, address=address))


def entries(
    session: Session, *, before: int | None = None, subject: str | None = None, action: str | None = None, limit: int = 100
) -> list[AuditEntry]:
    """The newest first; `before`: only those before this entry, to turn pages."""
    query = select(AuditEntry).order_by(AuditEntry.entry_id.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.entry_id < before)
    if subject is not None:
        query = query.where(AuditEntry.subject == subject)
    if action is not None:
        query = query.where(AuditEntry.action == action)
    return list(session.scalars(query))
