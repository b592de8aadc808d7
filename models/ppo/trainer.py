"""The rounds of reinforcement learning: collect episodes with the live policy, weigh them, learn, keep what a killed run needs.

One round: requests on fresh train seeds -> episodes through the Collector (spooled as they finish) -> advantages and critic fit -> policy
update -> state on disk -> progress. The mathematics is in advantages.py and losses.py, gradient steps in update.py, the critic in
value_learner.py. Sandboxes are the Collector's business, evaluation and release that of whoever called.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agent.collector import Collector
from agent.episode import Episode
from agent.policy import Policy, Prompt, Response
from models import checkpoint
from models.engine import EmbeddedEngine
from models.metrics import MetricLog, Progress
from models.ppo.buffer import trajectory
from models.ppo.config import PpoConfig
from models.ppo.critic import Critic
from models.ppo.curriculum import quotas, round_requests, updated_rates
from models.ppo.metrics import episode_metrics
from models.ppo.spool import EpisodeSpool
from models.ppo.state import Counters, load_state, save_state
from models.ppo.update import PolicyLearner, ReplayPool
from models.ppo.value_learner import ValueLearner
from models.ppo.weighting import weigh_round
from models.shift_qwen3 import ShiftQwen3ForCausalLM
from sandbox.task import Task
from warehouse.errors import ConfigError, ModelError, SandboxError
from warehouse.identity import bytes_id, content_id, stable_seed

OnProgress = Callable[[int, Mapping[str, float]], None]


class LivePolicy(Policy, Protocol):
    """A policy whose weights follow the learner's; the embedded engine is one."""

    def load_weights(self, state: Mapping[str, torch.Tensor], checkpoint_id: str) -> None: ...

    def close(self) -> None: ...


PolicyFactory = Callable[[PreTrainedModel, PreTrainedTokenizerFast, str], LivePolicy]


