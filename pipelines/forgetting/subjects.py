"""Who or what is to be forgotten, and where their data is: an account's runs and recordings, the episodes and samples of an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from pipelines.cli.annotate.options import opened_if_there
from warehouse.core.errors import ConfigError, FlywheelError, UnknownId, UnknownSubject
from warehouse.core.identity import content_id
from warehouse.core.stages import GENERAL_STAGE, IMPORT_STAGES, IMPORTED_STAGE, MANUALS_STAGE, SEED_ITERATION
from warehouse.datasets import erasing_episodes
from warehouse.lineage.descent import Start
from warehouse.storage.tables import Warehouse

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session

    from annotation.storage.database import Database

Kind = Literal["person", "episode", "import"]
EXAMPLES = "--person NAME, --episode ID or --import NAME"


class Subject(BaseModel):
    """`name` is the id of a person's account, of an episode, or the stage of an import; never a person's name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    name: str

    @property
    def forget_id(self) -> str:
        return content_id("forget", [self.kind, self.name])

    @property
    def folder(self) -> str | None:
        """Of an import, its folder below FLYWHEEL_HOME/imports, which is what its lock is named by, too."""
        return self.name.removeprefix(IMPORTED_STAGE) if self.kind == "import" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the subject gave: where the walk of lineage starts, and what the annotation server holds of it."""

    start: Start
    runs: tuple[str, ...] = ()
    live_runs: tuple[str, ...] = ()
    recordings: tuple[str, ...] = ()
    account: str | None = None
    """Id of an account that is to be forgotten, too."""
    is_left: bool = False
    """The annotation server still holds something of it."""


def subject_of(warehouse: Warehouse, *, person: str | None, episode: str | None, import_: str | None) -> Subject:
    """Exactly one is given. Raises ConfigError, UnknownSubject for a person, UnknownId for an unknown episode or import."""
    given = [one for one in (person, episode, import_) if one is not None]
    if len(given) != 1:
        raise ConfigError(f"say what to forget, one thing at a time: {EXAMPLES}; {len(given)} were given")
    if person is not None:
        return Subject(kind="person", name=_account(warehouse, person))
    if episode is not None:
        return Subject(kind="episode", name=_episode(warehouse, episode))
    return Subject(kind="import", name=_stage(warehouse, import_ or ""))


def given_by(warehouse: Warehouse, subject: Subject) -> Given:
    """What there is of it now. Raises UnknownSubject."""
    if subject.kind == "import":
        return Given(start=_imported(warehouse, subject.name))
    with opened_if_there(warehouse.home) as database:
        if database is None:
            return Given(start=Start(episodes=frozenset({subject.name} if subject.kind == "episode" else ())))
        return _of_person(warehouse, database, subject.name) if subject.kind == "person" else _of_episode(warehouse, database, subject.name)


def _of_person(warehouse: Warehouse, database: Database, user_id: str) -> Given:
    from annotation.recordings.samples import attempt_of
    from annotation.storage import accounts, forgetting

    with database.read() as session:
        given = forgetting.given_by(session, user_id)
        of_runs, of_reviewed = _episodes_of(session, given.runs), _episodes_of(session, given.reviewed)
        is_left = forgetting.is_left(session, given.runs, given.recordings)
        is_left |= not forgetting.is_forgotten(accounts.get(session, user_id))
    attempts = {attempt_of(recording_id) for recording_id in given.recordings}
    recorded = _recorded(warehouse)
    episodes = frozenset(of_runs.values()) | {episode_id for episode_id, attempt in recorded.items() if attempt in attempts}
    return Given(
        start=Start(episodes=episodes, annotator=user_id, judged=frozenset(of_reviewed.values()) - episodes),
        runs=given.runs,
        live_runs=given.live,
        recordings=given.recordings,
        account=user_id,
        is_left=is_left,
    )


def _of_episode(warehouse: Warehouse, database: Database, episode_id: str) -> Given:
    """An episode that a person played or recorded is forgotten in the annotation database, too, or it would be taken in again."""
    from sqlalchemy import select

    from annotation.recordings.samples import attempt_of
    from annotation.storage import forgetting
    from annotation.storage.schema import Recording, Run

    attempt = _recorded(warehouse).get(episode_id)
    with database.read() as session:
        of_runs = _episodes_of(session, session.scalars(select(Run.run_id)).all())
        runs = tuple(run_id for run_id, of in of_runs.items() if of == episode_id)
        live = tuple(run_id for run_id in runs if session.get_one(Run, run_id).state == "live")
        ids = session.scalars(select(Recording.recording_id)).all() if attempt is not None else ()
        recordings = tuple(recording_id for recording_id in ids if attempt_of(recording_id) == attempt)
        is_left = forgetting.is_left(session, runs, recordings)
    start = Start(episodes=frozenset({episode_id}))
    return Given(start=start, runs=runs, live_runs=live, recordings=recordings, is_left=is_left)


def _episodes_of(session: Session, run_ids: Collection[str]) -> dict[str, str]:
    """The episode that each run is in the tables, whether it was taken in or not; none of a run whose task is none any more."""
    from sqlalchemy import select

    from annotation.service.runs.stored_runs import request_for
    from annotation.storage.schema import Assignment, Run

    query = select(Run, Assignment).join(Assignment, Assignment.assignment_id == Run.assignment_id)
    found = {}
    for run, assignment in session.execute(query.where(Run.run_id.in_(list(run_ids))).order_by(Run.run_id)):
        try:
            found[run.run_id] = request_for(run, assignment).episode_id
        except (FlywheelError, ValueError):
            continue
    return found


def _recorded(warehouse: Warehouse) -> dict[str, int]:
    """Attempt by episode id, of recordings of people's own work."""
    rows = warehouse.read("episodes", stage=erasing_episodes.STAGE, columns=["episode_id", "attempt"]).to_pylist()
    return {row["episode_id"]: row["attempt"] for row in rows}


