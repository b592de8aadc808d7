"""Rows of episodes and steps, judged by the real filters in a DuckDB of their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.quality.config import QualityConfig
from warehouse.quality.filters import PART_EPISODES, iteration_verdicts, judge
from warehouse.quality.verdict_rows import VERDICTS_SCHEMA
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import Warehouse

CLICK_OK = 'Thought click "Ok" <button> [1] Action click [1]'
Row = dict[str, Any]


def episode_row(episode_id: str = "episode-1", **changes: Any) -> Row:
    row: Row = {
        "iteration": "0001",
        "stage": "rollouts",
        "episode_id": episode_id,
        "purpose": "rollout",
        "task_id": "task-a",
        "split": "train",
        "instruction": 'Click the "Ok" button.',
        "outcome": "success",
        "reward": 1.0,
        "task_name": "a",
        "domain": "d",
        "seed": 1,
        "attempt": 0,
        "policy_id": "p",
        "temperature": 1.0,
        "num_steps": 2,
        "num_retries": 0,
        "error": None,
        "duration_ms": 1.0,
        "environment": "e",
    }
    return row | changes


def step_row(index: int = 0, episode_id: str = "episode-1", **changes: Any) -> Row:
    row: Row = {
        "iteration": "0001",
        "stage": "rollouts",
        "episode_id": episode_id,
        "step_index": index,
        "screenshot_id": None,
        "observation": f'"Ok" <button> [1]\n"screen {index}" <text> [2]',
        "messages": [{"role": "user", "content": 'Click the "Ok" button.', "screenshot_id": None, "loss": 0.0}],
        "response": CLICK_OK,
        "thought": 'click "Ok" <button> [1]',
        "action": json.dumps({"kind": "click", "x": 10, "y": 20, "button": "left", "count": 1}),
        "policy_id": "p",
        "prompt_token_ids": [],
        "response_token_ids": [],
        "response_logprobs": [],
        "reward": 0.0,
        "latency_ms": 1.0,
    }
    return row | changes


def steps_of(episode: Row, num: int = 1, **changes: Any) -> list[Row]:
    """Steps in the partition of their episode."""
    own = {"iteration": episode["iteration"], "stage": episode["stage"]}
    return [step_row(index, episode["episode_id"], **own | changes) for index in range(num)]


def judged(
    episodes: list[Row],
    steps: list[Row],
    config: QualityConfig | None = None,
    *,
    iteration: str | None = None,
    part_episodes: int = PART_EPISODES,
    unverified: Sequence[str] = (),
    **tables: list[Row],
) -> list[Row]:
    """Rows of `verdicts`."""
    with duckdb.connect() as con, tempfile.TemporaryDirectory() as folder:
        rows = {"episodes": episodes, "steps": steps, "annotations": [], "task_instances": [], "screenshots": []} | tables
        for name, content in rows.items():
            con.register(name, pa.Table.from_pylist(content, schema=TABLES[name].schema))
        settings = config or QualityConfig()
        parts = judge(con, settings, iteration=iteration, cache=Path(folder), unverified=unverified, part_episodes=part_episodes)
        return [row for part in parts for row in part.to_pylist()]


def verdicts_of(warehouse: Warehouse, iteration: str, config: QualityConfig | None = None) -> pa.Table:
    """What the filters say of an iteration's episodes, not stored."""
    return pa.concat_tables([VERDICTS_SCHEMA.empty_table(), *iteration_verdicts(warehouse, iteration, config or QualityConfig())])


def by_judge(rows: list[Row], name: str) -> dict[str, Row]:
    return {row["episode_id"]: row for row in rows if row["judge"] == name}
