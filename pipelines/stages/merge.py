"""The merge of the specialists; where no weights are given, the search of the simplex by greedy success on the eval split.

The search tries a coarse grid, then, if asked, the neighbours of the best at half the step, and again. What every mixture solved of every
task is kept as rows of `merge_candidates`. A mixture that is merged again after a kill has the same id, so only the episodes that it
lacks are played.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.episode.episode import Episode
from assets.stages.requests import MergeRequest, StageResult
from models.merging.merge import merge
from models.merging.methods import METHODS
from models.merging.weights import Weights, best_weights, neighbours, simplex_grid
from pipelines.orchestration.work.progress import Progress
from pipelines.stages.context import WorkerContext
from pipelines.stages.engines import open_engine
from pipelines.stages.evaluate import evaluation_rows, requests_to_choose, task_counts
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import StageCollector, open_collector
from pipelines.stages.storing import store_checkpoint
from warehouse.core.stages import SPECIALIST, domain_of
from warehouse.evaluation.statistics import macro_average
from warehouse.lineage import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A mixture and what it did on the eval split. `method` is SPECIALIST for a specialist beside the mixtures."""

    method: str
    weights: Weights
    episodes: tuple[Episode, ...]

    @property
    def success(self) -> float:
        return macro_average(task_counts(self.episodes)).mean

    def success_on(self, domain: str) -> float:
        return macro_average(task_counts(one for one in self.episodes if one.request.task.domain == domain)).mean


def run(request: MergeRequest, context: WorkerContext) -> StageResult:
    parents = [registry.find(context.warehouse, checkpoint_id).folder for checkpoint_id in request.specialists.values()]
    base_id = request.base if METHODS[request.merge.method].needs_base else None
    base = registry.find(context.warehouse, base_id).folder if base_id is not None else None
    weights, tried = request.merge.weights, list[Tried]()
    if weights is None and len(set(request.specialists.values())) == 1:
        weights = (1 / len(parents),) * len(parents)  # whatever the weights, the merge is that one checkpoint
    kept = KeptEpisodes(context, whole=False)
    if weights is None:
        tried = asyncio.run(_Search(request, context, kept, parents, base).run())
        weights = _best(request, tried)
    card = merge(parents, weights, context.draft, request.merge.config, base=base, stage=request.stage)
    rows = _rows(request, tried, weights)
    made_from = [parent for parent, share in card.config["weights"].items() if share]
    versions = {
        "merge_candidates": context.warehouse.replace_partition("merge_candidates", rows, iteration=request.iteration, stage=request.stage),
        "checkpoints": store_checkpoint(context, card, parents=list(dict.fromkeys([*made_from, *([base_id] if base_id else [])]))),
    }
    context.when_finished(kept.remove)
    return StageResult(
        checkpoint_id=card.checkpoint_id,
        table_versions=versions,
        counts=kept.resumed.counts,
        metrics={f"weight/{stage}": weight for stage, weight in zip(request.specialists, weights, strict=True)},
        details={"search": _described(request, tried)},
    )


class _Search:
    """One search: every mixture is merged, plays the same eval instances, and is thrown away."""

    def __init__(self, request: MergeRequest, context: WorkerContext, kept: KeptEpisodes, parents: list[Path], base: Path | None) -> None:
        self._request, self._kept, self._parents, self._base = request, kept, parents, base
        self._candidate = context.candidate
        self._progress: Progress = context.progress()
        self._tried: list[Tried] = []

    async def run(self) -> list[Tried]:
        grid = list(simplex_grid(len(self._parents), self._request.merge.grid_steps))
        try:
            await self._search(grid)
        finally:
            shutil.rmtree(self._candidate, ignore_errors=True)
        return self._tried

    async def _search(self, grid: Sequence[Weights]) -> None:
        settings, num = self._request.merge, len(self._parents)
        async with open_collector(self._request.acting, to_choose=True) as collector:
            if METHODS[settings.method].needs_base:  # without one, the corners of the grid are the specialists themselves
                for place, parent in enumerate(self._parents):
                    corner = tuple(float(other == place) for other in range(num))
                    await self._play(collector, SPECIALIST, corner, parent, num + len(grid))
            await self._try_all(collector, grid)
            for refinement in range(1, settings.refine_rounds + 1):
                around = neighbours(_best(self._request, self._tried), 1 / (settings.grid_steps * 2**refinement))
                await self._try_all(collector, [weights for weights in around if weights not in _mixtures(self._tried)])

    async def _try_all(self, collector: StageCollector, mixtures: Sequence[Weights]) -> None:
        total = len(self._tried) + len(mixtures)
        for weights in mixtures:
            config = self._request.merge.config
            await asyncio.to_thread(merge, self._parents, weights, self._candidate, config, base=self._base, stage="candidate")
            await self._play(collector, self._request.merge.method, weights, self._candidate, total)

    async def _play(self, collector: StageCollector, method: str, weights: Weights, folder: Path, total: int) -> None:
        engine = await asyncio.to_thread(open_engine, folder, self._request.acting.engine)
        requests = requests_to_choose(self._request.acting, engine.policy_id, self._request.merge.instances_per_task)
        with closing(engine):
            async for _ in self._kept.play(collector, engine, requests):
                pass
        self._tried.append(Tried(method=method, weights=weights, episodes=tuple(self._kept.outcomes(requests))))
        self._progress.update(len(self._tried), total, "mixtures", {"success": self._tried[-1].success})


def _mixtures(tried: Sequence[Tried]) -> dict[Weights, Tried]:
    """Those that may be chosen: not the specialists beside them."""
    return {one.weights: one for one in tried if one.method != SPECIALIST}


def _best(request: MergeRequest, tried: Sequence[Tried]) -> Weights:
    mixtures = _mixtures(tried)
    kept = {weights: _least_kept(request, tried, one) for weights, one in mixtures.items()}
    return best_weights({weights: one.success for weights, one in mixtures.items()}, kept, min_kept=request.merge.min_kept)


def _least_kept(request: MergeRequest, tried: Sequence[Tried], mixture: Tried) -> float:
    """Share of a specialist's success on its own domain that a mixture keeps where it keeps least; 1 where none solves anything."""
    shares = [1.0]
    for place, stage in enumerate(request.specialists):
        alone = next(one for one in tried if one.weights[place] == 1)  # the first to be tried: of methods with a base the specialist itself
        domain = domain_of(stage)
        if domain is not None and (success := alone.success_on(domain)) > 0:
            shares.append(max(0.0, mixture.success_on(domain) / success))  # also where every episode crashed and the mean is NaN
    return min(shares)


def _described(request: MergeRequest, tried: Sequence[Tried]) -> list[dict[str, Any]]:
    return [
        {"weights": list(weights), "eval success": one.success, "least kept": _least_kept(request, tried, one)}
        for weights, one in sorted(_mixtures(tried).items())
    ]


def _rows(request: MergeRequest, tried: Sequence[Tried], chosen: Weights) -> list[dict[str, Any]]:
    kept = ("task_id", "task_name", "domain", "num_episodes", "num_success", "num_crashed")
    return [
        {
            "candidate": place,
            "method": one.method,
            "weights": json.dumps(dict(zip(request.specialists, one.weights, strict=True))),
            "is_chosen": one.method != SPECIALIST and one.weights == chosen,
            **{column: row[column] for column in kept},
        }
        for place, one in enumerate(tried)
        for row in evaluation_rows(request.stage, one.episodes)
    ]
