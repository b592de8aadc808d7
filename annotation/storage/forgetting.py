"""Erasing what a person gave, or one run of theirs, from the database: the only place that deletes rows. What was withdrawn
(withdrawals.py) still lies there; what is forgotten does not. That there was a run, an account, a review stays, as ids, times and opinions
that others' work depends on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from sqlalchemy import bindparam, delete, or_, select, text, update
from sqlalchemy.orm import Session

from annotation.storage import accounts, assignments, audit, logins, run_endings, runs
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.ids import digest_of
from annotation.storage.schema import (
    Assignment,
    AuditEntry,
    Draft,
    Login,
    LoginAttempt,
    Proposal,
    Recording,
    Review,
    Run,
    RunStep,
    Skip,
    User,
)
from warehouse.core.sqlite_files import compact_sqlite

FORGOTTEN = "forgotten"
TOUCHED = (
    "proposals",
    "run_steps",
    "drafts",
    "runs",
    "reviews",
    "recordings",
    "users",
    "logins",
    "login_attempts",
    "audit",
    "skips",
    "assignments",
)
"""Tables that hold what is erased; Postgres keeps old rows in them until they are written again."""
AT_ONCE = 500
"""Values in one question."""
_AS_IT_IS = {"synchronize_session": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What an account gave, by ids: runs whatever became of them, recordings that still have files, runs of others that it reviewed with
    words of its own."""

    runs: tuple[str, ...]
    live: tuple[str, ...]
    """Of the runs, those that are under way."""
    recordings: tuple[str, ...]
    reviewed: tuple[str, ...]


def given_by(session: Session, user_id: str) -> Given:
    found = session.execute(select(Run.run_id, Run.state).where(Run.user_id == user_id).order_by(Run.run_id)).all()
    own = select(Recording.recording_id).where(Recording.user_id == user_id).order_by(Recording.recording_id)
    reviewed = {
        review.run_id
        for review in session.scalars(select(Review).where(Review.reviewer_id == user_id, Review.run_id.is_not(None)))
        if review.note or any(step.get("note") for step in review.steps.values())
    }
    return Given(
        runs=tuple(run_id for run_id, _ in found),
        live=tuple(run_id for run_id, state in found if state == "live"),
        recordings=tuple(session.scalars(own)),
        reviewed=tuple(sorted(run_id for run_id in reviewed if run_id is not None)),
    )


def is_left(session: Session, run_ids: Collection[str], recording_ids: Collection[str]) -> bool:
    """Whether steps of the runs or files of the recordings are still there."""
    steps = select(RunStep.step_id).where(RunStep.run_id.in_(list(run_ids))).limit(1)
    files = select(Recording.recording_id).where(Recording.recording_id.in_(list(recording_ids)), Recording.erased_at_s.is_(None)).limit(1)
    return session.scalar(steps) is not None or session.scalar(files) is not None


def erase_runs(session: Session, blobs: Blobs, run_ids: Iterable[str], *, now_s: float) -> int:
    """Withdraw runs for good and erase all that was seen, proposed, typed and decided in them, with the pictures that no other run shows;
    how many steps went. May be done twice. Raises UnknownSubject."""
    ids = list(run_ids)
    found = [session.get(Run, run_id, with_for_update=True) or runs.get(session, run_id) for run_id in ids]
    for run in found:
        if run.state == "live" and runs.holds(run, assignment := session.get_one(Assignment, run.assignment_id)):
            assignments.release(session, assignment, now_s=now_s)
        runs.abandon(session, run.run_id, now_s=now_s)
        if run.state == "finished":
            run_endings.withdraw(session, run, now_s=now_s)
        run.instruction = run.note = None
    # On the disk first: after an interruption the names of what is left are known.
    blobs.erase(_pictures_of_these_alone(session, ids))
    steps = select(RunStep.step_id).where(RunStep.run_id.in_(ids))
    num = len(session.scalars(steps).all())
    session.execute(delete(Proposal).where(Proposal.step_id.in_(steps)), execution_options=_AS_IT_IS)
    session.execute(delete(RunStep).where(RunStep.run_id.in_(ids)), execution_options=_AS_IT_IS)
    session.execute(delete(Draft).where(Draft.run_id.in_(ids)), execution_options=_AS_IT_IS)
    _empty(session.scalars(select(Review).where(Review.run_id.in_(ids))))
    if num:
        for run_id in ids:
            audit.record(session, "run.erased", now_s=now_s, subject=run_id)
    return num


