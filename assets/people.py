"""What people did, taken in from the annotation server's database: here interactive annotations, in recordings.py recordings of their own
work. Every iteration takes what counts by then and none before it has taken; and before it makes its datasets it answers what was taken
back since, or called wrong by a reviewer, with tombstones. What counts is annotation/service/intake/intake.py's to say.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from agent.episode.episode import Episode
from agent.episode.rows import rows
from annotation.service.intake import intake
from annotation.service.intake.intake import Finished
from annotation.storage import changes
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database, default_url, has_default
from annotation.storage.migrating import open_database
from assets.iterations.handoff import INPUT
from assets.settings.profile import PeopleSettings
from assets.stages.metadata import data_version, describe
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.stages.stage_assets import stage_asset
from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home
from warehouse.datasets.provenance import PEOPLE, UNKNOWN, Source, add_sources
from warehouse.datasets.withdrawal import WITHDRAWABLE, withdraw, withdrawn_ids
from warehouse.storage.catalogue import TABLES
from warehouse.storage.content import content_digest
from warehouse.storage.tables import Warehouse

GROUP = "collection"
STAGE, RECORDED_STAGE, WITHDRAWALS = "human_annotations", "recordings", "withdrawals"
DATABASE_VARIABLE = "FLYWHEEL_ANNOTATION_DATABASE"
CHUNK_RUNS = 100
"""Runs whose pictures are in memory at once."""
RUN_TABLES = ("tasks", "steps", "episodes", "annotations", "verdicts")
"""In the order in which they are written: nothing names what is not there yet."""
Row = dict[str, Any]


def database_of(home: Home, settings: PeopleSettings) -> Database | None:
    """The annotation database of an installation; None without one. Raises ConfigError, DatabaseUnusable."""
    url = os.environ.get(DATABASE_VARIABLE) or settings.database
    if not settings.enabled or (url is None and not has_default(home)):
        return None
    return open_database(url or default_url(home))


def num_accepted(home: Home, settings: PeopleSettings) -> int:
    """How many runs and recordings were ever accepted since there is an annotation database; 0 without one."""
    database = database_of(home, settings)
    if database is None:
        return 0
    try:
        with database.read() as session:
            return changes.num(session, ("run", "recording"))
    finally:
        database.close()


@stage_asset(
    table="annotations",
    group_name=GROUP,
    deps=["released_policy", "tasks"],
    kinds={"deltalake"},
    description="Interactive annotation by people: what they finished since the iteration before.",
)
def human_annotations(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    warehouse, iteration = tables.warehouse, context.partition_key
    database = database_of(tables.home, profile.load().people)
    if database is None:
        return nothing_to_take(warehouse, iteration, STAGE, RUN_TABLES)
    try:
        by_status = intake.runs_by_status(database)
        elsewhere = episodes_taken(warehouse, STAGE, but=iteration)
        new = [run for run in by_status.counting if run.episode_id not in elsewhere]
        made, lost = _rows(warehouse, database, Blobs.of_home(tables.home), new, iteration)
    finally:
        database.close()
    num_runs, num_annotations = len(made["episodes"]), len(made["annotations"])
    decisions = Counter(row["decision"] for row in made["annotations"])
    num_kept = keep_others(warehouse, made, iteration, STAGE)
    wrote = store_rows(warehouse, iteration, STAGE, made)
    wrote["sources"] = add_sources(warehouse, [terms_of(profile.load().people)], iteration=iteration, stage=STAGE)
    for why in (*by_status.unreadable, *lost):
        context.log.warning(why)
    counts = {"runs": num_runs, "annotations": num_annotations, "unreadable": len(by_status.unreadable) + len(lost)}
    counts |= {"kept as they were": num_kept} | {f"decision/{name}": num for name, num in sorted(decisions.items())}
    return dg.MaterializeResult(
        data_version=data_version(content_digest(warehouse, RUN_TABLES, iteration=iteration, stage=STAGE)),
        metadata=describe(counts=counts, wrote=wrote),
    )


@stage_asset(
    group_name="datasets",
    deps=[INPUT],
    kinds={"deltalake"},
    description="What people took back, or a reviewer called wrong, since it was taken in: tombstones, before any dataset is made.",
)
def withdrawals(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    warehouse, iteration = tables.warehouse, context.partition_key
    database = database_of(tables.home, profile.load().people)
    if database is None:
        return dg.MaterializeResult(
            data_version=data_version("none"), metadata=describe(read=_versions(warehouse), note="nobody annotates here")
        )
    try:
        runs, recorded = intake.runs_by_status(database), intake.recordings_by_status(database)
        taken = episodes_taken(warehouse, STAGE)
        seconds = intake.seconds(database, [run for run in runs.counting if run.episode_id in taken])
    finally:
        database.close()
    read = _versions(warehouse)
    back = {run.episode_id for run in runs.refused if run.episode_id in taken}
    back |= {episode_id for episode_id, attempt in episodes_taken(warehouse, RECORDED_STAGE).items() if attempt in recorded.refused}
    counts = {"taken back": len(back), "rows": _take_back(warehouse, lambda row: row["episode_id"] in back, iteration)}
    wrong = {(episode_id, step) for episode_id, second in seconds.items() for step in second.wrong_steps}
    counts["rows of wrong steps"] = _take_back(warehouse, lambda row: (row["episode_id"], row["step_index"]) in wrong, iteration)
    changed = _say_again(warehouse, [second.verdict for second in seconds.values() if second.verdict is not None], iteration)
    counts["verdicts"] = len(changed)
    note = {}
    if changed:
        note["note"] = _routes_stand(warehouse, changed)
        context.log.warning(note["note"])
    metadata = describe(counts=counts, read=read, wrote=_versions(warehouse))
    said = content_digest(warehouse, ["verdicts"], iteration=iteration, stage=WITHDRAWALS)
    return dg.MaterializeResult(data_version=data_version(sorted(back), sorted(wrong), said), metadata=note | metadata)


def _versions(warehouse: Warehouse) -> dict[str, int]:
    """Of the tables that tombstones go to."""
    return {table: warehouse.version(table) for table in WITHDRAWABLE}


def terms_of(settings: PeopleSettings) -> Source:
    """Under which terms annotators give their decisions."""
    stated_by = "the profile" if settings.licence != UNKNOWN else ""
    return Source(source=PEOPLE, kind="people", licence=settings.licence, origin="decisions of annotators", stated_by=stated_by)


def nothing_to_take(warehouse: Warehouse, iteration: str, stage: str, tables: Sequence[str]) -> dg.MaterializeResult[None]:
    wrote = store_rows(warehouse, iteration, stage, {table: [] for table in tables})
    return dg.MaterializeResult(data_version=data_version("none"), metadata=describe(wrote=wrote, note="nobody annotates here"))


def episodes_taken(warehouse: Warehouse, stage: str, *, but: str | None = None) -> dict[str, int]:
    """Attempt by episode id, of what iterations have taken in; of all `but` one."""
    found = warehouse.read("episodes", stage=stage, columns=["iteration", "episode_id", "attempt"]).to_pylist()
    return {row["episode_id"]: row["attempt"] for row in found if row["iteration"] != but}


def _rows(
    warehouse: Warehouse, database: Database, blobs: Blobs, new: Sequence[Finished], iteration: str
) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of runs by table, and why runs could not be read: one whose picture is gone must not hold up all others. Screenshots are stored
    on the way, before anything names them."""
    made: dict[str, list[Row]] = {table: [] for table in RUN_TABLES}
    lost = []
    for start in range(0, len(new), CHUNK_RUNS):
        taken = []
        for run in new[start : start + CHUNK_RUNS]:
            try:
                taken.append(intake.take(database, blobs, run.run_id))
            except (FlywheelError, ValueError) as error:
                lost.append(f"run {run.run_id} is not taken in: {error}")
        add_episodes(warehouse, made, [one.episode for one in taken], iteration, STAGE)
        made["annotations"] += [row for one in taken for row in one.annotations]
        made["verdicts"] += [one.verdict for one in taken if one.verdict is not None]
    add_tasks(warehouse, made, iteration, STAGE)
    return made, lost


