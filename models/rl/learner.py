"""What is trained in one process of a run: policy, critic and their optimizers; how they are loaded, and what a round does with them.

Each rank of a process group has one and does the same with it; what the critic learns before the run it is handed as a file. Episodes,
counters, other files and the live policy are the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedModel

from agent.episode.episode import Episode
from models.checkpoints.checkpoint import Card, read_card
from models.engine.vision_units import placeholder_ids
from models.families.registry import load_codec, load_policy, policy_without_weights
from models.families.vision import VisionCodec
from models.rl.config import PpoConfig
from models.rl.distributed.optimizers import Optimizer
from models.rl.distributed.process_group import SINGLE_PROCESS, ProcessGroup, deepspeed_raising_process_lost
from models.rl.state import Counters, load_optimizers, load_state
from models.rl.updates.buffer import Trajectory, trajectory
from models.rl.updates.replay import ReplayPool
from models.rl.updates.update import PolicyLearner
from models.rl.updates.weighting import weigh_round
from models.rl.value.critic import Critic
from models.rl.value.critic_checkpoint import load_critic
from models.rl.value.learner import Gate, ValueLearner
from models.training.adapters import (
    Part,
    adapter_parts,
    merged_parts,
    merged_state,
    prepare_for_training,
    trained_parameters,
    without_adapters,
)
from models.training.zero import gathered, is_shared_out
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_seed


class Round(BaseModel):
    """The round to learn next: `index` from 1, after `num_fruitful` rounds with an update, with weights of `version` updates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    num_fruitful: int
    version: int


