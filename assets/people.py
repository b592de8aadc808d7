"""What people did, taken in from the annotation server's database: interactive annotations, and recordings of their own work. Every
iteration takes what counts by then and none before it has taken, and answers what was rejected or withdrawn since with tombstones, so that
the next snapshot of D_CT and D_SFT leaves it out. What counts is annotation/service/intake.py's to say.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from agent.episode import Episode
from agent.episode_rows import rows
from annotation.service import intake
from annotation.service.intake import Finished
from annotation.storage import landings
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database, default_url
from annotation.storage.migrating import open_database
from annotation.storage.parts import PartStore
from assets.metadata import data_version, describe
from assets.partitions import ITERATIONS
from assets.profile import PeopleSettings
from assets.resources import ProfileResource, WarehouseResource
from warehouse.errors import AnnotationError
from warehouse.home import Home
from warehouse.tables import Warehouse
from warehouse.withdrawal import withdraw, withdrawn_ids

GROUP = "collection"
STAGE, RECORDED_STAGE = "human_annotations", "recordings"
DATABASE_VARIABLE = "FLYWHEEL_ANNOTATION_DATABASE"
CHUNK_RUNS = 100
"""Runs whose pictures are in memory at once."""
TABLES = ("tasks", "steps", "episodes", "annotations", "verdicts")
RECORDED_TABLES = ("tasks", "steps", "episodes", "ct_samples")
"""In the order in which they are written: nothing names what is not there yet."""
Row = dict[str, Any]


def database_of(home: Home, settings: PeopleSettings) -> Database | None:
    """The annotation database of an installation; None where nobody annotates. Raises ConfigError, DatabaseUnusable."""
    url = os.environ.get(DATABASE_VARIABLE) or settings.database
    if not settings.enabled or (url is None and not (home.root / "annotation" / "annotation.db").is_file()):
        return None
    return open_database(url or default_url(home))


def num_landed(home: Home, settings: PeopleSettings) -> int:
    """How many runs and recordings have come to count since there is an annotation database; 0 without one."""
    database = database_of(home, settings)
    if database is None:
        return 0
    try:
        with database.read() as session:
            return landings.num(session, ("run", "recording"))
    finally:
        database.close()


@dg.asset(
    partitions_def=ITERATIONS,
    group_name=GROUP,
    deps=["released_policy", "tasks"],
    kinds={"deltalake"},
    description="Interactive annotation by people: what they finished since, and what of earlier iterations was taken back.",
)
def human_annotations(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource
) -> dg.MaterializeResult[None]:
    warehouse, iteration = tables.warehouse, context.partition_key
    database = database_of(tables.home, profile.load().people)
    if database is None:
        return _nothing(warehouse, iteration, STAGE, TABLES)
    try:
        standing = intake.standing(database)
        elsewhere = set(_taken_elsewhere(warehouse, iteration, STAGE))
        new = [run for run in standing.counting if run.episode_id not in elsewhere]
        made, lost = _rows(warehouse, database, Blobs.of_home(tables.home), new, iteration)
    finally:
        database.close()
    wrote = _store(warehouse, iteration, STAGE, made)
    for why in lost:
        context.log.warning(why)
    counts = {"runs": len(new) - len(lost), "annotations": len(made["annotations"]), "unreadable": len(lost)}
    counts |= {f"decision/{name}": num for name, num in sorted(Counter(row["decision"] for row in made["annotations"]).items())}
    counts["withdrawn"] = _take_back(warehouse, {run.episode_id for run in standing.refused} & elsewhere, iteration)
    return dg.MaterializeResult(
        data_version=data_version([run.run_id for run in new], sorted(run.run_id for run in standing.refused)),
        metadata=describe(counts=counts, wrote=wrote),
    )


@dg.asset(
    partitions_def=ITERATIONS,
    group_name=GROUP,
    deps=["tasks"],
    kinds={"deltalake"},
    description="People's own work, recorded thinking aloud: what was approved since joins D_CT, what was taken back leaves it.",
)
def recordings(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, warehouse, iteration = profile.load(), tables.warehouse, context.partition_key
    database = database_of(tables.home, settings.people)
    if database is None:
        return _nothing(warehouse, iteration, RECORDED_STAGE, RECORDED_TABLES)
    left_out: Counter[str] = Counter()
    made: dict[str, list[Row]] = {table: [] for table in RECORDED_TABLES}
    try:
        standing = intake.standing_recordings(database)
        elsewhere = _taken_elsewhere(warehouse, iteration, RECORDED_STAGE)
        taken = set(elsewhere.values())
        new = [recording_id for attempt, recording_id in standing.counting.items() if attempt not in taken]
        builder, store = settings.agent.builder(), PartStore.of_home(tables.home)
        lost = []
        for recording_id in new:
            try:
                found = intake.take_recording(database, store, recording_id, builder)
            except AnnotationError as error:
                lost.append(f"recording {recording_id} is left for a later iteration: {error}")
                continue
            _add(warehouse, made, [found.episode], iteration, RECORDED_STAGE)
            made["ct_samples"] += found.samples
            left_out.update(found.left_out)
    finally:
        database.close()
    _add_tasks(warehouse, made, iteration, RECORDED_STAGE)
    made["ct_samples"] = list({row["sample_id"]: row for row in made["ct_samples"]}.values())
    wrote = _store(warehouse, iteration, RECORDED_STAGE, made)
    for why in lost:
        context.log.warning(why)
    counts = {"recordings": len(new) - len(lost), "samples": len(made["ct_samples"]), "unreadable": len(lost)}
    counts |= {f"left out/{reason}": num for reason, num in sorted(left_out.items())}
    back = [episode_id for episode_id, attempt in elsewhere.items() if attempt in standing.refused]
    counts["withdrawn"] = _take_back(warehouse, back, iteration)
    return dg.MaterializeResult(
        data_version=data_version(sorted(row["sample_id"] for row in made["ct_samples"]), sorted(standing.refused.values())),
        metadata=describe(counts=counts, wrote=wrote),
    )


def _nothing(warehouse: Warehouse, iteration: str, stage: str, tables: Sequence[str]) -> dg.MaterializeResult[None]:
    wrote = _store(warehouse, iteration, stage, {table: [] for table in tables})
    return dg.MaterializeResult(data_version=data_version("none"), metadata=describe(wrote=wrote, note="nobody annotates here"))


def _taken_elsewhere(warehouse: Warehouse, iteration: str, stage: str) -> dict[str, int]:
    """Attempt by episode id, of what other iterations have taken in."""
    found = warehouse.read("episodes", stage=stage, columns=["iteration", "episode_id", "attempt"])
    rows = found.filter(pc.not_equal(found["iteration"], iteration)).to_pylist()
    return {row["episode_id"]: row["attempt"] for row in rows}


def _rows(
    warehouse: Warehouse, database: Database, blobs: Blobs, new: Sequence[Finished], iteration: str
) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of runs by table, and why runs could not be read: one whose picture is gone must not hold up all others. Screenshots are stored
    on the way, before anything names them."""
    made: dict[str, list[Row]] = {table: [] for table in TABLES}
    lost = []
    for start in range(0, len(new), CHUNK_RUNS):
        taken = []
        for run in new[start : start + CHUNK_RUNS]:
            try:
                taken.append(intake.take(database, blobs, run.run_id))
            except AnnotationError as error:
                lost.append(f"run {run.run_id} is left for a later iteration: {error}")
        _add(warehouse, made, [one.episode for one in taken], iteration, STAGE)
        made["annotations"] += [row for one in taken for row in one.annotations]
        made["verdicts"] += [one.verdict for one in taken if one.verdict is not None]
    _add_tasks(warehouse, made, iteration, STAGE)
    return made, lost


