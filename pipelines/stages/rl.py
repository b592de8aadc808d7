"""Reinforcement learning of one domain, or of several jointly, on live sessions: composes the trainer (models/rl), which knows no
sandbox, with a collector, which knows no learning.
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from agent.episode.collector import Collector
from assets.stages.requests import RlRequest, StageResult
from assets.tasks.instances import first_instance
from models.families.chat import ChatCodec
from models.families.registry import is_vision, load_codec, max_positions
from models.families.vision import pixel_loader
from models.http.engine import HttpEngine
from models.rl.config import PpoConfig
from models.rl.rollouts.curriculum import num_rounds
from models.rl.trainer import LivePolicy, PolicyFactory, PpoResult, PpoRun, rollout_log_of, train_ppo
from models.rl.updates.replay import ReplayPool
from models.rl.value.offline_fit import PRETRAINED
from models.rl.value.pretraining import CriticSource
from models.supervised.training_set import TrainingSample, encode_samples
from pipelines.stages.context import WorkerContext, profile_tasks
from pipelines.stages.engines import engine_of_learner, open_servers
from pipelines.stages.harness import open_harness_collector
from pipelines.stages.images import spooled_images
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.stored_episodes import stored_episodes
from pipelines.stages.storing import store_checkpoint, store_episodes, store_metrics
from pipelines.stages.supervised import DatasetSamples
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id
from warehouse.core.stages import critic_stage, rl_stage
from warehouse.lineage import registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_REPLAY = 2000


def run(request: RlRequest, context: WorkerContext) -> StageResult:
    context.track(request.tracking, request.config.model_dump(mode="json"))
    tasks = []
    for domain in request.domains:
        of_domain = [task for task in profile_tasks(request.acting.tasks, domain) if not task.held_out]
        if not of_domain:
            raise ConfigError(
                f"domain {domain!r} has no task to train on in {', '.join(request.acting.tasks.lists)}; drop it from tasks.domains"
            )
        tasks += of_domain
    training = _training(request, context, tasks)
    curve: dict[int, Mapping[str, float]] = {}
    try:
        result = asyncio.run(_train(request, context, training, curve))
    except Exception:
        _keep(context, request, training, curve)
        raise
    card, made_from = result.card, result.card.parents
    stored = store_episodes(context, result.rollout_log.episodes())
    if result.critic is not None:
        store_checkpoint(context, result.critic, draft=_critic_draft(context), episode_ids=result.critic_episode_ids)
        if card.checkpoint_id not in made_from:  # it steered: what it learned from taught the policy, too
            made_from = (*made_from, result.critic.checkpoint_id)
    versions = {
        **stored.versions,
        "training_metrics": store_metrics(context, card.checkpoint_id, enumerate(result.metrics, start=1)),
        "checkpoints": store_checkpoint(context, card, parents=made_from, episode_ids=result.episode_ids),
    }
    # The state first: without its rollout log it would end in a run without episodes.
    for folder in (result.state, result.state.parent / PRETRAINED):
        context.when_finished(partial(shutil.rmtree, folder, ignore_errors=True))
    context.when_finished(result.rollout_log.drop_screenshots)
    counts = {**stored.counts, **result.rollout_log.resumed.counts}
    last = {name: value for name, value in result.metrics[-1].items() if "/" not in name}
    return StageResult(checkpoint_id=card.checkpoint_id, table_versions=versions, counts=counts, metrics=last)


def _keep(context: WorkerContext, request: RlRequest, training: PpoRun, curve: Mapping[int, Mapping[str, float]]) -> None:
    """Store the episodes and the curves of a run that failed, to see why. Whatever hinders that must not hide why it failed."""
    try:
        episodes = rollout_log_of(training).episodes()
        first = next(episodes, None)
        if first is not None:  # else what an earlier run of the stage stored stays
            store_episodes(context, chain([first], episodes))
            store_metrics(context, request.checkpoint_id, sorted(curve.items()))
    except Exception as error:
        context.log(f"the episodes and curves of {request.stage} could not be stored: {type(error).__name__}: {error}")


def _training(request: RlRequest, context: WorkerContext, tasks: list[Task]) -> PpoRun:
    sft_id, ct_id = request.replay_dataset_ids
    init = registry.find(context.warehouse, request.checkpoint_id).folder
    return PpoRun(
        config=request.config.model_copy(
            update={
                "seed": request.config.seed + request.seed,
                "seed_offset": first_instance("rl", request.iteration) + request.skip_instances + request.config.seed_offset,
                "episodes_per_task": max(1, request.config.episodes_per_task // len(request.domains)),  # in all, a specialist's budget
            }
        ),
        init_checkpoint=init,
        tasks=tasks,
        replay=_replay(request.config, context, init, sft_id, ct_id),
        output=context.draft,
        run_folder=context.run_folder,
        stage=request.stage,
        iteration=request.iteration,
        datasets=request.replay_dataset_ids,
        critic=_critic(request, context, tasks),
        hosts=request.hosts,
    )


def _critic_draft(context: WorkerContext) -> Path:
    return context.checkpoints / "critic_draft"


def _critic(request: RlRequest, context: WorkerContext, tasks: list[Task]) -> CriticSource | None:
    """What the critic begins with and where it goes; None for an algorithm without one."""
    if request.config.algorithm != "ppo":
        return None
    stored = partial(
        stored_episodes, context.warehouse, request.stored, tasks, request.config.offline_episodes, screenshots=request.config.screenshots
    )
    return CriticSource(
        stage=critic_stage(request.stage.removeprefix(rl_stage(""))),
        output=_critic_draft(context),
        parent=None if request.critic_id is None else registry.find(context.warehouse, request.critic_id).folder,
        episodes=stored,
        episodes_name=content_id("stored", list(request.stored)),
    )


async def _train(request: RlRequest, context: WorkerContext, training: PpoRun, curve: dict[int, Mapping[str, float]]) -> PpoResult:
    """`curve` gets the metrics of each round as it ends."""
    progress, num_tasks = context.progress(), len(training.tasks)

    def report(round_index: int, metrics: Mapping[str, float]) -> None:
        curve[round_index] = metrics
        progress.update(round_index, num_rounds(training.config, num_tasks), "rounds", metrics)

    async with _collector(request, context) as collector:
        return await train_ppo(
            training, collector, on_progress=report, make_policy=_policy_factory(request, training.init_checkpoint, context.exchange)
        )


def _collector(request: RlRequest, context: WorkerContext) -> AbstractAsyncContextManager[Collector]:
    if request.harness is None:
        return open_collector(request.acting, to_choose=True)
    temperature, folder = request.config.temperature, context.harness_folder
    return open_harness_collector(request.acting, request.harness, temperature=temperature, folder=folder)


def _policy_factory(request: RlRequest, init: Path, exchange: Path) -> PolicyFactory:
    """Who acts while the policy learns: the engine of this process, or servers, the stage's own or the profile's, which are handed the
    weights as they come (the adapter alone, where they take nothing else; into `exchange`, where they are the stage's own). A server that
    could not take them is refused here, before anything is collected."""
    choice = request.acting.engine
    if choice.kind == "embedded":
        return partial(engine_of_learner, choice=choice)

    def at_server(model: PreTrainedModel, codec: ChatCodec, checkpoint_id: str) -> LivePolicy:
        if choice.http is not None:
            engine = HttpEngine.of_checkpoint(choice.http, init)
        else:
            engine = open_servers(init, choice, dtype=str(model.dtype).removeprefix("torch."), exchange=exchange)
        try:
            engine.require_learnable(request.config.temperature)
            engine.require_updatable(adapters=bool(request.config.lora_rank))
        except BaseException:
            engine.close()
            raise
        return engine

    return at_server


def _replay(config: PpoConfig, context: WorkerContext, init: Path, sft_id: str, ct_id: str) -> ReplayPool:
    """Samples for the auxiliary supervised loss; of a large set an even selection, since few are ever drawn. A kind that the settings do
    not ask for, or that the dataset has none of, is left out."""
    chosen = [
        _few(DatasetSamples(context.warehouse, sft_id, ["sft"], init=init)) if config.replay_weight and config.replay_sft else [],
        _few(DatasetSamples(context.warehouse, ct_id, ["ct"], init=init)) if config.replay_weight and config.replay_ct else [],
    ]
    every = [sample for samples in chosen for sample in samples]
    read_image = spooled_images(context.warehouse, every, context.folder / "images") if is_vision(init) else None
    codec, max_tokens = load_codec(init), max_positions(init)
    sft, ct = (
        encode_samples(codec, samples, prompt_loss_weight=0.0, max_tokens=max_tokens, read_image=read_image) if samples else []
        for samples in chosen
    )
    return ReplayPool(sft=sft, ct=ct, pixels=pixel_loader(codec, read_image))


def _few(samples: DatasetSamples) -> list[TrainingSample]:
    return list(islice(samples, 0, None, max(1, math.ceil(len(samples) / MAX_REPLAY))))