def forget_recording_rows(session: Session, recording_ids: Collection[str]) -> None:
    """Reviews of recordings; the recordings themselves are withdrawn and erased as always (service/recordings.py)."""
    _empty(session.scalars(select(Review).where(Review.recording_id.in_(list(recording_ids)))))


def erase_account(session: Session, user_id: str, *, now_s: float) -> None:
    """Take the name, the password, logins and their traces, and what was typed as reasons of skips and flags and as notes of reviews from
    an account, which stays as an id. What it wrote for others to work by (campaigns, applications, functions, queries) stays, too.
    May be done twice. Raises UnknownSubject, NotNow for the only account that may administer."""
    user = accounts.get(session, user_id, for_update=True)
    accounts.disable(session, user, now_s=now_s)
    session.execute(delete(LoginAttempt).where(LoginAttempt.name == digest_of(user.name)), execution_options=_AS_IT_IS)
    logins.end_all(session, user_id, now_s=now_s)
    session.execute(update(Login).where(Login.user_id == user_id).values(label=None, csrf_token=None), execution_options=_AS_IT_IS)
    session.execute(update(Skip).where(Skip.user_id == user_id).values(reason=""), execution_options=_AS_IT_IS)
    flagged = (Assignment.user_id == user_id, Assignment.reason.is_not(None))
    session.execute(update(Assignment).where(*flagged).values(reason=FORGOTTEN), execution_options=_AS_IT_IS)
    _empty(session.scalars(select(Review).where(Review.reviewer_id == user_id)))
    about = or_(AuditEntry.user_id == user_id, AuditEntry.subject == user_id)
    session.execute(update(AuditEntry).where(about).values(detail={}, address=None), execution_options=_AS_IT_IS)
    user.name, user.password_hash = f"{FORGOTTEN}-{user_id.removeprefix('user-')}"[:64], None
    audit.record(session, "account.forgotten", now_s=now_s, subject=user_id)


def is_forgotten(user: User) -> bool:
    return user.password_hash is None and user.name.startswith(f"{FORGOTTEN}-")


def compact(database: Database) -> None:
    """Have the files of the database hold what its rows hold and nothing older: SQLite keeps what was deleted in pages that are free, and
    both keep old rows. Raises NotNow where somebody else keeps SQLite's file open for reading."""
    if database.is_sqlite:
        connection = database.engine.raw_connection()
        try:
            compact_sqlite(cast(sqlite3.Connection, connection.driver_connection), database.name)
        finally:
            connection.close()
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
        for table in TOUCHED:
            alone.execute(text(f"vacuum full {table}"))


def _pictures_of_these_alone(session: Session, run_ids: Sequence[str]) -> set[str]:
    """Pictures that these runs show, also in what was asked of the policy, and no other run does. Whoever stores a step meanwhile keeps its
    picture once more afterwards (service/person.py)."""
    shown: set[str | None] = set()
    for screenshot_id, messages in session.execute(select(RunStep.screenshot_id, RunStep.messages).where(RunStep.run_id.in_(run_ids))):
        shown |= {screenshot_id, *(message.get("screenshot_id") for message in messages)}
    pictures = sorted(screenshot_id for screenshot_id in shown if screenshot_id is not None)
    some = RunStep.screenshot_id.in_(bindparam("some", expanding=True))
    others = select(RunStep.screenshot_id).where(RunStep.run_id.not_in(run_ids), some)
    for start in range(0, len(pictures), AT_ONCE):
        shown -= set(session.scalars(others, {"some": pictures[start : start + AT_ONCE]}))
    asked = select(RunStep.messages).where(RunStep.run_id.not_in(run_ids)).execution_options(yield_per=AT_ONCE)
    for messages in session.scalars(asked) if shown - {None} else ():
        shown -= {message.get("screenshot_id") for message in messages}
    return {screenshot_id for screenshot_id in shown if screenshot_id is not None}


def _empty(found: Iterable[Review]) -> None:
    """Opinions stay, words go."""
    for review in found:
        review.note = None
        review.steps = {index: {name: said for name, said in step.items() if name != "note"} for index, step in review.steps.items()}
