"""The critic's gate and its fits within a run: when it is fitted to what, and when it may steer the policy. The model itself is critic.py,
what it learns before the run pretraining.py.

A critic that has not shown that it predicts returns does not steer: value estimates may even be anticorrelated with the reward before
pretraining (UI-TARS-2, arXiv 2509.02544, on value pretraining). The gate only ever looks at episodes that the critic was not fitted to,
in every round at that round's fresh ones: it opens, and shuts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from models.rl.config import PpoConfig
from models.rl.distributed.optimizers import Optimizer, WholeOptimizer, ZeroOptimizer
from models.rl.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from models.rl.updates.advantages import Advantages, Floats, decoupled_gae, explained_variance, length_adaptive_lambda, mean_of_others
from models.rl.updates.buffer import Trajectory
from models.rl.value.critic import Batching, Critic, fit_epoch, predict, predict_final, rewards_per_value
from warehouse.core.identity import stable_fraction


class Gate(BaseModel):
    """What is known of the critic so far. `has_passed`: at the latest check; `has_ever_passed`: at one of this run. `initial_loss` and
    `loss` are value losses on Monte-Carlo returns, of an untrained critic and at the latest check, as is `explained_variance`; `num_fits`
    counts how often it was fitted, before the run or in a round of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    has_passed: bool = False
    has_ever_passed: bool = False
    explained_variance: float = 0.0
    initial_loss: float | None = None
    loss: float | None = None
    num_fits: int = 0

    def judged(self, values: Floats, returns: Floats, threshold: float, baselines: Floats | None = None) -> Gate:
        """The gate after a check on episodes the critic was not fitted to.

        It is passed while the value loss is below that of saying 0, and of saying `baselines` where there are any, and the explained
        variance above the threshold. UI-TARS-2 says that both "reach sufficiently low levels", but a good critic explains *much* variance:
        that is how it is read here. Returns that are all alike do not show whether a critic is good: the gate stays as it is."""
        if not np.ptp(returns):
            return self
        loss = float(np.mean((values - returns) ** 2))
        initial_loss = float(np.mean(returns**2))  # an untrained critic says 0 everywhere
        explained = explained_variance(values, returns)
        passed = loss < initial_loss and explained > threshold
        if baselines is not None:
            passed = passed and loss < float(np.mean((baselines - returns) ** 2))
        return self.model_copy(
            update={
                "has_passed": passed,
                "has_ever_passed": self.has_ever_passed or passed,
                "explained_variance": explained,
                "initial_loss": initial_loss,
                "loss": loss,
            }
        )


def held_apart(trajectories: Sequence[Trajectory], share: float) -> tuple[list[int], list[int]]:
    """Which episodes the critic is fitted to and which it is checked on, about `share` of them: all attempts at an instance on one side."""
    first_attempts: dict[str, str] = {}
    for item in trajectories:
        first_attempts.setdefault(item.instance or item.episode_id, item.episode_id)
    held_out = [stable_fraction("value_gate", first_attempts[item.instance or item.episode_id]) < share for item in trajectories]
    return [i for i, held in enumerate(held_out) if not held], [i for i, held in enumerate(held_out) if held]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The critic's values of a round before it was fitted to it, per episode: `finals` are values of the states after a cut, where
    known. `offsets_E` is how far the returns of the task's other episodes lay above their values, `baselines_E` the mean return of these
    others (of the whole round, where there are none). Forks, which began elsewhere, are not among the others."""

    values: list[Floats]
    returns: list[Floats]
    finals: list[float | None]
    offsets_E: Floats
    baselines_E: Floats

    @property
    def shifted(self) -> Estimates:
        """Values and finals, each episode's by its offset."""
        return replace(
            self,
            values=[values + offset for values, offset in zip(self.values, self.offsets_E, strict=True)],
            finals=[None if final is None else final + offset for final, offset in zip(self.finals, self.offsets_E, strict=True)],
        )

    @property
    def baselines(self) -> list[Floats]:
        """The baseline at each place that has a value."""
        return [np.full(len(values), baseline) for values, baseline in zip(self.values, self.baselines_E, strict=True)]


def _offsets(items: Sequence[Trajectory], values: Sequence[Floats], returns: Sequence[Floats]) -> Floats:
    above_E = np.array([float((wanted - found).mean()) for found, wanted in zip(values, returns, strict=True)])
    return np.nan_to_num(mean_of_others(above_E, [item.task_name for item in items], _whole(items)))


def _baselines(items: Sequence[Trajectory], returns: Sequence[Floats]) -> Floats:
    returns_E = np.array([wanted[0] for wanted in returns])
    others_E = mean_of_others(returns_E, [item.task_name for item in items], _whole(items))
    return np.where(np.isnan(others_E), returns_E.mean(), others_E)


def _whole(items: Sequence[Trajectory]) -> NDArray[np.bool_]:
    """Which episodes were played from their first step on."""
    return np.array([item.fork is None for item in items])


