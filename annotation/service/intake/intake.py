"""What the flywheel takes in: annotated runs and recordings that count, as episodes and rows of the warehouse's tables, and which of those
that were taken in count no longer. Reads the annotation database and its files, and writes nothing but what a model answers; who stores
the rows, and when, is assets/people.py's and assets/recordings.py's.

A run counts once it is finished and nobody has to look at it any more, a recording once another person has approved it; until they are
rejected or withdrawn. A run that is disputed again after it was taken in stays until somebody has settled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from agent.episode.episode import Episode
from agent.prompts.prompt import PromptBuilder
from annotation.recordings.redaction import Redactor, redacted_task
from annotation.recordings.samples import LOOKS_PRIVATE, KeepScreen, Recorded, attempt_of, recorded
from annotation.service.intake.export import exported
from annotation.service.intake.wording import Worded, Wording
from annotation.service.recordings.bundles import read_manifest
from annotation.service.recordings.executability import task_of
from annotation.service.recordings.recordings import parts_of
from annotation.service.review.review import verdict_that_stands, wrong_steps
from annotation.service.runs.stored_runs import request_for
from annotation.storage import reviews, runs
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from annotation.storage.reviews import by_run, reviews_of
from annotation.storage.run_status import COUNTS
from annotation.storage.schema import Assignment, Campaign, Recording, Review, Run
from sandbox.tasks.task import Split
from warehouse.core.errors import FlywheelError, NotNow, UnknownSubject
from warehouse.quality.personal_data import kinds_in

Row = dict[str, Any]
JUDGE = "human"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run by its ids here and in the warehouse."""

    run_id: str
    episode_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsByStatus:
    """Finished runs by what became of them, in the order of their ids; those that wait for a review are neither."""

    counting: tuple[Finished, ...]
    refused: tuple[Finished, ...]
    """Rejected or withdrawn."""
    unreadable: tuple[str, ...] = ()
    """Why some are neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run, ready to be stored: its episode, its rows of `annotations`, and the person's verdict as a row of `verdicts`."""

    episode: Episode
    annotations: tuple[Row, ...]
    verdict: Row | None


def runs_by_status(database: Database) -> RunsByStatus:
    with database.read() as session:
        query = select(Run, Assignment).join(Assignment, Assignment.assignment_id == Run.assignment_id)
        found = session.execute(query.where(Run.state == "finished").order_by(Run.run_id)).all()
    counting, refused, unreadable = [], [], []
    for run, assignment in found:
        try:
            ids = Finished(run_id=run.run_id, episode_id=request_for(run, assignment).episode_id)
        except (FlywheelError, ValueError) as error:
            unreadable.append(f"run {run.run_id} is of a task that is none any more: {error}")
            continue
        if run.withdrawn_at_s is not None or run.review_state == "rejected":
            refused.append(ids)
        elif run.review_state in COUNTS:
            counting.append(ids)
    return RunsByStatus(counting=tuple(counting), refused=tuple(refused), unreadable=tuple(unreadable))


def campaigns(database: Database) -> dict[str, str]:
    """The campaign's name by the episode id that each finished run has in the warehouse; runs of tasks that are none any more are left
    out."""
    with database.read() as session:
        query = select(Run, Assignment, Campaign.name).join(Assignment, Assignment.assignment_id == Run.assignment_id)
        query = query.join(Campaign, Campaign.campaign_id == Assignment.campaign_id).where(Run.state == "finished").order_by(Run.run_id)
        found = session.execute(query).all()
    names = {}
    for run, assignment, name in found:
        with suppress(FlywheelError, ValueError):
            names[request_for(run, assignment).episode_id] = name
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """The reviews of a run: the steps that they called wrong, and the verdict that stands, as a row of `verdicts`."""

    wrong_steps: frozenset[int]
    verdict: Row | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingsByStatus:
    """Recordings by what became of them: id by the attempt of the episode that they are."""

    counting: dict[int, str]
    refused: dict[int, str]


def recordings_by_status(database: Database) -> RecordingsByStatus:
    with database.read() as session:
        query = select(Recording.recording_id, Recording.state).order_by(Recording.recording_id)
        found = [(attempt_of(recording_id), recording_id, state) for recording_id, state in session.execute(query)]
    return RecordingsByStatus(
        counting={attempt: recording_id for attempt, recording_id, state in found if state == "approved"},
        refused={attempt: recording_id for attempt, recording_id, state in found if state in ("rejected", "withdrawn")},
    )


