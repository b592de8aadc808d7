"""What workers leave in the warehouse: rows of episodes, steps and screenshots (screenshots first, so that no step names a missing
one), and training curves. One commit a table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.episode import Episode
from agent.episode_rows import rows
from pipelines.workers.context import WorkerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    rows: dict[str, list[dict[str, Any]]]
    versions: dict[str, int]
    counts: dict[str, int]


def store_episodes(context: WorkerContext, episodes: Sequence[Episode]) -> Stored:
    """Replace this stage's partition with these episodes."""
    made = rows(episodes)
    warehouse = context.warehouse
    versions = {"screenshots": warehouse.add_screenshots(made["screenshots"])} if made["screenshots"] else {}
    for table in ("steps", "episodes"):
        versions[table] = warehouse.replace_partition(table, made[table], iteration=context.iteration, stage=context.stage)
    outcomes = Counter(str(episode.outcome) for episode in episodes)
    counts = {"episodes": len(episodes), "steps": len(made["steps"]), **{f"outcome/{name}": num for name, num in sorted(outcomes.items())}}
    return Stored(rows=made, versions=versions, counts=counts)


def store_metrics(context: WorkerContext, checkpoint_id: str, curve: Iterable[tuple[int, Mapping[str, float]]]) -> int:
    """The curves of this stage's training run: (step or round, metrics)."""
    table_rows = [
        {"run": context.stage, "step": step, "metric": metric, "value": value, "checkpoint_id": checkpoint_id}
        for step, metrics in curve
        for metric, value in metrics.items()
        if math.isfinite(value)
    ]
    return context.warehouse.replace_partition("training_metrics", table_rows, iteration=context.iteration, stage=context.stage)