class ValueLearner:
    """The critic, its optimizer and its gate through the rounds of one run."""

    def __init__(
        self, critic: Critic, config: PpoConfig, *, pad_id: int, gate: Gate | None = None, group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.critic = critic
        self._group = group
        self.gate = gate or Gate()
        self._config = config
        self.pad_id = pad_id
        self.batching = Batching(max_tokens=config.critic_minibatch_tokens, pad_id=pad_id)
        self._make = partial(torch.optim.AdamW, lr=config.critic_learning_rate, weight_decay=config.critic_weight_decay)
        self.optimizer: Optimizer = WholeOptimizer(critic, self._make, group)

    def share_out(self, device: str | None = None) -> None:
        """From now on by ZeRO, with the other processes of the group; before the first fit. `device` as ZeroOptimizer's."""
        config = self._config
        self.optimizer = ZeroOptimizer(
            self.critic, self._make, self._group, stage=config.zero_stage, max_norm=config.max_grad_norm, device=device
        )

    def estimate(self, trajectories: Sequence[Trajectory]) -> Estimates:
        """Values of a round's fresh episodes. A critic that was fitted before is checked on them."""
        values = self._predict(trajectories)
        finals = predict_final(self.critic, trajectories, batching=self.batching, group=self._group, optimizer=self.optimizer)
        returns = [result.targets_T for result in self._results(trajectories, values, finals, lambda_critic=1.0)]
        estimates = Estimates(
            values=values,
            returns=returns,
            finals=finals,
            offsets_E=_offsets(trajectories, values, returns),
            baselines_E=_baselines(trajectories, returns),
        )
        if self.gate.num_fits:
            self._check(estimates)
        return estimates

    def advantages(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> list[Advantages]:
        """Decoupled GAE of each episode, on the axis of its values; the critic's targets are never shifted."""
        results = self._results(trajectories, estimates.values, estimates.finals)
        if self._config.value_offset == "none":
            return results
        shifted = self._results(trajectories, estimates.shifted.values, estimates.shifted.finals)
        return [replace(one, targets_T=other.targets_T) for one, other in zip(shifted, results, strict=True)]

    def lambda_policy(self, item: Trajectory) -> float:
        """The trace of an episode's advantages: fixed, or by its length."""
        config = self._config
        if config.lambda_policy is not None:
            return config.lambda_policy
        return length_adaptive_lambda(item.num_response_tokens, alpha=config.lambda_alpha, floor=config.lambda_floor)

    def pretrain(self, trajectories: Sequence[Trajectory], estimates: Estimates, generator: np.random.Generator) -> float:
        """Fit Monte-Carlo returns on most of a round and judge the gate on the rest (`held_apart`); the last epoch's loss."""
        fitted, checked = held_apart(trajectories, self._config.gate_holdout)
        loss = self._fit(trajectories, estimates.returns, fitted, self._config.pretraining_epochs, generator)
        if checked:
            held_out, returns = [trajectories[i] for i in checked], [estimates.returns[i] for i in checked]
            values = self._predict(held_out)
            self._check(
                Estimates(
                    values=values,
                    returns=returns,
                    finals=[None] * len(held_out),
                    offsets_E=_offsets(held_out, values, returns),
                    baselines_E=estimates.baselines_E[checked],
                )
            )
        return loss

    def fit_chosen(
        self, trajectories: Sequence[Trajectory], returns: Sequence[Floats], chosen: Sequence[int], generator: np.random.Generator
    ) -> float:
        """One pass over these episodes; the mean loss."""
        return self._fit(trajectories, returns, chosen, 1, generator)

    def fit(
        self, trajectories: Sequence[Trajectory], targets: Sequence[Floats], estimates: Estimates, generator: np.random.Generator
    ) -> float:
        """Fit a round's targets; the last epoch's mean loss."""
        return self._fit(trajectories, targets, range(len(trajectories)), self._config.critic_epochs, generator, estimates.values)

    def _fit(
        self,
        trajectories: Sequence[Trajectory],
        targets: Sequence[Floats],
        chosen: Sequence[int],
        epochs: int,
        generator: np.random.Generator,
        old_values: Sequence[Floats] | None = None,
    ) -> float:
        loss = 0.0
        for _ in range(epochs):
            loss = fit_epoch(
                self.critic,
                self.optimizer,
                trajectories,
                targets,
                chosen,
                level=self._config.level,
                batching=self.batching,
                max_grad_norm=self._config.max_grad_norm,
                generator=generator,
                old_values=old_values,
                value_clip=self._config.value_clip,
                group=self._group,
            )
        self.gate = self.gate.model_copy(update={"num_fits": self.gate.num_fits + 1})
        return loss

    def _predict(self, trajectories: Sequence[Trajectory]) -> list[Floats]:
        return predict(
            self.critic, trajectories, level=self._config.level, batching=self.batching, group=self._group, optimizer=self.optimizer
        )

    def _check(self, estimates: Estimates) -> None:
        config = self._config
        values = (estimates if config.value_offset == "none" else estimates.shifted).values
        baselines = np.concatenate(estimates.baselines) if config.gate_baseline == "task" else None
        self.gate = self.gate.judged(np.concatenate(values), np.concatenate(estimates.returns), config.gate_explained_variance, baselines)

    def _results(
        self,
        trajectories: Sequence[Trajectory],
        values_of: Sequence[Floats],
        finals: Sequence[float | None],
        lambda_critic: float | None = None,
    ) -> list[Advantages]:
        config = self._config
        results = []
        for item, values, final in zip(trajectories, values_of, finals, strict=True):
            # Where nobody recorded what lay behind the cut, its value is taken to be that of the last state that the policy was shown.
            after_the_cut = float(values[-1]) if final is None else final
            result = decoupled_gae(
                rewards_per_value(item, config.level),
                values,
                gamma=config.gamma,
                lambda_policy=self.lambda_policy(item),
                lambda_critic=config.lambda_critic if lambda_critic is None else lambda_critic,
                bootstrap_value=after_the_cut if item.is_truncated and config.bootstrap_truncated else 0.0,
            )
            results.append(result)
        return results