def add_episodes(warehouse: Warehouse, made: dict[str, list[Row]], episodes: Sequence[Episode], iteration: str, stage: str) -> None:
    """Episodes with their steps and tasks; their screenshots are stored at once."""
    found = rows(episodes)
    warehouse.add_screenshots(found["screenshots"], iteration=iteration, stage=stage)
    made["steps"] += found["steps"]
    made["episodes"] += found["episodes"]
    tasks = {episode.request.task.task_id: episode.request.task for episode in episodes}
    made["tasks"] += [{**task.model_dump(mode="json"), "task_id": task_id} for task_id, task in tasks.items()]


def add_tasks(warehouse: Warehouse, made: dict[str, list[Row]], iteration: str, stage: str) -> None:
    """Of the tasks those that no other partition has, each once."""
    known = warehouse.read("tasks", columns=["iteration", "stage", "task_id"])
    is_own = pc.and_(pc.equal(known["iteration"], iteration), pc.equal(known["stage"], stage))
    there = set(known.filter(pc.invert(is_own))["task_id"].to_pylist())
    made["tasks"] = [row for task_id, row in {row["task_id"]: row for row in made["tasks"]}.items() if task_id not in there]


def keep_others(warehouse: Warehouse, made: Mapping[str, list[Row]], iteration: str, stage: str, *, but: Collection[int] = ()) -> int:
    """Add what the partition holds of episodes that were not made again (their people took them back, somebody disputes them, something of
    theirs is gone), `but` of those attempts; how many there are. What was taken back is answered by tombstones and erased by a purge, which
    find it by its rows: were those gone, what was cut from it would be learned on, and its texts and pictures would lie there for good."""
    again = {row["episode_id"] for row in made["episodes"]}
    held = warehouse.read("episodes", iteration=iteration, stage=stage).to_pylist()
    others = [row for row in held if row["episode_id"] not in again and row["attempt"] not in but]
    if not others:
        return 0
    tasks = {row["task_id"] for row in others} - {row["task_id"] for row in made["tasks"]}
    wanted = {table: ("task_id", tasks) if table == "tasks" else ("episode_id", {row["episode_id"] for row in others}) for table in made}
    for table, (key, ids) in wanted.items():
        rows = warehouse.read(table, iteration=iteration, stage=stage)
        made[table].extend(rows.filter(pc.is_in(rows[key], value_set=pa.array(sorted(ids), pa.string()))).to_pylist())
    return len(others)


