"""Reinforcement learning of one domain, or of several jointly, on live sessions: composes the trainer (models/ppo), which knows no
sandbox, with a collector, which knows no learning.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from assets.instances import first_instance
from assets.requests import RlRequest, StageResult
from models.checkpoint import load_tokenizer
from models.ppo.trainer import PpoResult, PpoRun, num_rounds, train_ppo
from models.ppo.update import ReplayPool, ReplaySample
from models.supervised import encode_samples
from pipelines.sandboxes import open_collector
from pipelines.workers.context import WorkerContext, pool_tasks
from pipelines.workers.storing import store_checkpoint, store_episodes, store_metrics
from pipelines.workers.supervised import dataset_samples
from sandbox.task import Task
from warehouse import registry
from warehouse.errors import ConfigError
from warehouse.samples import Kind

MAX_REPLAY = 2000


def run(request: RlRequest, context: WorkerContext) -> StageResult:
    tasks = []
    for domain in request.domains:
        of_domain = [task for task in pool_tasks(request.acting.tasks, domain) if not task.held_out]
        if not of_domain:
            raise ConfigError(
                f"domain {domain!r} has no task to train on in {', '.join(request.acting.tasks.lists)}; drop it from tasks.domains"
            )
        tasks += of_domain
    result = asyncio.run(_train(request, context, tasks))
    card = result.card
    stored = store_episodes(context, list(result.spool.episodes()))
    versions = {
        **stored.versions,
        "training_metrics": store_metrics(context, card.checkpoint_id, enumerate(result.metrics, start=1)),
        "checkpoints": store_checkpoint(context, card),
    }
    shutil.rmtree(result.state, ignore_errors=True)
    last = {name: value for name, value in result.metrics[-1].items() if "/" not in name}
    return StageResult(checkpoint_id=card.checkpoint_id, table_versions=versions, counts=stored.counts, metrics=last)


async def _train(request: RlRequest, context: WorkerContext, tasks: list[Task]) -> PpoResult:
    progress = context.progress()
    sft_id, ct_id = request.replay_dataset_ids
    init = registry.find(context.warehouse, request.checkpoint_id).folder
    training = PpoRun(
        config=request.config.model_copy(
            update={
                "seed": request.config.seed + request.seed,
                "seed_offset": first_instance("rl", request.iteration) + request.config.seed_offset,
                "episodes_per_task": max(1, request.config.episodes_per_task // len(request.domains)),  # in all, a specialist's budget
            }
        ),
        init_checkpoint=init,
        tasks=tasks,
        replay=ReplayPool(sft=_replay(context, init, sft_id, "sft"), ct=_replay(context, init, ct_id, "ct")),
        output=context.draft,
        run_folder=context.run_folder,
        stage=request.stage,
        iteration=request.iteration,
        datasets=request.replay_dataset_ids,
    )

    def report(round_index: int, metrics: Mapping[str, float]) -> None:
        progress.update(round_index, num_rounds(request.config, len(tasks)), "rounds", metrics)

    async with open_collector(request.acting) as collector:
        return await train_ppo(training, collector, on_progress=report)


def _replay(context: WorkerContext, init: Path, dataset_id: str, kind: Kind) -> list[ReplaySample]:
    """Samples of one kind for the auxiliary supervised loss; of a large set an even selection, since few are ever drawn."""
    samples = dataset_samples(context.warehouse, dataset_id, [kind])
    samples = samples[:: max(1, len(samples) // MAX_REPLAY)]
    tokenizer = load_tokenizer(init)
    encoded = encode_samples(tokenizer, samples, prompt_loss_weight=0.0, max_tokens=int(tokenizer.model_max_length))
    return [ReplaySample(token_ids=tuple(sample.token_ids), weights=tuple(sample.loss_weights)) for sample in encoded]
