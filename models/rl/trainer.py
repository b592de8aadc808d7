"""The rounds of reinforcement learning: a batch of finished episodes, weigh them, learn, hand the weights on, keep what a killed run needs.

Two ways to get a batch, one code path: in rounds (admit a round's episodes, wait for all of them, learn while nothing else happens), or
streaming (episodes go on in the background while the policy learns, and take new weights as they come). What runs in the background is
models/rl/rollouts/pool.py's business, what learns is learner.py's, what the critic learns before the first round
models/rl/value/pretraining.py's; the mathematics is in models/rl/updates/advantages.py and models/rl/updates/losses.py. With several
processes (`num_processes`), this one is rank 0 (models/rl/distributed/ranks.py). Sandboxes are the Collector's business, evaluation and
release the caller's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
from transformers import PreTrainedModel

from agent.episode.collector import Collector
from agent.episode.episode import Episode
from agent.policy.policy import Policy
from models.checkpoints import checkpoint
from models.engine.embedded import EmbeddedEngine
from models.families.chat import ChatCodec
from models.rl.clocks import MeteredPolicy, Reading, times
from models.rl.config import PpoConfig
from models.rl.distributed.process_group import ProcessGroup
from models.rl.distributed.ranks import RankProcesses
from models.rl.learner import Learner, Round
from models.rl.metrics import episode_metrics, num_left_out, staleness_metrics
from models.rl.rollouts.crash_budget import FRUITLESS, CrashBudget, is_fruitless, num_fruitful
from models.rl.rollouts.curriculum import (
    batch_episodes,
    instances_met,
    num_rounds,
    num_to_admit,
    quotas,
    round_requests,
    stream_requests,
    updated_rates,
)
from models.rl.rollouts.forks import fork_requests
from models.rl.rollouts.log import RolloutLog
from models.rl.rollouts.pool import RolloutPool
from models.rl.state import read_counters, save_state
from models.rl.updates.buffer import Trajectory
from models.rl.updates.replay import ReplayPool
from models.rl.value.critic import Critic
from models.rl.value.critic_checkpoint import save_critic
from models.rl.value.offline_fit import FIT_FILE, PRETRAINED, OfflineFit
from models.rl.value.pretraining import CriticSource, fit_offline, refuse_reported
from models.training.adapters import save_adapter, without_adapters
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.metrics import MetricLog, Progress
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError
from warehouse.core.home import atomic_write
from warehouse.core.identity import content_id

OnRound = Callable[[int, Mapping[str, float]], None]
"""Called with a round's number, from 1, and its metrics."""
EPISODES = "episodes"
"""Folder of a run's rollout log."""
CRITIC_METRICS = ("explained_variance", "gate_explained_variance", "value_gate", "value_loss")
"""Of the last round, on the card of the critic that the run leaves."""
WATCH_S = 1.0
"""How often the other ranks are checked while episodes are awaited."""
Found = TypeVar("Found")