def embedded_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, checkpoint_id: str) -> LivePolicy:
    """Generation in this process. Raises ModelError for a model that the embedded engine cannot run."""
    if not isinstance(model, ShiftQwen3ForCausalLM):
        raise ModelError(f"the embedded engine runs ShiftQwen3ForCausalLM, not {type(model).__name__}: hand in a policy factory for it")
    return EmbeddedEngine(model, tokenizer, checkpoint_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoRun:
    """What one run works on. `run_folder` keeps its spool, state and metrics (JSON lines, TensorBoard), under a name that changes with
    anything that would change the run; `output` becomes the checkpoint."""

    config: PpoConfig
    init_checkpoint: Path
    tasks: Sequence[Task]
    replay: ReplayPool
    output: Path
    run_folder: Path
    stage: str
    iteration: str
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoResult:
    """What a run made. `policy_ids[r]` acted in round r + 1; `spool` yields all the episodes; `state` is the folder that a killed run
    resumes from, of no use once the result is stored."""

    card: checkpoint.Card
    metrics: tuple[dict[str, float], ...]
    policy_ids: tuple[str, ...]
    spool: EpisodeSpool = field(repr=False)
    state: Path = field(repr=False)


async def train_ppo(
    run: PpoRun, collector: Collector, *, on_progress: OnProgress = lambda *_: None, make_policy: PolicyFactory = embedded_policy
) -> PpoResult:
    """Learn from live episodes and write the checkpoint; goes on where a killed run of the same settings stopped.

    The collector is the caller's to close, and gradient steps block the event loop. `on_progress(round, metrics)` is called after each
    round, also for rounds that an earlier start of this run completed. Raises TrainingDiverged, CheckpointError, ConfigError, and
    SandboxError when every episode of a round crashed.
    """
    torch.set_num_threads(1)  # a second thread makes a tiny model slower on a busy machine
    trainer = _Trainer(run)
    log = MetricLog(trainer.folder, resume_step=trainer.counters.round_index)
    policy = make_policy(trainer.model, trainer.tokenizer, trainer.live_policy_id())
    try:
        for index, metrics in enumerate(trainer.counters.metrics, start=1):
            on_progress(index, metrics)
        while trainer.counters.round_index < run.config.rounds:
            metrics = await trainer.round(collector, policy)
            log.write(Progress(step=trainer.counters.round_index, num_steps=run.config.rounds, metrics=metrics))
            on_progress(trainer.counters.round_index, metrics)
    finally:
        log.close()
        policy.close()
    return trainer.finish()


class _Trainer:
    def __init__(self, run: PpoRun) -> None:
        if not run.tasks or any(task.held_out for task in run.tasks):
            held_out = [task.name for task in run.tasks if task.held_out]
            raise ConfigError(
                f"learning needs at least one task and none that is held out (held out: {held_out or 'none'}): mend the task list"
            )
        self._run, self._config = run, run.config
        self._card = checkpoint.verify(run.init_checkpoint)
        self.model = checkpoint.load_model(run.init_checkpoint)
        self.tokenizer = checkpoint.load_tokenizer(run.init_checkpoint)
        pad_id = int(self.tokenizer.pad_token_id)
        reference = checkpoint.load_model(run.init_checkpoint) if run.config.kl_coefficient else None
        self._learner = PolicyLearner(self.model, run.config, pad_id=pad_id, replay=run.replay, reference=reference)
        self._value_learner = (
            ValueLearner(Critic.of_policy(self.model), run.config, pad_id=pad_id) if run.config.algorithm == "ppo" else None
        )
        self.folder = run.run_folder / self._run_id()
        self._state_folder = self.folder / "state"
        self.spool = EpisodeSpool(self.folder / "episodes")
        self.counters = load_state(self._state_folder, self._modules(), self._optimizers())
        self._learner.num_updates = self.counters.num_updates
        if self._value_learner is not None and self.counters.round_index:
            self._value_learner.gate = self.counters.gate

    def _run_id(self) -> str:
        run = self._run
        tasks = [task.task_id for task in run.tasks]
        parts = [run.config.model_dump(mode="json"), self._card.checkpoint_id, tasks, run.stage, run.iteration, list(run.datasets)]
        return content_id("rl", parts)

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {"policy": self.model} | ({"critic": self._value_learner.critic} if self._value_learner else {})

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        optimizers: dict[str, torch.optim.Optimizer] = {"policy": self._learner.optimizer}
        if self._value_learner is not None:
            optimizers["critic"] = self._value_learner.optimizer
        return optimizers

    def live_policy_id(self) -> str:
        """Id of the weights as they are now; before the first update that of the initial checkpoint."""
        if not self._learner.num_updates:
            return self._card.checkpoint_id
        tensors = sorted(self.model.state_dict().items())
        parts = (name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in tensors)
        return bytes_id("checkpoint", b"".join(parts))

    async def round(self, collector: Collector, policy: LivePolicy) -> dict[str, float]:
        """Collect, learn, write the state. Returns the round's metrics."""
        index = self.counters.round_index + 1
        policy_id = self.live_policy_id()
        policy.load_weights(self.model.state_dict(), policy_id)
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        timed = _TimedPolicy(policy)
        episodes = await self._collect(collector, timed, index, policy_id)
        collected_s, collected_cpu_s = time.perf_counter(), time.process_time()
        metrics = episode_metrics(episodes) | self._learn(episodes, index)
        metrics |= {
            "env_s": collected_s - started_s - timed.busy_s,
            "gen_s": timed.busy_s,
            "collect_cpu_s": collected_cpu_s - started_cpu_s,
            "update_s": time.perf_counter() - collected_s,
            "update_cpu_s": time.process_time() - collected_cpu_s,
        }
        met = Counter(self.counters.seeds_met) + Counter(episode.request.task.task_id for episode in episodes)
        self.counters = Counters(
            round_index=index,
            seeds_met=dict(met),
            success_rates=updated_rates(self.counters.success_rates, episodes),
            num_updates=self._learner.num_updates,
            gate=self._value_learner.gate if self._value_learner else self.counters.gate,
            metrics=(*self.counters.metrics, metrics),
            policy_ids=(*self.counters.policy_ids, policy_id),
        )
        save_state(self._state_folder, self.counters, self._modules(), self._optimizers())
        return metrics

    async def _collect(self, collector: Collector, policy: Policy, index: int, policy_id: str) -> list[Episode]:
        """The round's episodes in the order of their requests; those that an earlier start of this round finished are not run again."""
        counters = self.counters
        counts = quotas(self._run.tasks, self._config, counters.success_rates)
        requests = round_requests(self._run.tasks, counts, counters.seeds_met, self._config, policy_id)
        answered = self.spool.recover(index)
        open_requests = [request for request in requests if request.episode_id not in answered]
        if open_requests:
            async for episode in collector.collect(policy, open_requests):
                self.spool.append(index, episode)
                answered[episode.episode_id] = episode.model_copy(update={"screenshots": {}})
        missing = [request.episode_id for request in requests if request.episode_id not in answered]
        if missing:
            raise SandboxError(
                f"the collector left {len(missing)} of {len(requests)} requests unanswered, first {missing[0]}: mend the collector"
            )
        return [answered[request.episode_id] for request in requests]

    def _learn(self, episodes: Sequence[Episode], index: int) -> dict[str, float]:
        found = (trajectory(episode, reward=self._config.reward) for episode in episodes)
        items = [item for item in found if item is not None]
        if not items:
            errors = sorted({episode.error or str(episode.outcome) for episode in episodes})
            raise SandboxError(
                f"none of the {len(episodes)} episodes of round {index} can be learned from ({'; '.join(errors[:3])}): mend the sandbox"
            )
        generator = np.random.default_rng(stable_seed("ppo", self._config.seed, index))
        weighting = weigh_round(items, self._config, self._value_learner, index, generator)
        if weighting.advantages is None:
            return {"updates": 0.0} | weighting.metrics
        return weighting.metrics | self._learner.update(items, weighting.advantages, generator)

    def finish(self) -> PpoResult:
        """Write the checkpoint. The critic served this run alone and stays in its state."""
        run, counters = self._run, self.counters
        card = checkpoint.save(
            run.output, self.model, self.tokenizer, stage=run.stage, iteration=run.iteration, parents=(self._card.checkpoint_id,),
            datasets=run.datasets, config=run.config.model_dump(mode="json"), metrics=counters.metrics[-1] if counters.metrics else {},
        )  # fmt: skip
        return PpoResult(
            card=card, metrics=counters.metrics, policy_ids=counters.policy_ids, spool=self.spool, state=self._state_folder
        )  # fmt: skip


class _TimedPolicy:
    """Passes prompts on and sums up the wall time that answering took."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.busy_s = 0.0

    @property
    def policy_id(self) -> str:
        return self._policy.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        started_s = time.perf_counter()
        try:
            return await self._policy.act(prompts)
        finally:
            self.busy_s += time.perf_counter() - started_s
