"""The value model: a copy of the policy's backbone with a scalar head, its estimates and its fitting. When it may steer: learner.py.

V is read at the position before a response token: what the episode will still earn, as the policy sees it when it is about to write that
token. At level `step` only the first response token of each step has a value. What the critic trains is its own, never shared: its gradient
must not move the policy (UI-TARS-2's critic is a model of its own, initialised by value pretraining). It trains what the policy trains: all
weights of a copy, or adapters of its own. Weights that both leave frozen are in memory once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.rl.distributed.optimizers import Optimizer
from models.rl.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from models.rl.updates.advantages import Floats, rewards_at_last_tokens
from models.rl.updates.buffer import (
    State,
    StepBatch,
    StepRef,
    Trajectory,
    TrajectoryStep,
    collate,
    filler,
    random_groups,
    step_batches,
    step_lengths,
    step_refs,
)
from models.rl.updates.losses import value_loss
from models.training.adapter_config import AdapterConfig
from models.training.adapters import is_frozen, prepare_for_training
from models.training.forward import hidden_where
from warehouse.core.errors import TrainingDiverged

Level = Literal["token", "step"]


class Critic(nn.Module):
    """Backbone and value head. The head starts at zero, so that an untrained critic says 0 everywhere."""

    def __init__(self, backbone: PreTrainedModel, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def of_policy(cls, model: PreTrainedModel, config: AdapterConfig | None = None, *, seed: int = 0) -> Critic:
        """A critic on the policy's backbone, for training by `config` (all weights, unless given). Call it before the policy is prepared
        for the same: weights that `config` freezes are shared, with `lora_base_dtype` for both. Raises ConfigError as
        `prepare_for_training`."""
        config = config or AdapterConfig()
        shared = {id(parameter): parameter for name, parameter in model.base_model.named_parameters() if is_frozen(name, config)}
        backbone = cast(PreTrainedModel, copy.deepcopy(model.base_model, shared))
        if not config.lora_rank:
            backbone.to(dtype=torch.float32)  # type: ignore[call-arg]
        prepare_for_training(backbone, config, seed=seed)
        critic = cls(backbone, model.config.get_text_config().hidden_size)
        critic.head.to(model.device)
        return critic

    def forward(self, batch: StepBatch, level: Level) -> Tensor:
        """Values at the batch's response positions (level token) or first response positions (level step), row by row."""
        marked_BT = batch.response_BT if level == "token" else batch.first_BT
        return self.of_hidden(hidden_where(self.backbone, batch.inputs_BT, marked_BT, vision=batch.vision))

    def of_hidden(self, hidden_ND: Tensor) -> Tensor:
        """Values (N) of the backbone's hidden states (N, D), in float32 whatever the frozen weights are kept in."""
        return self.head(hidden_ND.float())[:, 0]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How steps are put into forward passes."""

    max_tokens: int
    pad_id: int


def num_values(item: Trajectory, level: Level) -> int:
    """How many values an episode has: one a response token, or one a step."""
    return item.num_response_tokens if level == "token" else len(item.steps)


def rewards_per_value(item: Trajectory, level: Level) -> Floats:
    """The episode's rewards on the axis of its values: at the last token of each step (what single tokens earned at these), or at the
    step."""
    step_rewards = [step.reward for step in item.steps]
    if level == "step":
        return np.array([reward + sum(step.token_rewards) for reward, step in zip(step_rewards, item.steps, strict=True)])
    of_tokens = [x for step in item.steps for x in (step.token_rewards or (0.0,) * len(step.response_ids))]
    at_last_tokens: Floats = rewards_at_last_tokens(step_rewards, item.tokens_per_step)
    return at_last_tokens + np.array(of_tokens, dtype=np.float64)


def slots(item: Trajectory, step: int, level: Level) -> slice:
    """Where a step's values stand in its episode's vector."""
    if level == "step":
        return slice(step, step + 1)
    tokens = item.tokens_per_step
    start = sum(tokens[:step])
    return slice(start, start + tokens[step])


def _split(refs: Sequence[StepRef], trajectories: Sequence[Trajectory], level: Level) -> list[tuple[int, slice]]:
    return [(ref.trajectory, slots(trajectories[ref.trajectory], ref.step, level)) for ref in refs]


def _flat(values: Sequence[Floats], places: Sequence[tuple[int, slice]], device: torch.device) -> Tensor:
    return torch.tensor(np.concatenate([values[i][slots] for i, slots in places]), dtype=torch.float32, device=device)


@torch.no_grad()
def predict(
    critic: Critic,
    trajectories: Sequence[Trajectory],
    *,
    level: Level,
    batching: Batching,
    group: ProcessGroup = SINGLE_PROCESS,
    optimizer: Optimizer | None = None,
) -> list[Floats]:
    """Value estimates of each episode, in the order of its tokens (or steps). `optimizer`: the critic's, where that may share it out."""
    critic.eval()
    called, is_lockstep = (critic, False) if optimizer is None else (optimizer.module, optimizer.is_lockstep)
    values = [np.zeros(num_values(item, level)) for item in trajectories]
    device = critic.head.weight.device
    batches = step_batches(
        trajectories,
        range(len(trajectories)),
        max_tokens=batching.max_tokens,
        pad_id=batching.pad_id,
        device=device,
        group=group,
        is_lockstep=is_lockstep,
    )
    for batch in batches:
        flat = called(batch, level).double().cpu().numpy()
        position = 0
        for index, slots in _split(batch.refs, trajectories, level):
            width = slots.stop - slots.start
            values[index][slots] = flat[position : position + width]
            position += width
    return list(group.fill(values))