def _imported(warehouse: Warehouse, stage: str) -> Start:
    ids = {}
    for table, key in (("episodes", "episode_id"), ("sft_samples", "sample_id"), ("ct_samples", "sample_id")):
        ids[table] = warehouse.read(table, iteration=SEED_ITERATION, stage=stage, columns=[key]).column(key).to_pylist()
    return Start(episodes=frozenset(ids["episodes"]), samples=frozenset(ids["sft_samples"] + ids["ct_samples"]))


def _account(warehouse: Warehouse, name: str) -> str:
    """By name or by id."""
    from annotation.storage import accounts
    from annotation.storage.schema import User

    with opened_if_there(warehouse.home) as database:
        if database is None:
            raise UnknownSubject(f"there is no person {name[:80]!r}: {warehouse.home.root} has no annotation database, so no accounts")
        with database.read() as session:
            user = session.get(User, name)
            return (user or accounts.named(session, name)).user_id


def _episode(warehouse: Warehouse, name: str) -> str:
    ids = warehouse.read("episodes", columns=["episode_id"]).column("episode_id")
    found = sorted(set(ids.filter(pc.starts_with(ids, name)).to_pylist())) if name else []
    if name in found or len(found) == 1:
        return name if name in found else found[0]
    if found:
        raise UnknownId(f"--episode {name!r} is ambiguous: it may be {', '.join(found[:5])}. Give more of it")
    raise UnknownId(f'there is no episode {name!r} in {warehouse.home.root}; `flywheel sql "from episodes"` lists them')


def _stage(warehouse: Warehouse, name: str) -> str:
    named = {file.stage for table in ("episodes", "ct_samples", "sft_samples") for file in warehouse.listed(table)[1]}
    folder = warehouse.home.root / "imports"
    kept = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    named |= {one if one.startswith((GENERAL_STAGE, MANUALS_STAGE)) else f"{IMPORTED_STAGE}{one}" for one in kept}
    imports = sorted(stage for stage in named if stage.startswith(IMPORT_STAGES))
    found = [stage for stage in (name, *(f"{begin}{name}" for begin in IMPORT_STAGES)) if stage in imports]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownId(f"--import {name!r} may be {' or '.join(found)}: give the stage")
    there_are = ", ".join(imports) or "none"
    raise UnknownId(
        f"there is no import {name!r} of demonstrations, general data or manuals in {warehouse.home.root}; there are: {there_are}. A set "
        "of tasks holds nobody's episodes: take it out of the profile's tasks.lists"
    )
