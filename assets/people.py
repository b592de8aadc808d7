"""What people did in the annotation server, taken in from its database: every iteration takes what counts by then and none before it has
taken, and answers what was rejected or withdrawn since with tombstones, so that the next snapshot of D_CT and D_SFT leaves it out. What
counts is annotation/service/intake.py's to say.
"""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from agent.episode_rows import rows
from annotation.service import intake
from annotation.service.intake import Finished
from annotation.storage import landings
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database, default_url
from annotation.storage.migrating import open_database
from assets.metadata import data_version, describe
from assets.partitions import ITERATIONS
from assets.profile import PeopleSettings
from assets.resources import ProfileResource, WarehouseResource
from warehouse.home import Home
from warehouse.tables import Warehouse
from warehouse.withdrawal import withdraw, withdrawn_ids

GROUP = "collection"
STAGE = "human_annotations"
DATABASE_VARIABLE = "FLYWHEEL_ANNOTATION_DATABASE"
CHUNK_RUNS = 100
"""Runs whose pictures are in memory at once."""
TABLES = ("tasks", "steps", "episodes", "annotations", "verdicts")
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
        wrote = _store(warehouse, iteration, {table: [] for table in TABLES})
        return dg.MaterializeResult(data_version=data_version("none"), metadata=describe(wrote=wrote, note="nobody annotates here"))
    try:
        standing = intake.standing(database)
        elsewhere = _taken_elsewhere(warehouse, iteration)
        new = [run for run in standing.counting if run.episode_id not in elsewhere]
        made = _rows(warehouse, database, Blobs.of_home(tables.home), new, iteration)
    finally:
        database.close()
    wrote = _store(warehouse, iteration, made)
    counts = {"runs": len(new), "annotations": len(made["annotations"])}
    counts |= {f"decision/{name}": num for name, num in sorted(Counter(row["decision"] for row in made["annotations"]).items())}
    counts["withdrawn"] = _take_back(warehouse, {run.episode_id for run in standing.refused} & elsewhere, iteration)
    return dg.MaterializeResult(
        data_version=data_version([run.run_id for run in new], sorted(run.run_id for run in standing.refused)),
        metadata=describe(counts=counts, wrote=wrote),
    )


def _taken_elsewhere(warehouse: Warehouse, iteration: str) -> set[str]:
    """Episodes of people that other iterations have taken in."""
    found = warehouse.read("episodes", stage=STAGE, columns=["iteration", "episode_id"])
    return set(found.filter(pc.not_equal(found["iteration"], iteration))["episode_id"].to_pylist())


def _rows(
    warehouse: Warehouse, database: Database, blobs: Blobs, new: Sequence[Finished], iteration: str
) -> dict[str, list[Row]]:
    """Rows by table. Screenshots are stored on the way, before anything names them."""
    known = warehouse.read("tasks", columns=["iteration", "stage", "task_id"])
    is_own = pc.and_(pc.equal(known["iteration"], iteration), pc.equal(known["stage"], STAGE))
    seen = set(known.filter(pc.invert(is_own))["task_id"].to_pylist())
    made: dict[str, list[Row]] = {table: [] for table in TABLES}
    for start in range(0, len(new), CHUNK_RUNS):
        taken = [intake.take(database, blobs, run.run_id) for run in new[start : start + CHUNK_RUNS]]
        of_episodes = rows(one.episode for one in taken)
        warehouse.add_screenshots(of_episodes["screenshots"], iteration=iteration, stage=STAGE)
        made["steps"] += of_episodes["steps"]
        made["episodes"] += of_episodes["episodes"]
        made["annotations"] += [row for one in taken for row in one.annotations]
        made["verdicts"] += [one.verdict for one in taken if one.verdict is not None]
        for task in (one.episode.request.task for one in taken):
            if task.task_id not in seen:
                seen.add(task.task_id)
                made["tasks"].append({**task.model_dump(mode="json"), "task_id": task.task_id})
    return made


def _store(warehouse: Warehouse, iteration: str, made: dict[str, list[Row]]) -> dict[str, int]:
    return {table: warehouse.replace_partition(table, made[table], iteration=iteration, stage=STAGE) for table in TABLES}


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
