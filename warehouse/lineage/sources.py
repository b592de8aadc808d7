"""Which sources the samples of a dataset come from: the task list that was played, the judge who gave V, the annotator and the campaign
that corrected, the import that brought them, and for every sample what kind it is and of which iteration. Read from the tables that lineage
reads; which source is to blame for something is blame.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.core.errors import UnknownId
from warehouse.core.stages import IMPORT_STAGES, SEED_ITERATION
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

DIMENSIONS = ("judge", "annotator", "campaign", "import", "task list", "collection")
"""In what ways samples have a source. `collection` is the kind of sample and the iteration that made it: every sample has one."""
_TABLES = ("datasets", "ct_samples", "sft_samples", "episodes", "tasks", "annotations", "routes")
_TRACED = """
with members as (
    from datasets where dataset_id = $dataset
    qualify row_number() over (partition by kind, sample_id order by iteration) = 1 and iteration = min(iteration) over ()
),
samples as (
    select 'ct' as kind, * exclude (messages) from ct_samples union all by name select 'sft' as kind, * exclude (messages) from sft_samples
),
first_samples as (from samples qualify row_number() over (partition by kind, sample_id order by iteration, stage) = 1),
first_episodes as (from episodes qualify row_number() over (partition by episode_id order by iteration, stage) = 1),
first_annotations as (from annotations qualify row_number() over (partition by annotation_id order by iteration, stage) = 1),
first_routes as (from routes qualify row_number() over (partition by episode_id order by iteration, stage) = 1),
lists as (select task_id, min(source) as source from tasks group by task_id)
select d.kind, d.sample_id, d.component, d.weight, s.iteration, s.stage, s.origin, s.episode_id, s.annotation_id, s.withdrawn,
    e.task_name, e.seed, t.source, a.annotator, r.decided_by
from members d
join first_samples s on s.kind = d.kind and s.sample_id = d.sample_id
left join first_episodes e on e.episode_id = s.episode_id
left join first_annotations a on a.annotation_id = s.annotation_id
left join first_routes r on r.episode_id = s.episode_id
left join lists t on t.task_id = e.task_id
order by d.kind, d.sample_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One sample of a dataset with where it is from: `sources` by dimension, those that it has."""

    sample_id: str
    table: str
    weight: float
    episode_id: str | None
    annotation_id: str | None
    task: str | None
    seed: int | None
    sources: Mapping[str, str]


def traced(warehouse: Warehouse, dataset_id: str, *, campaigns: Mapping[str, str] | None = None) -> list[Traced]:
    """The samples of a dataset that were not withdrawn since, in the order in which a stage reads them. `campaigns`: names by episode id,
    which the annotation server knows. Raises UnknownId for a dataset that is not there."""
    with connect(warehouse, tables=_TABLES) as con:
        rows = con.sql(_TRACED, params={"dataset": dataset_id}).to_arrow_table().to_pylist()
    if not rows:
        raise UnknownId(f"no dataset {dataset_id} in {warehouse.home.root} holds a sample: nothing leads back from it")
    return [_traced(row, campaigns or {}) for row in rows if not row["withdrawn"]]


def num_members(warehouse: Warehouse, dataset_id: str) -> int:
    """How many samples a dataset had when it was made, withdrawn ones included."""
    with connect(warehouse, tables=["datasets"]) as con:
        query = "select count(distinct (kind, sample_id)) from datasets where dataset_id = ?"
        return int(con.execute(query, [dataset_id]).fetchall()[0][0])


def _traced(row: Mapping[str, Any], campaigns: Mapping[str, str]) -> Traced:
    is_imported = row["iteration"] == SEED_ITERATION and row["stage"].startswith(IMPORT_STAGES)
    made = row["component"] if row["component"] == row["origin"] else f"{row['origin']} ({row['component']})"
    found = {
        "judge": row["decided_by"] if row["origin"] in ("rollout", "gateway") else None,
        "annotator": row["annotator"],
        "campaign": campaigns.get(row["episode_id"]),
        "import": row["stage"].partition("_")[2] if is_imported else None,
        "task list": row["source"],
        "collection": made if row["iteration"] == SEED_ITERATION else f"{made} of {row['iteration']}",
    }
    return Traced(
        sample_id=row["sample_id"],
        table=f"{row['kind']}_samples",
        weight=row["weight"],
        episode_id=row["episode_id"],
        annotation_id=row["annotation_id"],
        task=row["task_name"],
        seed=row["seed"],
        sources={dimension: str(found[dimension]) for dimension in DIMENSIONS if found[dimension]},
    )