def store_rows(warehouse: Warehouse, iteration: str, stage: str, made: Mapping[str, Sequence[Row]]) -> dict[str, int]:
    return {table: warehouse.replace_partition(table, of_table, iteration=iteration, stage=stage) for table, of_table in made.items()}


_STEPS_OF = ("episode_id", "step_index", "prompt_episode_ids", "prompt_step_indices")


def _steps_behind(row: Row) -> list[Row]:
    """Every step, as `episode_id` and `step_index`, whose text the row holds."""
    prompts = zip(row.get("prompt_episode_ids") or (), row.get("prompt_step_indices") or (), strict=True)
    named = [(row["episode_id"], row["step_index"]), *prompts]
    return [{"episode_id": episode_id, "step_index": step} for episode_id, step in named if episode_id is not None]


def _take_back(warehouse: Warehouse, is_meant: Callable[[Row], bool], iteration: str) -> int:
    """Tombstones for annotations, and for every sample that holds text of their steps; how many are new."""
    num = 0
    for table in WITHDRAWABLE:
        (key,) = TABLES[table].key
        columns = {column.name for column in TABLES[table].columns} & {key, *_STEPS_OF}
        named = warehouse.read(table, columns=sorted(columns)).to_pylist()
        ids = {row[key] for row in named if any(map(is_meant, _steps_behind(row)))} - withdrawn_ids(warehouse, table)
        if ids:
            withdraw(warehouse, table, sorted(ids), iteration=iteration)
        num += len(ids)
    return num


def _routes_stand(warehouse: Warehouse, changed: Collection[str]) -> str:
    """What is to be done for verdicts on these episodes to count."""
    found = warehouse.read("episodes", stage=STAGE, columns=["iteration", "episode_id"]).to_pylist()
    iterations = sorted({row["iteration"] for row in found if row["episode_id"] in changed})
    options = " ".join(f"--iteration {one}" for one in iterations)
    return (
        f"{len(changed)} verdicts are others than when their runs were taken in. The routes of {', '.join(iterations)} stand until "
        f"they are routed again: flywheel reroute {options}"
    )


def _say_again(warehouse: Warehouse, verdicts: Sequence[Row], iteration: str) -> list[str]:
    """Verdicts of people that are others than the newest here; on which episodes. Their routes stand until they are routed again."""
    if not verdicts:
        return []
    said = warehouse.read("verdicts", columns=["episode_id", "judge", "judge_version", "passed"])
    newest: dict[str, tuple[str, bool]] = {}
    for row in said.filter(pc.equal(said["judge"], intake.JUDGE)).to_pylist():
        newest[row["episode_id"]] = max(newest.get(row["episode_id"], ("", False)), (row["judge_version"], row["passed"]))
    new = [row for row in verdicts if newest.get(row["episode_id"], ("", not row["passed"]))[1] != row["passed"]]
    if new:
        warehouse.append_partition("verdicts", new, iteration=iteration, stage=WITHDRAWALS)
    return [row["episode_id"] for row in new]