def take_recording(
    database: Database, store: PartStore, recording_id: str, builder: PromptBuilder, keep: KeepScreen, wording: Wording | None = None
) -> Recorded:
    """One recording, its samples as `builder` asks, and in other words where there is a `wording`. `keep` is given its pictures, one at a
    time. What a reviewer called wrong teaches nothing. What still looks private, which nobody but the recorder has looked for, becomes
    neither step nor sample, and is taken out of the task's words, also a model's. Raises BadUpload, UnknownSubject for one of which
    something is gone, NotNow for work on an instance that is evaluated on."""
    with database.read() as session:
        recording = session.get_one(Recording, recording_id)
        wrong = wrong_steps(reviews.of_recording(session, recording_id))
    parts = parts_of(store, recording)
    manifest = read_manifest(parts, recording.digest)
    task, seed = task_of(manifest.task), manifest.task.seed or 0
    if task is not None and task.split(seed) is not Split.TRAIN:
        raise NotNow(f"{recording_id} was recorded on {task.name}, seed {seed}, which is evaluated on: it is never learned from")
    digests = {screen.screen_id: screen.sha256 for screen in manifest.screens}
    if missing := parts.missing(digests.values()):
        raise UnknownSubject(
            f"{len(missing)} of the {len(digests)} pictures of {recording_id} are gone, e.g. part {missing[0]}: put them back from a "
            "backup, or withdraw it"
        )
    # A model is asked as if nothing had been taken out here: so it is not asked at all of a task that looks private.
    worded = wording.of(manifest, parts.answers(recording_id)) if wording is not None else Worded()
    named, *others = (one.model_copy(update={"task": redacted_task(one.task, Redactor())[0]}) for one in (manifest, *worded.others))
    found = recorded(
        named,
        lambda screen_id: parts.get(digests[screen_id]) if screen_id in digests else None,
        builder,
        keep=keep,
        also=others,
        wrong=wrong,
    )
    samples, variations = ([row for row in rows if not _looks_private(row)] for rows in (found.samples, found.variations))
    num_private = len(found.samples) + len(found.variations) - len(samples) - len(variations)
    num_private += found.left_out.get(LOOKS_PRIVATE, 0)
    counts = {LOOKS_PRIVATE: num_private, f"other words: {worded.problem}": worded.problem is not None}
    left_out = found.left_out | {reason: int(num) for reason, num in counts.items() if num}
    return replace(found, samples=samples, variations=variations, left_out=left_out)


def _looks_private(sample: Row) -> bool:
    return any(kinds_in(message["content"]) for message in sample["messages"])


def take(database: Database, blobs: Blobs, run_id: str) -> Taken:
    """One run. Raises NotNow, UnknownSubject."""
    with database.read() as session:
        stored = runs.load(session, run_id)
        said = reviews_of(session, run_id)
    found = exported(stored, blobs)
    second = _second(stored.run, found.episode.episode_id, said)
    return Taken(
        episode=found.episode,
        annotations=tuple(_rejected(row) if row["step_index"] in second.wrong_steps else row for row in found.annotations),
        verdict=second.verdict,
    )


def seconds(database: Database, taken: Sequence[Finished]) -> dict[str, Second]:
    """By episode id, the reviews of runs, of those that have one."""
    with database.read() as session:
        said = by_run(session, [run.run_id for run in taken])
        spoken_on = [run for run in taken if said[run.run_id]]
        return {run.episode_id: _second(session.get_one(Run, run.run_id), run.episode_id, said[run.run_id]) for run in spoken_on}


def _second(run: Run, episode_id: str, said: Sequence[Review]) -> Second:
    return Second(wrong_steps=frozenset(wrong_steps(said)), verdict=_verdict(run, episode_id, said))


def _rejected(row: Row) -> Row:
    """The decision stays, so that the step does not speak for itself; what was decided teaches nothing."""
    return {**row, "decision": "rejected", "response": None}


def _verdict(run: Run, episode_id: str, said: Sequence[Review]) -> Row | None:
    """A person's word, as `flywheel verdict` writes it. Its reasons are learned by who judges: what was noted of the task, never who."""
    is_good = verdict_that_stands(run, said)
    if is_good is None or run.finished_at_s is None:
        return None
    said_at = datetime.fromtimestamp(max([run.finished_at_s, *(one.created_at_s for one in said)]), UTC)
    notes = [run.note, *(one.note for one in said)]
    return {
        "episode_id": episode_id,
        "judge": JUDGE,
        "judge_version": said_at.isoformat(timespec="microseconds"),
        "kind": "verdict",
        "origin": "human",
        "score": float(is_good),
        "threshold": 0.5,
        "passed": is_good,
        "reasons": [note for note in notes if note and not kinds_in(note)],
        "cost_tokens": None,
        "cost_ms": None,
    }