class LivePolicy(Policy, Protocol):
    """A policy whose weights follow the learner's; the embedded engine is one. It may answer from another device or server."""

    def load_weights(self, state: Mapping[str, torch.Tensor], checkpoint_id: str, version: int = 0) -> None:
        """Answer with these weights from now on, also in the middle of answers that are under way. Called from any thread; `state` is the
        caller's and changes again once this has returned. `version` counts the updates that made them."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TakesAdapters(Protocol):
    """A live policy that can be handed what a learner with adapters trains, instead of whole weights (HttpEngine before vLLM)."""

    @property
    def takes_adapters(self) -> bool:
        """Whether it is to be handed adapters, and nothing else."""
        ...

    def load_adapter(self, save: Callable[[Path], None], checkpoint_id: str, version: int = 0) -> None:
        """As `load_weights`; `save` writes the adapter into a folder, as peft reads it."""
        ...


PolicyFactory = Callable[[PreTrainedModel, ChatCodec, str], LivePolicy]
"""From the present model, its codec and the checkpoint id to the policy that answers with these weights."""


def embedded_policy(model: PreTrainedModel, codec: ChatCodec, checkpoint_id: str) -> LivePolicy:
    """Generation in this process. Raises ModelError for a model that the embedded engine cannot run."""
    return EmbeddedEngine(model, codec, checkpoint_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoRun:
    """What one run works on. `run_folder` keeps its rollout log, state and metrics (JSON lines, TensorBoard), under a name that changes
    with anything that would change the run; `output` becomes the checkpoint."""

    config: PpoConfig
    init_checkpoint: Path
    tasks: Sequence[Task]
    replay: ReplayPool
    output: Path
    run_folder: Path
    stage: str
    iteration: str
    datasets: tuple[str, ...] = ()
    critic: CriticSource | None = None
    """Of ppo: where its critic comes from and is kept; without it the critic begins as a copy of the policy and ends with the run."""
    device: str | None = None
    """Where it learns, as torch names it; none: on the GPU where there is one. Of several processes each further one has the GPU behind."""
    hosts: TrainingHosts = THIS_MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoResult:
    """What a run made. `policy_ids[r]` acted in round r + 1; `rollout_log` yields all the episodes, `episode_ids` are those that updates
    learned from, none where the weights are as they were; `critic` is the card of its critic's checkpoint, which learned from
    `critic_episode_ids`; `state` is the folder that a killed run resumes from, of no use once the result
    is stored."""

    card: checkpoint.Card
    metrics: tuple[dict[str, float], ...]
    policy_ids: tuple[str, ...]
    episode_ids: tuple[str, ...]
    critic: checkpoint.Card | None = None
    critic_episode_ids: tuple[str, ...] = ()
    rollout_log: RolloutLog = field(repr=False)
    state: Path = field(repr=False)


def rollout_log_of(run: PpoRun) -> RolloutLog:
    """All the episodes of a run so far, however it ended. Raises CheckpointError where there is nothing to begin from."""
    return RolloutLog(_folder(run, checkpoint.read_card(run.init_checkpoint).checkpoint_id) / EPISODES)


def _run_id(run: PpoRun, checkpoint_id: str) -> str:
    tasks = [task.task_id for task in run.tasks]
    config = run.config.model_dump(mode="json", exclude={"num_processes", "zero_stage"})  # who computes: a killed run may go on in others
    parts = [config, checkpoint_id, tasks, run.stage, run.iteration, list(run.datasets)]
    return content_id("rl", parts if run.critic is None else [*parts, run.critic.identity])


def _folder(run: PpoRun, checkpoint_id: str) -> Path:
    return run.run_folder / _run_id(run, checkpoint_id)


async def train_ppo(
    run: PpoRun, collector: Collector, *, on_progress: OnRound = lambda *_: None, make_policy: PolicyFactory = embedded_policy
) -> PpoResult:
    """Learn from live episodes and write the checkpoint; goes on where a killed run of the same settings stopped.

    The collector is the caller's to close. Gradient steps are taken in a thread. `on_progress(round, metrics)` is called after each round
    (of `num_rounds`), also for those that an earlier start of this run completed. Raises TrainingDiverged, ValueGateNotPassed, ProcessLost,
    CheckpointError, ConfigError, and NothingToLearn after too many rounds whose episodes crashed (models/rl/rollouts/crash_budget.py),
    behind which the run's next start goes on; `rollout_log_of` has the episodes then.
    """
    torch.set_num_threads(1)  # a second thread makes a tiny model slower on a busy machine
    trainer = _Trainer(run)
    log = MetricLog(trainer.folder, resume_step=trainer.counters.round_index)

    def report(index: int, metrics: Mapping[str, float]) -> None:
        log.write(Progress(step=index, num_steps=trainer.num_rounds, metrics=metrics))
        on_progress(index, metrics)

    live = make_policy(without_adapters(trainer.learner.model), trainer.learner.codec, trainer.policy_id)
    try:
        for index, metrics in enumerate(trainer.counters.metrics, start=1):
            on_progress(index, metrics)
        await trainer.learn(collector, live, report)
    finally:
        trainer.close()
        log.close()
        live.close()
    return trainer.finish()


class _Trainer:
    """Everything that learns, touched by one thread of its own while rollouts go on in the event loop's."""

    def __init__(self, run: PpoRun) -> None:
        if not run.tasks or any(task.held_out for task in run.tasks):
            held_out = [task.name for task in run.tasks if task.held_out]
            raise ConfigError(f"RL needs at least one task, and no held-out ones (held out: {held_out or 'none'}): fix the task list")
        self._run, self._config = run, run.config
        self.num_rounds = num_rounds(run.config, len(run.tasks))
        self._card = checkpoint.verify(run.init_checkpoint)
        device = run.device or ("cuda" if torch.cuda.is_available() else "cpu")
        group = ProcessGroup(size=run.config.num_processes, timeout=run.hosts.timeout)
        self.learner = Learner(run.init_checkpoint, run.config, replay=run.replay, device=device, group=group)
        self.folder = _folder(run, self._card.checkpoint_id)
        self._state_folder = self.folder / "state"
        self.rollout_log = RolloutLog(self.folder / EPISODES)
        self._start_over_if_barren()
        self._critic_folder = self.folder / PRETRAINED
        self.counters = self.learner.load(self._state_folder, self._critic_folder)
        self._other_ranks = RankProcesses(
            group,
            self.folder,
            init=run.init_checkpoint,
            config=run.config,
            state=self._state_folder,
            critic=self._critic_folder,
            episodes=self.folder / EPISODES,
            replay=run.replay,
            device=device,
            hosts=run.hosts,
        )
        self.policy_id = self._live_id()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer", initializer=torch.set_num_threads, initargs=(1,))
        self._saving: Future[None] | None = None

    def _start_over_if_barren(self) -> None:
        """A run that ended without learning from any round holds nothing of use: its folder is set aside."""
        found = read_counters(self._state_folder)
        if found.round_index >= self.num_rounds and not num_fruitful(found.metrics):
            self.folder.rename(self.folder.with_name(f"{self.folder.name}.barren-{time.time_ns()}"))
            self.rollout_log = RolloutLog(self.folder / EPISODES)

    def _live_id(self) -> str:
        """Id of the weights as they are now: of this run after so many updates; before the first that of the initial checkpoint."""
        version = self.counters.version
        return content_id("checkpoint", [self.folder.name, version]) if version else self._card.checkpoint_id

    async def learn(self, collector: Collector, live: LivePolicy, report: OnRound) -> None:
        """All the rounds that are left. Nothing is collected where none is."""
        if self.counters.round_index >= self.num_rounds:
            return
        if self.counters.version:
            self._hand_over(live)
        policy = MeteredPolicy(live, version=self.counters.version)
        crash_budget = CrashBudget(self._config, self.num_rounds)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._pretrain_critic)
        await loop.run_in_executor(self._thread, self._start_ranks)
        fork = partial(fork_requests, config=self._config) if self._config.fork_siblings else None
        async with RolloutPool(collector, policy, self.rollout_log, num_learned=self.counters.round_index, fork=fork) as rollout_pool:
            while self.counters.round_index < self.num_rounds:
                episodes, metrics = await self._round(rollout_pool, policy, live)
                report(self.counters.round_index, metrics)
                if pause_s := crash_budget.pause_s(episodes, self.counters.metrics):
                    await asyncio.sleep(pause_s)
        if self._saving is not None:
            self._saving.result()

    def _pretrain_critic(self) -> None:
        """In the trainer's thread: fit the critic to stored episodes; a killed run and the other ranks find it in the run's folder."""
        source, values = self._run.critic, self.learner.values
        if source is None or values is None or self.counters.round_index or self._critic_folder.exists():
            return
        if source.parent is not None:
            self.learner.load_critic(source.parent)
        items = self.learner.trajectories(refuse_reported(source.episodes()))
        fit = fit_offline(values, items, self._config)
        if fit is None and source.parent is None:
            return
        fit = fit or OfflineFit()
        atomic_write(self.folder / FIT_FILE, fit.model_dump_json().encode())
        self._save_critic(self._critic_folder, values.critic, fit.metrics)
        self.learner.load_critic(self._critic_folder)

    def _save_critic(self, folder: Path, critic: Critic, metrics: Mapping[str, float]) -> checkpoint.Card:
        source = self._run.critic
        if source is None:
            raise ConfigError(f"the run {self._run.stage} keeps no critic: set PpoRun.critic")
        before = () if source.parent is None else (checkpoint.read_card(source.parent).checkpoint_id,)
        return save_critic(
            folder,
            critic,
            self._config,
            stage=source.stage,
            iteration=self._run.iteration,
            parents=(self._card.checkpoint_id, *before),
            metrics=metrics,
        )

    def _offline_fit(self) -> OfflineFit | None:
        """What pretraining came to, where there was any."""
        path = self.folder / FIT_FILE
        return OfflineFit.model_validate_json(path.read_bytes()) if path.exists() else None

    def _start_ranks(self) -> None:
        """In the trainer's thread: start the other ranks and check that they hold this one's weights."""
        if self._config.num_processes > 1:
            self._other_ranks.start()
            with self._other_ranks.naming_the_lost():
                self.learner.check_same_weights()
                self.learner.share_out(self._state_folder)

    async def _watched(self, waiting: Awaitable[Found]) -> Found:
        """Wait; raises ProcessLost as soon as another rank has ended."""
        if self._config.num_processes == 1:
            return await waiting
        task = asyncio.ensure_future(waiting)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=WATCH_S)
                self._other_ranks.check()
            return task.result()
        finally:
            task.cancel()

    async def _round(self, rollout_pool: RolloutPool, policy: MeteredPolicy, live: LivePolicy) -> tuple[list[Episode], dict[str, float]]:
        """Wait for a batch, learn from it, hand the weights on, write the state. Returns the batch and the round's metrics."""
        index, policy_id, version = self.counters.round_index + 1, self.policy_id, self.counters.version
        started, num_retried = Reading.of(rollout_pool, policy), rollout_pool.num_retried
        episodes = await self._watched(rollout_pool.batch(index, self._admit(rollout_pool, index)))
        collected, queues = Reading.of(rollout_pool, policy), rollout_pool.queues
        loop = asyncio.get_running_loop()
        learned = await loop.run_in_executor(self._thread, self._learn, episodes, index, live)
        policy.version = self.counters.version
        metrics = episode_metrics(episodes) | staleness_metrics(episodes, version) | learned | queues
        metrics["retried"] = float(rollout_pool.num_retried - num_retried)
        metrics |= times(started, collected, Reading.of(rollout_pool, policy), learned["update_cpu_s"], is_streaming=self._config.streaming)
        self.counters = self.counters.model_copy(
            update={"metrics": (*self.counters.metrics, metrics), "policy_ids": (*self.counters.policy_ids, policy_id)}
        )
        self._save(index)
        return episodes, metrics

    def _admit(self, rollout_pool: RolloutPool, index: int) -> int:
        """Let episodes start as far as they may before batch `index`; the size of that batch."""
        run, config, rates = self._run, self._config, self.counters.success_rates
        met = instances_met(request for block in rollout_pool.blocks for request in block.requests)
        if not config.streaming:
            if len(rollout_pool.blocks) < index:
                rollout_pool.admit(round_requests(run.tasks, quotas(run.tasks, config, rates), met, config, self.policy_id))
            return len(rollout_pool.blocks[index - 1].requests)
        size = batch_episodes(config, len(run.tasks))
        num_more = num_to_admit(
            rollout_pool.num_admitted, index - 1, batch_size=size, batches_ahead=config.batches_ahead, num_batches=self.num_rounds
        )
        if num_more:
            passes = rollout_pool.blocks[-1].passes if rollout_pool.blocks else {}
            rollout_pool.admit(*stream_requests(run.tasks, num_more, passes, rates, met, config, self.policy_id))
        return size

    def _learn(self, episodes: Sequence[Episode], index: int, live: LivePolicy) -> dict[str, float]:
        """In the trainer's thread: learn from a batch, hand new weights to the live policy, count."""
        started_s, started_cpu_s = time.perf_counter(), time.thread_time()
        config = self._config
        items = self.learner.trajectories(episodes)
        counters = self.counters
        metrics = {"updates": 0.0, "left_out_steps": num_left_out(episodes, self.learner.never), FRUITLESS: 0.0}
        if index == 1 and (fit := self._offline_fit()):
            metrics |= fit.metrics
        if is_fruitless(episodes, len(items), config):
            metrics[FRUITLESS] = 1.0
            self.rollout_log.learned(index, ())
        else:
            metrics |= self._learn_from(episodes, items, index)
            self.rollout_log.learned(index, [item.episode_id for item in items] if config.mode == "learn" else ())
        num_updates = self.learner.policy.num_updates
        is_changed = num_updates > counters.num_updates
        self.counters = counters.model_copy(
            update={
                "round_index": index,
                "version": counters.version + is_changed,
                "num_updates": num_updates,
                "gate": self.learner.gate or counters.gate,
                "success_rates": updated_rates(counters.success_rates, episodes),
            }
        )
        learned_s = time.perf_counter()
        if is_changed:
            self.policy_id = self._live_id()
            self._hand_over(live)
        return metrics | {
            "update_s": learned_s - started_s,
            "swap_s": time.perf_counter() - learned_s,
            "update_cpu_s": time.thread_time() - started_cpu_s,
        }

    def _learn_from(self, episodes: Sequence[Episode], items: Sequence[Trajectory], index: int) -> dict[str, float]:
        """On all ranks. `items` are the trajectories of the episodes."""
        this_round = Round(index=index, num_fruitful=num_fruitful(self.counters.metrics), version=self.counters.version)
        if self._config.num_processes == 1:
            return self.learner.learn_from(items, this_round)
        self._other_ranks.send(this_round, episodes)
        with self._other_ranks.naming_the_lost():
            return self.learner.learn_from(items, this_round)

    def _hand_over(self, live: LivePolicy) -> None:
        if isinstance(live, TakesAdapters) and live.takes_adapters:
            live.load_adapter(partial(save_adapter, self.learner.adapters(), config=self._config), self.policy_id, self.counters.version)
        else:
            live.load_weights(self.learner.weights(), self.policy_id, self.counters.version)

    def _save(self, index: int) -> None:
        """Have the state written by the trainer's thread, before whatever it does next; rollouts and waiting go on meanwhile."""
        if self._saving is not None:
            self._saving.result()
        is_due = index % self._config.state_every == 0 or index == self.num_rounds
        if is_due or self.counters.metrics[-1][FRUITLESS]:  # after such a round the run may give up, and must go on behind it
            learner = self.learner
            self._saving = self._thread.submit(
                save_state, self._state_folder, self.counters, learner.modules(), learner.optimizers(), self._other_ranks.save_parts
            )

    def close(self) -> None:
        """Wait for the thread, then stop the other ranks."""
        self._thread.shutdown(wait=True)
        self._other_ranks.stop()

    def finish(self) -> PpoResult:
        """Write the checkpoint, in what its parent's weights are stored in, so that the two can be merged, and the critic's where it is
        kept. Nothing is learned afterwards."""
        run, counters = self._run, self.counters
        model = self.learner.trained_policy(self._state_folder)
        if (dtype := checkpoint.stored_dtype(run.init_checkpoint)) is not None:
            model.to(dtype=getattr(torch, dtype))  # type: ignore[call-arg]
        card = checkpoint.save(
            run.output,
            model,
            self.learner.codec,
            stage=run.stage,
            iteration=run.iteration,
            parents=(self._card.checkpoint_id,),
            datasets=run.datasets,
            config=run.config.model_dump(mode="json"),
            metrics=counters.metrics[-1] if counters.metrics else {},
        )
        critic, critic_episode_ids = self._finished_critic()
        return PpoResult(
            card=card,
            critic=critic,
            critic_episode_ids=critic_episode_ids,
            metrics=counters.metrics,
            policy_ids=counters.policy_ids,
            rollout_log=self.rollout_log,
            state=self._state_folder,
            episode_ids=self.rollout_log.learned_from(counters.round_index) if counters.version else (),
        )

    def _finished_critic(self) -> tuple[checkpoint.Card | None, tuple[str, ...]]:
        """The card of the critic where it is kept, and the episodes that it learned from."""
        source, counters, last = self._run.critic, self.counters, self.counters.metrics[-1]
        if source is None or self.learner.values is None:
            return None, ()
        fit = self._offline_fit() or OfflineFit()
        ids = (*fit.episode_ids, *self.rollout_log.learned_from(counters.round_index))
        metrics = {name: last[name] for name in CRITIC_METRICS if name in last}
        critic = self.learner.trained_critic(self._state_folder)
        return self._save_critic(source.output, critic, metrics), tuple(dict.fromkeys(ids))
