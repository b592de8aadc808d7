"""The merge: interpolate the specialists; where no weights are given, search the simplex by greedy success on the eval split."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from assets.requests import MergeRequest, StageResult
from models.engine import EmbeddedEngine
from models.merge import Weights, best_weights, merge_linear, simplex_grid
from pipelines.sandboxes import open_collector
from pipelines.workers.context import WorkerContext
from pipelines.workers.evaluate import greedy_requests, success_of
from pipelines.workers.storing import store_checkpoint
from sandbox.task import Split
from warehouse import registry


def run(request: MergeRequest, context: WorkerContext) -> StageResult:
    parents = [registry.find(context.warehouse, checkpoint_id).folder for checkpoint_id in request.specialists.values()]
    scores: dict[Weights, float] = {}
    weights = request.merge.weights
    if weights is None and len(set(request.specialists.values())) == 1:
        weights = (1 / len(parents),) * len(parents)  # whatever the weights, the merge is that one checkpoint
    if weights is None:
        scores = asyncio.run(_search(request, context, parents))
        weights = best_weights(scores)
    card = merge_linear(parents, weights, context.draft, stage=request.stage)
    version = store_checkpoint(context, card, parents=[parent for parent, share in card.config["weights"].items() if share])
    return StageResult(
        checkpoint_id=card.checkpoint_id,
        table_versions={"checkpoints": version},
        metrics={f"weight/{stage}": weight for stage, weight in zip(request.specialists, weights, strict=True)},
        details={"search": [{"weights": list(tried), "eval success": score} for tried, score in sorted(scores.items())]},
    )


async def _search(request: MergeRequest, context: WorkerContext, parents: list[Path]) -> dict[Weights, float]:
    """Eval success of every point of the simplex grid."""
    grid = list(simplex_grid(len(parents), request.merge.grid_steps))
    progress = context.progress()
    scores: dict[Weights, float] = {}
    folder = context.folder / "candidate"
    async with open_collector(request.acting) as collector:
        for weights in grid:
            card = merge_linear(parents, weights, folder, stage="candidate")
            requests = greedy_requests(request.acting.tasks, card.checkpoint_id, Split.EVAL, request.merge.instances_per_task)
            scores[weights] = await success_of(collector, EmbeddedEngine.from_checkpoint(folder), requests)
            progress.update(len(scores), len(grid), "candidates", {"success": scores[weights]})
    shutil.rmtree(folder, ignore_errors=True)
    return scores
