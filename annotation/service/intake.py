"""What the flywheel takes in: annotated runs and recordings that count, as episodes and rows of the warehouse's tables, and which of those
that were taken in count no longer. Reads the annotation database and its files, writes nothing; who stores the rows, and when, is
assets/people.py's.

A run counts once it is finished and nobody has to look at it any more, a recording once another person has approved it; until they are
rejected or withdrawn. A run that is disputed again after it was taken in stays until somebody has settled it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from agent.episode import Episode
from agent.prompt import PromptBuilder
from annotation.recording.samples import Recorded, attempt_of, recorded
from annotation.service.bundles import read_manifest
from annotation.service.export import exported
from annotation.service.recordings import parts_of
from annotation.service.review import verdict_that_stands, wrong_steps
from annotation.service.stored_runs import request_for
from annotation.storage import reviews, runs
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from annotation.storage.reviews import reviews_of
from annotation.storage.schema import Assignment, Recording, Run

Row = dict[str, Any]
JUDGE = "human"
COUNTS = ("none", "approved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run by its ids here and in the warehouse."""

    run_id: str
    episode_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Finished runs by what became of them, in the order of their ids; those that wait for a review are neither."""

    counting: tuple[Finished, ...]
    refused: tuple[Finished, ...]
    """Rejected or withdrawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run, ready to be stored: its episode, its rows of `annotations`, and the person's verdict as a row of `verdicts`."""

    episode: Episode
    annotations: tuple[Row, ...]
    verdict: Row | None


def standing(database: Database) -> Standing:
    with database.read() as session:
        query = select(Run, Assignment).join(Assignment, Assignment.assignment_id == Run.assignment_id)
        found = session.execute(query.where(Run.state == "finished").order_by(Run.run_id)).all()
    counting, refused = [], []
    for run, assignment in found:
        ids = Finished(run_id=run.run_id, episode_id=request_for(run, assignment).episode_id)
        if run.withdrawn_at_s is not None or run.review_state == "rejected":
            refused.append(ids)
        elif run.review_state in COUNTS:
            counting.append(ids)
    return Standing(counting=tuple(counting), refused=tuple(refused))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStanding:
    """Recordings by what became of them: id by the attempt of the episode that they are."""

    counting: dict[int, str]
    refused: dict[int, str]


def standing_recordings(database: Database) -> RecordingStanding:
    with database.read() as session:
        query = select(Recording.recording_id, Recording.state).order_by(Recording.recording_id)
        found = [(attempt_of(recording_id), recording_id, state) for recording_id, state in session.execute(query)]
    return RecordingStanding(
        counting={attempt: recording_id for attempt, recording_id, state in found if state == "approved"},
        refused={attempt: recording_id for attempt, recording_id, state in found if state in ("rejected", "withdrawn")},
    )


def take_recording(database: Database, store: PartStore, recording_id: str, builder: PromptBuilder) -> Recorded:
    """One recording, its samples as `builder` asks. What a reviewer called wrong teaches nothing. Raises BadUpload, UnknownSubject."""
    with database.read() as session:
        recording = session.get_one(Recording, recording_id)
        wrong = wrong_steps(reviews.of_recording(session, recording_id))
    parts = parts_of(store, recording)
    manifest = read_manifest(parts, recording.digest)
    digests = {screen.screen_id: screen.sha256 for screen in manifest.screens}
    return recorded(manifest, lambda screen_id: parts.get(digests[screen_id]) if screen_id in digests else None, builder, wrong=wrong)


def take(database: Database, blobs: Blobs, run_id: str) -> Taken:
    """One run. Steps that a reviewer called wrong teach nothing. Raises NotNow, UnknownSubject."""
    with database.read() as session:
        stored = runs.load(session, run_id)
        said = reviews_of(session, run_id)
    found, wrong = exported(stored, blobs), wrong_steps(said)
    return Taken(
        episode=found.episode,
        annotations=tuple(row for row in found.annotations if row["step_index"] not in wrong),
        verdict=_verdict(stored.run, found.episode.episode_id, verdict_that_stands(stored.run, said), reviewed=bool(said)),
    )


def _verdict(run: Run, episode_id: str, is_good: bool | None, *, reviewed: bool) -> Row | None:
    """A person's word, as `flywheel verdict` writes it."""
    if is_good is None or run.finished_at_s is None:
        return None
    reasons = [*([run.note] if run.note else []), "after a second opinion" if reviewed else "by whoever annotated it", f"by {run.user_id}"]
    return {
        "episode_id": episode_id, "judge": JUDGE, "judge_version": datetime.fromtimestamp(run.finished_at_s, UTC).isoformat(),
        "kind": "verdict", "origin": "human", "score": float(is_good), "threshold": 0.5, "passed": is_good, "reasons": reasons,
        "cost_tokens": None, "cost_ms": None,
    }  # fmt: skip
