"""What is left of a recording of a person's own work once its samples are withdrawn, or once it was taken back without having given any:
the texts of its episode and steps, and pictures that nothing else names. Erasing them is one part of withdrawal.purge; that an episode was
there, its ids and its numbers stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warehouse.storage.catalogue import WITHDRAWN_STAGE
from warehouse.storage.tables import Warehouse

STAGE = "recordings"
SAMPLES = "ct_samples"
ERASED = "erased"
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
    "episodes": {"instruction": None, "task_name": ERASED},
    "tasks": {"name": ERASED},
}
"""What stands in place of the content, by table. A task's name is made of what the person set out to do."""
_KEY = {"steps": "episode_id", "episodes": "episode_id", "tasks": "task_id"}


def erasable(warehouse: Warehouse, withdrawn: Collection[str], taken_back: Collection[str] = ()) -> dict[str, set[str]]:
    """By table, ids of what is of recordings alone all of whose samples are withdrawn: episodes (of `steps`, too), tasks, pictures.
    `withdrawn`: ids of withdrawn samples; `taken_back`: of episodes that count as withdrawn though they may have given no sample."""
    samples = warehouse.read(SAMPLES, columns=["sample_id", "episode_id", "stage"]).to_pylist()
    live = {row["episode_id"] for row in samples if row["stage"] != WITHDRAWN_STAGE and row["sample_id"] not in withdrawn}
    dead = {row["episode_id"] for row in samples if row["sample_id"] in withdrawn}.union(taken_back) - live
    episodes = warehouse.read("episodes", columns=["episode_id", "task_id", "stage"]).to_pylist()
    dead &= {row["episode_id"] for row in episodes if row["stage"] == STAGE}
    if not dead:
        return {"steps": set(), "episodes": set(), "tasks": set(), "screenshots": set()}
    tasks = {row["task_id"] for row in episodes if row["episode_id"] in dead} - {
        row["task_id"] for row in episodes if row["episode_id"] not in dead
    }
    shown: dict[bool, set[str]] = {True: set(), False: set()}
    for row in warehouse.read("steps", columns=["episode_id", "screenshot_id"]).to_pylist():
        shown[row["episode_id"] in dead].add(row["screenshot_id"])
    return {"steps": dead, "episodes": dead, "tasks": tasks, "screenshots": shown[True] - shown[False] - {None}}


def num_with_content(warehouse: Warehouse, ids: Mapping[str, Collection[str]]) -> int:
    """How many rows `erase` would empty or take out."""
    named = pa.array(sorted(ids["screenshots"]), pa.string())
    pictures = warehouse.dataset("screenshots").count_rows(filter=pc.field("screenshot_id").isin(named))
    return int(pictures) + sum(pc.sum(_is_full(table, warehouse.read(table, stage=STAGE), ids[table])).as_py() or 0 for table in EMPTY)


def erase(warehouse: Warehouse, table: str, ids: Collection[str]) -> int:
    """Empty rows of one of the tables, or take out pictures; how many. Pictures first, since steps say which they are: a purge that is cut
    off between the two is finished by the next."""
    if table == "screenshots":
        return warehouse.erase_screenshots(ids) if ids else 0
    found = warehouse.read(table, stage=STAGE)
    places = set(found.filter(_is_full(table, found, ids)).column("iteration").to_pylist())

    def emptied(rows: pa.Table) -> tuple[pa.Table, int]:
        is_full = _is_full(table, rows, ids)
        for name, value in EMPTY[table].items():
            if name in rows.column_names:
                place, field = rows.column_names.index(name), rows.schema.field(name)
                values = [value if full else old for full, old in zip(is_full.to_pylist(), rows.column(name).to_pylist(), strict=True)]
                rows = rows.set_column(place, field, pa.array(values, field.type))
        return rows, pc.sum(is_full).as_py() or 0

    return sum(warehouse.rewrite(table, emptied, iteration=iteration, stage=STAGE) for iteration in sorted(places))


def _is_full(table: str, rows: pa.Table, ids: Collection[str]) -> pa.ChunkedArray:
    """Which rows are meant and not empty yet."""
    marks = {"steps": "action", "episodes": "task_name", "tasks": "name"}
    is_meant = pc.is_in(rows.column(_KEY[table]), value_set=pa.array(sorted(ids), pa.string()))
    return pc.and_(is_meant, pc.not_equal(rows.column(marks[table]), EMPTY[table][marks[table]]))