def predict_final(
    critic: Critic,
    trajectories: Sequence[Trajectory],
    *,
    batching: Batching,
    group: ProcessGroup = SINGLE_PROCESS,
    optimizer: Optimizer | None = None,
) -> list[float | None]:
    """The value of the state that a limit kept each episode from, where the prompt of it was recorded; else None."""
    states = {i: _as_episode(item.final_state, batching.pad_id) for i, item in enumerate(trajectories) if item.final_state is not None}
    found: list[float | None] = [None] * len(trajectories)
    predicted = predict(critic, list(states.values()), level="step", batching=batching, group=group, optimizer=optimizer)
    for index, values in zip(states, predicted, strict=True):
        found[index] = float(values[0])
    return found


def _as_episode(state: State, pad_id: int) -> Trajectory:
    """A state as an episode of one step, whose response is there only to be preceded."""
    step = TrajectoryStep(prompt_ids=state.prompt_ids, response_ids=(pad_id,), logprobs=(0.0,), reward=0.0, pixels=state.pixels)
    return Trajectory(episode_id="", task_name="", steps=(step,), reward=0.0, is_truncated=False)


def fit_epoch(
    critic: Critic,
    optimizer: Optimizer,
    trajectories: Sequence[Trajectory],
    targets: Sequence[Floats],
    chosen: Sequence[int],
    *,
    level: Level,
    batching: Batching,
    max_grad_norm: float,
    generator: np.random.Generator,
    old_values: Sequence[Floats] | None = None,
    value_clip: float | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> float:
    """One pass over the chosen episodes, one optimizer step a minibatch of random steps; the mean loss. With `value_clip`, estimates are
    held near `old_values` (see value_loss). Of several processes each computes its share of every minibatch. Raises TrainingDiverged."""
    critic.train()
    device = critic.head.weight.device
    # Steps of one length are mostly of one task: minibatches of these would draw every estimate to their task's mean, one after the other.
    groups = random_groups(trajectories, step_refs(trajectories, chosen), max_tokens=batching.max_tokens, generator=generator)
    losses: list[float] = []
    for refs in groups:
        mine = [refs[i] for i in group.own_rows(step_lengths(trajectories, refs))]
        optimizer.zero_grad()
        losses.append(0.0)
        with group.raising_together():
            if mine:
                batch = collate(trajectories, mine, pad_id=batching.pad_id, device=device)
                places = _split(mine, trajectories, level)
                old_N = None if old_values is None else _flat(old_values, places, device)
                loss = value_loss(optimizer.module(batch, level), _flat(targets, places, device), old_values_N=old_N, clip=value_clip)
                loss = loss * (_num_slots(places) / _num_slots(_split(refs, trajectories, level)))  # of the mean over all
                if not torch.isfinite(loss):
                    raise TrainingDiverged(f"the value loss is {loss.item()}: lower critic_learning_rate")
                losses[-1] = loss.item()
            elif optimizer.is_lockstep:
                loss = optimizer.module(filler(trajectories, refs, pad_id=batching.pad_id, device=device), level).sum() * 0.0
        if mine or optimizer.is_lockstep:
            optimizer.backward(loss)
        norm = optimizer.step(max_grad_norm)
        if not np.isfinite(norm):
            raise TrainingDiverged(f"the gradient norm of the critic is {norm}: lower critic_learning_rate")
    return float(np.mean(group.sum(losses))) if losses else 0.0


def _num_slots(places: Sequence[tuple[int, slice]]) -> int:
    return sum(slots.stop - slots.start for _, slots in places)
