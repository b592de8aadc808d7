"""What workers leave behind: in the warehouse rows of episodes, steps and screenshots (screenshots first, so that no step names a missing
one), training curves, and checkpoints, whose folders get their place here. One commit a table.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.episode import Episode
from agent.episode_rows import rows
from models.checkpoint import Card, move, verify
from pipelines.workers.context import WorkerContext
from warehouse import registry
from warehouse.errors import CheckpointError

CHUNK_BYTES = 128 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    rows: dict[str, list[dict[str, Any]]]
    versions: dict[str, int]
    counts: dict[str, int]


def store_episodes(context: WorkerContext, episodes: Iterable[Episode]) -> Stored:
    """Replace this stage's partition with these episodes. Of an iterator's no more are in memory at once than have CHUNK_BYTES of
    screenshots, each with a commit of their own; rows of steps and episodes are one commit."""
    warehouse = context.warehouse
    made: dict[str, list[dict[str, Any]]] = {"steps": [], "episodes": []}
    versions: dict[str, int] = {}
    for chunk in _chunks(episodes):
        found = rows(chunk)
        if found["screenshots"]:
            versions["screenshots"] = warehouse.add_screenshots(found["screenshots"])
        for table, of_table in made.items():
            of_table += found[table]
    for table in made:
        versions[table] = warehouse.replace_partition(table, made[table], iteration=context.iteration, stage=context.stage)
    outcomes = Counter(row["outcome"] for row in made["episodes"])
    counts = {table: len(made[table]) for table in ("episodes", "steps")}
    counts |= {f"outcome/{name}": num for name, num in sorted(outcomes.items())}
    return Stored(rows=made, versions=versions, counts=counts)


def _chunks(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    chunk: list[Episode] = []
    num_bytes = 0
    for episode in episodes:
        chunk.append(episode)
        num_bytes += sum(map(len, episode.screenshots.values()))
        if num_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def store_checkpoint(context: WorkerContext, card: Card, *, parents: Sequence[str] | None = None) -> int:
    """Move the draft to a folder named by its id and enter it in the registry; `parents` are the card's unless given.

    A stage that is made again leaves the weights it made before where they are: others may have been made from them.
    """
    folder = context.checkpoints / card.checkpoint_id
    if _is_whole(folder):
        shutil.rmtree(context.draft)  # the same weights; whoever reads them now is not disturbed
    else:
        move(context.draft, folder)
    return registry.register(
        context.warehouse,
        iteration=context.iteration,
        stage=context.stage,
        checkpoint_id=card.checkpoint_id,
        folder=folder,
        parents=card.parents if parents is None else parents,
        datasets=card.datasets,
        config=card.config,
        metrics=card.metrics,
    )


def _is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except CheckpointError:
        return False
    return True


def store_metrics(context: WorkerContext, checkpoint_id: str, curve: Iterable[tuple[int, Mapping[str, float]]]) -> int:
    """The curves of this stage's training run: (step or round, metrics)."""
    table_rows = [
        {"run": context.stage, "step": step, "metric": metric, "value": value, "checkpoint_id": checkpoint_id}
        for step, metrics in curve
        for metric, value in metrics.items()
        if math.isfinite(value)
    ]
    return context.warehouse.replace_partition("training_metrics", table_rows, iteration=context.iteration, stage=context.stage)
