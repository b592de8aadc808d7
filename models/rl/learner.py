"""All that learns in one process of a run: policy, critic, their optimizers; what they are made of, and what a round does with them.

Each process of a gang has one and does the same with it. Episodes, counters, files and who answers with the weights are the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from agent.episode.episode import Episode
from models.engine.vision_units import placeholder_ids
from models.families.registry import load_codec, load_policy
from models.families.vision import VisionCodec
from models.rl.buffer import Trajectory, trajectory
from models.rl.config import PpoConfig
from models.rl.critic import Critic
from models.rl.process_group import ALONE, Gang
from models.rl.replay import ReplayPool
from models.rl.state import Counters, load_state
from models.rl.update import PolicyLearner
from models.rl.value_learner import Gate, ValueLearner
from models.rl.weighting import weigh_round
from models.training.adapters import prepare_for_training, trained_parameters
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_seed


class Turn(BaseModel):
    """Which batch is learned from next: `index` of all from 1, after `num_fruitful` rounds that taught something, by weights of `version`
    updates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    num_fruitful: int
    version: int


class Learner:
    """`policy` and `values` learn; `values` is None for algorithms without a critic."""

    def __init__(self, init: Path, config: PpoConfig, *, replay: ReplayPool, device: str, gang: Gang = ALONE) -> None:
        """Raises CheckpointError for a checkpoint that is not whole, ConfigError for settings that it cannot learn by."""
        self.config = config
        self.model = load_policy(init, device=device)
        self.codec = load_codec(init)
        self.never = placeholder_ids(self.model.config)
        if isinstance(self.codec, VisionCodec) and not config.screenshots:
            raise ConfigError("a policy that sees learns from what it saw: set rl.screenshots to true")
        pad_id = self.codec.pad_token_id
        reference = None
        if config.kl_coefficient:  # what learns through adapters is its own reference, without them
            reference = self.model if config.lora_rank else load_policy(init, device=device)
        critic = Critic.of_policy(self.model, config, seed=config.seed) if config.algorithm == "ppo" else None
        prepare_for_training(self.model, config, seed=config.seed)
        self._gang = gang
        self.policy = PolicyLearner(self.model, config, pad_id=pad_id, replay=replay, reference=reference, gang=gang)
        self.values = None if critic is None else ValueLearner(critic, config, pad_id=pad_id, gang=gang)

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"policy": self.model} | ({"critic": self.values.critic} if self.values else {})

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        optimizers: dict[str, torch.optim.Optimizer] = {"policy": self.policy.optimizer}
        if self.values is not None:
            optimizers["critic"] = self.values.optimizer
        return optimizers

    def load(self, folder: Path) -> Counters:
        """Go on from the newest state under `folder`, where there is one. Raises CheckpointError."""
        counters = load_state(folder, self.modules(), self.optimizers())
        self.policy.num_updates = counters.num_updates
        if self.values is not None and counters.round_index:
            self.values.gate = counters.gate
        return counters

    @property
    def gate(self) -> Gate | None:
        return self.values.gate if self.values else None

    def trajectories(self, episodes: Sequence[Episode]) -> list[Trajectory]:
        """What there is to learn from."""
        config = self.config
        found = (
            trajectory(episode, reward=config.reward, shaping=config, codec=self.codec, never=self.never)
            for episode in episodes
        )  # fmt: skip
        return [item for item in found if item is not None]

    def learn_from(self, items: Sequence[Trajectory], turn: Turn) -> dict[str, float]:
        """Weigh a batch and update; the metrics. Value pretraining counts the rounds that were learned from. Raises TrainingDiverged,
        ValueGateNotPassed, ProcessLost, ModelError."""
        generator = np.random.default_rng(stable_seed("ppo", self.config.seed, turn.index))
        reference = self.policy.reference_logprobs(items)
        weighting = weigh_round(items, self.config, self.values, turn.num_fruitful + 1, generator, reference=reference)
        metrics = dict(weighting.metrics)
        if weighting.advantages is not None:
            metrics |= self.policy.update(
                items, weighting.advantages, generator, version=turn.version, unscaled_E=weighting.unscaled_E
            )  # fmt: skip
        self.check_alike()
        return metrics

    def check_alike(self) -> None:
        """Raises ModelError where the processes of the gang have come apart."""
        self._gang.check_alike([parameter for module in self.modules().values() for parameter in trained_parameters(module)])
