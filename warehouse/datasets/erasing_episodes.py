"""What is left of episodes once they are to be erased: of a recording of a person's own work once its samples are withdrawn, or once it was
taken back without having given any; and of whatever was forgotten (pipelines/forgetting). Their texts go, and pictures that nothing else
names. Erasing them is one part of withdrawal.purge; that an episode was there, its ids and its numbers stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warehouse.core.stages import ERASED, IMPORTED_STAGE
from warehouse.storage.catalogue import WITHDRAWN_STAGE
from warehouse.storage.tables import Warehouse

STAGE = "recordings"
SAMPLES = "ct_samples"
UNSAID = "unsaid"
"""Beside tables: ids of episodes that stay, and whose verdicts by people lose their reasons."""
EMPTY: dict[str, dict[str, Any]] = {
    "steps": {
        "observation": "",
        "screenshot_id": None,
        "messages": [],
        "response": "",
        "thought": None,
        "prompt_token_ids": [],
        "response_token_ids": [],
        "response_logprobs": [],
        "response_versions": [],
        "action": f'{{"kind":"invalid","text":"","reason":"{ERASED}"}}',
    },
    "episodes": {"instruction": None, "error": ERASED, "task_name": ERASED, "fork_refused": ERASED},
    "tasks": {"name": ERASED},
    "verdicts": {"reasons": []},
    "routes": {"route": "withheld", "reason": ERASED, "cause": ERASED, "withheld_by": None, "demoted_by": None},
}
"""What stands in place of the content, by table; what was null stays so. A task's name is made of what the person set out to do."""
_KEY = {"steps": "episode_id", "episodes": "episode_id", "tasks": "task_id", "verdicts": "episode_id", "routes": "episode_id"}
_MARK = {"steps": "action", "episodes": "task_name", "tasks": "name", "verdicts": "reasons", "routes": "reason"}
"""The column that shows whether a row is empty."""


def erasable(
    warehouse: Warehouse,
    withdrawn: Collection[str],
    taken_back: Collection[str] = (),
    *,
    forgotten: Collection[str] = (),
    unsaid: Collection[str] = (),
) -> dict[str, set[str]]:
    """By table, ids of what is to be emptied: episodes (of `steps`, `verdicts` and `routes`, too), tasks, pictures; and `UNSAID`.

    `withdrawn`: ids of withdrawn samples, which take with them the recordings all of whose samples they are; `taken_back`: of episodes of
    recordings that count as withdrawn though they may have given no sample; `forgotten`: of episodes of any kind; `unsaid`: of episodes
    that stay, without the reasons of what people say of them.
    """
    samples = warehouse.read(SAMPLES, columns=["sample_id", "episode_id", "stage"]).to_pylist()
    live = {row["episode_id"] for row in samples if row["stage"] != WITHDRAWN_STAGE and row["sample_id"] not in withdrawn}
    dead = {row["episode_id"] for row in samples if row["sample_id"] in withdrawn}.union(taken_back) - live
    episodes = warehouse.read("episodes", columns=["episode_id", "task_id", "stage"]).to_pylist()
    dead &= {row["episode_id"] for row in episodes if row["stage"] == STAGE}
    dead |= {row["episode_id"] for row in episodes} & set(forgotten)
    found: dict[str, set[str]] = {**{table: set(dead) for table in EMPTY}, "tasks": set(), "screenshots": set(), UNSAID: set(unsaid)}
    if not dead:
        return found
    tasks = {row["task_id"] for row in episodes if row["episode_id"] in dead}
    shown: dict[bool, set[str]] = {True: set(), False: set()}
    for row in warehouse.read("steps", columns=["episode_id", "screenshot_id"]).to_pylist():
        shown[row["episode_id"] in dead].add(row["screenshot_id"])
    found["tasks"] = tasks - {row["task_id"] for row in episodes if row["episode_id"] not in dead}
    found["screenshots"] = shown[True] - shown[False] - {None}
    return found


def num_with_content(warehouse: Warehouse, ids: Mapping[str, Collection[str]]) -> int:
    """How many rows `erase` would empty or take out."""
    return sum(rows_with_content(warehouse, ids).values())


def rows_with_content(warehouse: Warehouse, ids: Mapping[str, Collection[str]]) -> dict[str, int]:
    """The same, by table."""
    named = pa.array(sorted(ids["screenshots"]), pa.string())
    pictures = warehouse.dataset("screenshots").count_rows(filter=pc.field("screenshot_id").isin(named)) if len(named) else 0
    of_tables = {table: len(_places(warehouse, table, ids)) for table in EMPTY}
    return {table: num for table, num in {**of_tables, "screenshots": int(pictures)}.items() if num}


def erase(warehouse: Warehouse, table: str, ids: Mapping[str, Collection[str]]) -> int:
    """Empty rows of one of the tables, or take out pictures; how many. `ids`: as `erasable` gives them. Pictures first, since steps say
    which they are: a purge that is cut off between the two is finished by the next."""
    if table == "screenshots":
        return warehouse.erase_screenshots(ids[table]) if ids[table] else 0

    def emptied(rows: pa.Table) -> tuple[pa.Table, int]:
        is_full = _is_full(table, rows, ids)
        for name, value in EMPTY[table].items():
            if name in rows.column_names:
                place, field = rows.column_names.index(name), rows.schema.field(name)
                found = zip(is_full.to_pylist(), rows.column(name).to_pylist(), strict=True)
                values = [value if full and old is not None else old for full, old in found]
                rows = rows.set_column(place, field, pa.array(values, field.type))
        return rows, pc.sum(is_full).as_py() or 0

    places = sorted(set(_places(warehouse, table, ids)))
    return sum(warehouse.rewrite(table, emptied, iteration=iteration, stage=stage) for iteration, stage in places)


def _places(warehouse: Warehouse, table: str, ids: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Iteration and stage of every row that is meant and not empty yet."""
    if not ids[table] and not (table == "verdicts" and ids[UNSAID]):
        return []
    who = ["origin"] if table == "verdicts" else []
    rows = warehouse.read(table, columns=["iteration", "stage", _KEY[table], _MARK[table], *who])
    rows = rows.filter(_is_full(table, rows, ids))
    found = zip(rows["iteration"].to_pylist(), rows["stage"].to_pylist(), strict=True)
    # A task of a source keeps its name.
    return [(iteration, stage) for iteration, stage in found if table != "tasks" or stage == STAGE or stage.startswith(IMPORTED_STAGE)]


def _is_full(table: str, rows: pa.Table, ids: Mapping[str, Collection[str]]) -> pa.ChunkedArray:
    """Which rows are meant and not empty yet."""
    mark, empty = rows.column(_MARK[table]), EMPTY[table][_MARK[table]]
    is_meant = _is_in(rows.column(_KEY[table]), ids[table])
    if table == "verdicts":
        is_by_people = pc.and_(_is_in(rows.column(_KEY[table]), ids[UNSAID]), pc.equal(rows.column("origin"), "human"))
        is_meant = pc.or_(is_meant, is_by_people)
    differs = pc.greater(pc.list_value_length(mark), 0) if empty == [] else pc.not_equal(mark, empty)
    return pc.and_(is_meant, pc.fill_null(differs, False))


def _is_in(column: pa.ChunkedArray, ids: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(sorted(ids), pa.string()))