def _add(warehouse: Warehouse, made: dict[str, list[Row]], episodes: Sequence[Episode], iteration: str, stage: str) -> None:
    """Episodes with their steps and tasks; their screenshots are stored at once."""
    found = rows(episodes)
    warehouse.add_screenshots(found["screenshots"], iteration=iteration, stage=stage)
    made["steps"] += found["steps"]
    made["episodes"] += found["episodes"]
    tasks = {episode.request.task.task_id: episode.request.task for episode in episodes}
    made["tasks"] += [{**task.model_dump(mode="json"), "task_id": task_id} for task_id, task in tasks.items()]


def _add_tasks(warehouse: Warehouse, made: dict[str, list[Row]], iteration: str, stage: str) -> None:
    """Of the tasks those that no other partition has, each once."""
    known = warehouse.read("tasks", columns=["iteration", "stage", "task_id"])
    is_own = pc.and_(pc.equal(known["iteration"], iteration), pc.equal(known["stage"], stage))
    there = set(known.filter(pc.invert(is_own))["task_id"].to_pylist())
    made["tasks"] = [row for task_id, row in {row["task_id"]: row for row in made["tasks"]}.items() if task_id not in there]


def _store(warehouse: Warehouse, iteration: str, stage: str, made: Mapping[str, Sequence[Row]]) -> dict[str, int]:
    return {table: warehouse.replace_partition(table, of_table, iteration=iteration, stage=stage) for table, of_table in made.items()}


def _take_back(warehouse: Warehouse, episodes: Collection[str], iteration: str) -> int:
    """Tombstones for the annotations of these episodes, and for every sample that was cut from them; how many are new."""
    num = 0
    for table, key in (("annotations", "annotation_id"), ("sft_samples", "sample_id"), ("ct_samples", "sample_id")):
        found = warehouse.read(table, columns=[key, "episode_id"])
        is_theirs = pc.is_in(found["episode_id"], value_set=pa.array(sorted(episodes), pa.string()))
        ids = set(found.filter(is_theirs)[key].to_pylist()) - withdrawn_ids(warehouse, table)
        if ids:
            withdraw(warehouse, table, sorted(ids), iteration=iteration)
        num += len(ids)
    return num