class Learner:
    """`policy` and `values` learn; `values` is None for algorithms without a critic."""

    def __init__(self, init: Path, config: PpoConfig, *, replay: ReplayPool, device: str, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Raises CheckpointError for a checkpoint that is not whole, ConfigError for settings that it cannot learn by."""
        self.config, self._init = config, init
        self._gets_pieces = config.zero_stage == 3 and not group.is_leader
        """Whether its weights are the leader's, who hands on each by itself when they are shared out."""
        self.model = policy_without_weights(init, device=device) if self._gets_pieces else load_policy(init, device=device)
        self.codec = load_codec(init)
        self.never = placeholder_ids(self.model.config)
        if isinstance(self.codec, VisionCodec) and not config.screenshots:
            raise ConfigError("a vision policy needs screenshots to learn from: set rl.screenshots to true")
        pad_id = self.codec.pad_token_id
        reference = None
        if config.kl_coefficient:  # what learns through adapters is its own reference, without them
            reference = self.model if config.lora_rank else load_policy(init, device=device)
        critic = Critic.of_policy(self.model, config, seed=config.seed) if config.algorithm == "ppo" else None
        prepare_for_training(self.model, config, seed=config.seed)
        self._group, self._device = group, device
        self._gathered: tuple[dict[str, torch.Tensor], ...] = ()
        """Of ZeRO-3, on the leader after an update: weights and adapters."""
        self.policy = PolicyLearner(self.model, config, pad_id=pad_id, replay=replay, reference=reference, group=group)
        self.values = None if critic is None else ValueLearner(critic, config, pad_id=pad_id, group=group)

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"policy": self.model} | ({"critic": self.values.critic} if self.values else {})

    def optimizers(self) -> dict[str, Optimizer]:
        optimizers: dict[str, Optimizer] = {"policy": self.policy.optimizer}
        if self.values is not None:
            optimizers["critic"] = self.values.optimizer
        return optimizers

    @property
    def _will_share_out(self) -> bool:
        return self._group.size > 1 and self.config.zero_stage > 0

    def load(self, folder: Path, critic: Path | None = None) -> Counters:
        """Go on from the newest state under `folder`, where there is one, else from the critic's checkpoint, where there is that. Raises
        CheckpointError."""
        if critic is not None and critic.exists():
            self.load_critic(critic)
        modules = {} if self._gets_pieces else self.modules()
        counters = load_state(folder, modules, {} if self._will_share_out else self.optimizers())
        self.policy.num_updates = counters.num_updates
        if self.values is not None and counters.round_index:
            self.values.gate = counters.gate
        return counters

    def load_critic(self, folder: Path) -> Card:
        """Begin with a critic that was fitted before: each round's fresh episodes judge it. Raises CheckpointError, ConfigError."""
        if self.values is None:
            raise ConfigError(f"algorithm {self.config.algorithm} has no critic: use ppo, or none from before")
        card = read_card(folder) if self._gets_pieces else load_critic(folder, self.values.critic)
        self.values.gate = Gate(num_fits=1)
        return card

    def share_out(self, folder: Path) -> None:
        """Once the group has joined: have its processes share out what they train, by config.zero_stage, and take the optimizers' state
        from under `folder`. Raises CheckpointError, ProcessLost."""
        if self._will_share_out:
            with deepspeed_raising_process_lost():
                self.policy.share_out(self._device)
                if self.values is not None:
                    self.values.share_out(self._device)
            load_optimizers(folder, self.optimizers())

    @property
    def gate(self) -> Gate | None:
        return self.values.gate if self.values else None

    def trajectories(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """What there is to learn from."""
        config = self.config
        found = (trajectory(episode, reward=config.reward, shaping=config, codec=self.codec, never=self.never) for episode in episodes)
        return [item for item in found if item is not None]

    def learn_from(self, items: Sequence[Trajectory], round_: Round) -> dict[str, float]:
        """Weigh a batch and update; the metrics. Value pretraining counts the rounds that were learned from. Raises TrainingDiverged,
        ValueGateNotPassed, ProcessLost, ModelError."""
        with deepspeed_raising_process_lost():
            before, metrics = self.policy.num_updates, self._learn_from(items, round_)
            if self.config.zero_stage == 3 and self.policy.num_updates > before:
                self._gather()
        return metrics

    def _learn_from(self, items: Sequence[Trajectory], round_: Round) -> dict[str, float]:
        self.policy.check_alike(step.pixels is not None for item in items for step in item.steps)
        generator = np.random.default_rng(stable_seed("ppo", self.config.seed, round_.index))
        reference = self.policy.reference_logprobs(items)
        weighting = weigh_round(items, self.config, self.values, round_.num_fruitful + 1, generator, reference=reference)
        metrics = dict(weighting.metrics)
        if weighting.advantages is not None:
            metrics |= self.policy.update(items, weighting.advantages, generator, version=round_.version, unscaled_E=weighting.unscaled_E)
        self.check_same_weights()
        return metrics

    def _gather(self) -> None:
        """Have the leader keep the policy's weights in main memory. They are whole in every process one layer after the other."""
        self._gathered = ()
        found = self._taken_over(merged_parts(self.model)), self._taken_over(adapter_parts(self.model))
        if self._group.is_leader:
            self._gathered = found

    def _taken_over(self, parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, needed, compute in parts:
            with gathered(needed), torch.no_grad():
                if self._group.is_leader:
                    found[name] = compute().to("cpu", copy=True)
        return found

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Of the policy, as an ordinary checkpoint has them; the leader asks."""
        return self._gathered[0] if self._gathered else merged_state(self.model)

    def adapters(self) -> Mapping[str, torch.Tensor]:
        """What of the policy an adapter's file has."""
        return self._gathered[1] if self._gathered else self.model.state_dict()

    def trained_policy(self, folder: Path) -> PreTrainedModel:
        """The policy without adapters, as it was when the state under `folder` was saved, which is now."""
        model = self.model
        if self._is_in_pieces():
            model = load_policy(self._init, device=self._device)
            prepare_for_training(model, self.config, seed=self.config.seed)
            load_state(folder, {"policy": model}, {})
        return without_adapters(model)

    def trained_critic(self, folder: Path) -> Critic:
        """The same of the critic."""
        if self.values is None:
            raise ConfigError(f"algorithm {self.config.algorithm} has no critic: use ppo")
        critic = self.values.critic
        if self._is_in_pieces():
            critic = Critic.of_policy(load_policy(self._init, device=self._device), self.config, seed=self.config.seed)
            load_state(folder, {"critic": critic}, {})
        return critic

    def _is_in_pieces(self) -> bool:
        return any(is_shared_out(parameter) for parameter in self.model.parameters())

    def check_same_weights(self) -> None:
        """Raises ModelError where the ranks hold different weights. What is in pieces, or will be, is one rank's to begin with."""
        if self._group.size > 1 and self.config.zero_stage == 3:
            return
        self._group.check_same_weights([parameter for module in self.modules().values() for parameter in trained_parameters(module)])
