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

from agent.episode.episode import Episode
from agent.episode.rows import rows
from models.checkpoints.checkpoint import Card, move, verify
from pipelines.stages.context import WorkerContext
from warehouse.core.errors import CheckpointError
from warehouse.lineage import registry

CHUNK_BYTES = 128 * 1024**2
CHUNK_STEPS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    versions: dict[str, int]
    counts: dict[str, int]


def store_episodes(context: WorkerContext, episodes: Iterable[Episode]) -> Stored:
    """Replace this stage's partition with these episodes. Of an iterator's no more are in memory at once than have CHUNK_STEPS steps or
    CHUNK_BYTES of screenshots, whose rows are committed as they come; those of steps and of episodes are one commit each."""
    warehouse = context.warehouse
    versions: dict[str, int] = {}
    episode_rows: list[dict[str, Any]] = []
    num_steps = 0

    def steps_by_chunk() -> Iterator[list[dict[str, Any]]]:
        nonlocal num_steps
        for chunk in _chunks(episodes):
            found = rows(chunk)
            if found["screenshots"]:
                versions["screenshots"] = warehouse.add_screenshots(found["screenshots"])
            episode_rows.extend(found["episodes"])
            num_steps += len(found["steps"])
            yield found["steps"]

    place = {"iteration": context.iteration, "stage": context.stage}
    versions["steps"] = warehouse.replace_partition_by_parts("steps", steps_by_chunk(), **place)
    versions["episodes"] = warehouse.replace_partition("episodes", episode_rows, **place)
    outcomes = Counter(f"outcome/{row['outcome']}" for row in episode_rows)
    return Stored(versions=versions, counts={"episodes": len(episode_rows), "steps": num_steps, **dict(sorted(outcomes.items()))})


def _chunks(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    chunk: list[Episode] = []
    num_bytes = num_steps = 0
    for episode in episodes:
        chunk.append(episode)
        num_bytes += sum(map(len, episode.screenshots.values()))
        num_steps += len(episode.steps)
        if num_bytes >= CHUNK_BYTES or num_steps >= CHUNK_STEPS:
            yield chunk
            chunk, num_bytes, num_steps = [], 0, 0
    if chunk:
        yield chunk


def store_checkpoint(
    context: WorkerContext,
    card: Card,
    *,
    draft: Path | None = None,
    parents: Sequence[str] | None = None,
    episode_ids: Sequence[str] | None = None,
) -> int:
    """Move the draft, the stage's unless given, to a folder named by its id and enter it in the registry, a critic under its own stage;
    `parents` are the card's unless given, `episode_ids` of RL.

    A stage that is made again leaves the weights it made before where they are: others may have been made from them.
    """
    folder, made = context.checkpoints / card.checkpoint_id, draft or context.draft
    if _is_whole(folder):
        shutil.rmtree(made)  # the same weights; a process that reads them now is not disturbed
    else:
        move(made, folder)
    return registry.register(
        context.warehouse,
        iteration=context.iteration,
        stage=card.stage if card.kind == "critic" else context.stage,
        checkpoint_id=card.checkpoint_id,
        folder=folder,
        parents=card.parents if parents is None else parents,
        datasets=card.datasets,
        episode_ids=episode_ids,
        config=card.config,
        metrics=card.metrics,
        kind=card.kind,
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
