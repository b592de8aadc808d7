"""One round's gradient steps on the policy: minibatches of episodes, the policy loss, replayed samples, and what stops an update early.

Advantages come in ready; where they come from is weighting.py. Shape suffixes as in losses.py and buffer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from transformers import PreTrainedModel

from models.engine.vision_units import placeholder_ids
from models.rl.config import PpoConfig
from models.rl.distributed.optimizers import Optimizer, WholeOptimizer, ZeroOptimizer
from models.rl.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from models.rl.updates.advantages import Floats, normalised
from models.rl.updates.buffer import StepBatch, Trajectory, filler, gathered, step_batches, step_refs
from models.rl.updates.counters import TokenCounters, UpdateCounters
from models.rl.updates.losses import LossSettings, kl_k3, policy_loss, token_weights
from models.rl.updates.off_policy import episode_correction, loglinear_proximal, staleness, token_correction
from models.rl.updates.replay import ReplayPool
from models.training.adapters import adapters_off
from models.training.batching import EncodedSample
from models.training.forward import LogitsWhere
from warehouse.core.errors import ConfigError, TrainingDiverged

LEAST_ADVANTAGE = 1e-3
"""Episodes whose advantages all stay below this are left out of an update whose loss is about nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """All that an update works on, per trajectory and response token: advantages, the proximal log-probabilities (None: the sampler's, or
    interpolated as the policy moves), off-policy weights, staleness. `unscaled_E` as in PolicyLearner.update."""

    trajectories: Sequence[Trajectory]
    advantages: Sequence[Floats]
    unscaled_E: NDArray[np.bool_] | None
    proximal: Sequence[Floats] | None
    corrections: Sequence[Floats]
    ages: Sequence[Floats]


def loss_settings(config: PpoConfig) -> LossSettings:
    """What of a run's settings its policy loss needs."""
    return LossSettings(
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        objective="likelihood" if config.algorithm == "rejection" else "clip",
        kl_coefficient=config.kl_coefficient if config.kl_placement == "loss" else 0.0,
        entropy_coefficient=config.entropy_coefficient,
    )


def response_log_distribution(
    model: PreTrainedModel, batch: StepBatch, temperature: float, logits_where: nn.Module | None = None
) -> Tensor:
    """log p(token | before) over the vocabulary (N, V) at every response position, under the distribution that is sampled from: tokens
    that the engine never samples have probability 0 here too. Logits are computed at these positions only, by `logits_where` where the
    model is in a module that has to be called."""
    logits_NV = (logits_where or LogitsWhere(model))(batch.inputs_BT, batch.response_BT, batch.vision)
    logits_NV = logits_NV.float() / temperature
    if never := placeholder_ids(model.config):
        # The lowest number, not -inf: 0 times it is still a number, in the entropy's gradient too.
        logits_NV = logits_NV.index_fill(1, torch.tensor(never, device=logits_NV.device), torch.finfo(logits_NV.dtype).min)
    return log_softmax(logits_NV, dim=-1)


class PolicyLearner:
    """The live policy and its optimizer through the rounds of one run. `num_updates` counts optimizer steps, for the warm-up. In a group
    each process does the forward and backward passes of its share; steps are made by all alike."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: PpoConfig,
        *,
        pad_id: int,
        replay: ReplayPool,
        reference: PreTrainedModel | None = None,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.model = model
        self.num_updates = 0
        self._config = config
        self._pad_id = pad_id
        self._replay = replay
        self._group = group
        self._reference = reference
        """May be the model itself, where it learns through adapters: it is the reference without them."""
        self._loss = loss_settings(config)
        betas = (config.adam_beta1, config.adam_beta2)
        self._make = partial(torch.optim.Adam, lr=config.learning_rate, betas=betas)
        self.optimizer: Optimizer = WholeOptimizer(LogitsWhere(model), self._make, group)

    def share_out(self, device: str | None = None) -> None:
        """From now on by ZeRO, with the other processes of the group; before the first update. `device` as ZeroOptimizer's."""
        config = self._config
        self.optimizer = ZeroOptimizer(
            LogitsWhere(self.model), self._make, self._group, stage=config.zero_stage, max_norm=config.max_grad_norm, device=device
        )

    def update(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Floats],
        generator: np.random.Generator,
        *,
        version: int = 0,
        unscaled_E: NDArray[np.bool_] | None = None,
    ) -> dict[str, float]:
        """Learn from a round: `advantages[i][t]` weighs response token t of trajectory i. `version` counts the updates that these weights
        have seen; a token's staleness is the difference to its own. `unscaled_E` marks trajectories whose advantages are normalised and
        clipped here, over those of their minibatch; without it all are taken as they are. Returns the metrics (UpdateCounters.metrics).

        Episodes without any advantage are left out, unless a KL penalty or an entropy bonus in the loss concerns them all the same (in the
        replay-only control they stay, for the same compute). An update whose KL explodes ends early, or is undone (see the config). Raises
        TrainingDiverged when a loss or a gradient is not finite.
        """
        if not all(np.isfinite(values).all() for values in advantages):
            raise TrainingDiverged("an advantage is not a finite number: the critic has diverged; lower critic_learning_rate")
        active = [i for i, values in enumerate(advantages) if self._is_active(trajectories[i], values)]
        before = self.num_updates
        saved = self.optimizer.snapshot() if active and self._config.on_explosion == "roll_back" else None
        counters = UpdateCounters()
        if active:
            self.model.eval()  # what the update starts from is measured without dropout
            batch = self._prepared(trajectories, advantages, active, version, unscaled_E)
            self.model.train()
            self._run_epochs(batch, active, generator, counters)
        if saved is not None and counters.exploded_kl is not None:
            self.optimizer.restore(saved)
            self.num_updates = before
            counters.rolled_back = True
        self.model.eval()
        return counters.metrics(num_active=len(active), num_updates=self.num_updates - before)

    def check_alike(self, have_pictures: Iterable[bool]) -> None:
        """Check that every pass calls the same layers, the vision tower too, where each needs the other processes. Raises ConfigError."""
        is_seeing = hasattr(self.model.config, "vision_config")
        if self.optimizer.is_lockstep and is_seeing and not all(have_pictures):
            raise ConfigError("with rl.zero_stage a policy that sees needs a picture in every step and every replayed sample: set it to 0")

    @torch.no_grad()
    def logprobs(self, trajectories: Sequence[Trajectory], chosen: Sequence[int], *, model: PreTrainedModel | None = None) -> list[Floats]:
        """Log-probabilities of the chosen trajectories' response tokens as the model stands (zeros for the others)."""
        scored = model or self.model
        found = [np.zeros(item.num_response_tokens) for item in trajectories]
        for batch in self._step_batches(trajectories, chosen):
            log_distribution_NV = self._log_distribution(scored, batch)
            flat = log_distribution_NV.gather(1, batch.targets_N[:, None])[:, 0].double().cpu().numpy()
            position = 0
            for ref in batch.refs:
                tokens = trajectories[ref.trajectory].tokens_per_step
                start, width = sum(tokens[: ref.step]), tokens[ref.step]
                found[ref.trajectory][start : start + width] = flat[position : position + width]
                position += width
        return list(self._group.fill(found))

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[Floats] | None:
        """The reference policy's log-probabilities of all response tokens, where a KL penalty belongs to the reward; else None."""
        if self._reference is None or self._config.kl_placement != "reward":
            return None
        with self._as_reference():
            return self.logprobs(trajectories, range(len(trajectories)), model=self._reference)

    def _log_distribution(self, model: PreTrainedModel, batch: StepBatch) -> Tensor:
        logits_where = self.optimizer.module if model is self.model else None
        return response_log_distribution(model, batch, self._config.temperature, logits_where)

    def _as_reference(self) -> AbstractContextManager[None]:
        return adapters_off(self.model) if self._reference is self.model else nullcontext()

    def _is_active(self, item: Trajectory, advantages: Floats) -> bool:
        """Whether anything of the loss is about this episode: its advantages, its success, or a term on every token."""
        is_positive = item.is_success and self._config.positive_nll_weight > 0
        is_steered = self._loss.kl_coefficient > 0 or self._loss.entropy_coefficient > 0
        return self._config.mode == "replay_only" or is_positive or is_steered or bool(np.abs(advantages).max() > LEAST_ADVANTAGE)

    def _step_batches(self, trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> Iterator[StepBatch]:
        return step_batches(
            trajectories,
            chosen,
            max_tokens=self._config.microbatch_tokens,
            pad_id=self._pad_id,
            device=self.model.device,
            group=self._group,
            is_lockstep=self.optimizer.is_lockstep,
        )

    def _prepared(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Floats],
        active: Sequence[int],
        version: int,
        unscaled_E: NDArray[np.bool_] | None,
    ) -> _Batch:
        config = self._config
        recomputes = config.off_policy != "none" and config.proximal == "recompute"
        proximal = self.logprobs(trajectories, active) if recomputes else None
        corrections = [
            episode_correction(item, None if proximal is None else proximal[i], version, config) for i, item in enumerate(trajectories)
        ]
        ages = [staleness(item, version).astype(np.float64) for item in trajectories]
        return _Batch(
            trajectories=trajectories, advantages=advantages, unscaled_E=unscaled_E, proximal=proximal, corrections=corrections, ages=ages
        )

    def _run_epochs(self, batch: _Batch, active: Sequence[int], generator: np.random.Generator, counters: UpdateCounters) -> None:
        config = self._config
        num_stepped = 0
        for _ in range(config.epochs):
            epoch = TokenCounters()
            counters.epochs.append(epoch)
            order = [active[i] for i in generator.permutation(len(active))]
            for start in range(0, len(order), config.minibatch_episodes):
                minibatch = self._step(batch, order[start : start + config.minibatch_episodes], generator, counters)
                if minibatch is not None:
                    epoch.add(minibatch)
                    num_stepped += 1
                if counters.exploded_kl is not None or counters.reached_max_kl:
                    return
            if epoch.kl_per_step > config.max_kl:
                break
        if not num_stepped:
            raise TrainingDiverged(
                f"all {counters.skipped} minibatches of an update gave a loss or gradient that is not finite: go back to an earlier "
                "checkpoint, or lower learning_rate"
            )

    def _step(self, batch: _Batch, chosen: Sequence[int], generator: np.random.Generator, counters: UpdateCounters) -> TokenCounters | None:
        """One optimizer step; None where the minibatch was left out, because it is not finite or its KL is too large."""
        config = self._config
        self.optimizer.zero_grad()
        minibatch = TokenCounters()
        try:
            with self._group.raising_together():
                self._policy_gradient(batch, chosen, minibatch)
            minibatch.sum_over(self._group)
            if minibatch.kl_per_step > config.explosive_kl:
                counters.exploded_kl = minibatch.kl_per_step
                return None
            if config.kl_check == "minibatch" and minibatch.kl_per_step > config.max_kl:
                counters.reached_max_kl = True
                return None
            with self._group.raising_together():
                self._replay_gradient(batch, chosen, generator, minibatch)
            rate = config.learning_rate * min(1.0, (self.num_updates + 1) / config.warmup_steps)
            norm = self.optimizer.step(config.max_grad_norm, rate)
            if not np.isfinite(norm):
                raise TrainingDiverged(f"the gradient norm is {norm} at update {self.num_updates + 1}: lower learning_rate")
        except TrainingDiverged:
            if config.on_non_finite == "raise":
                raise
            self.optimizer.zero_grad()
            counters.skipped += 1
            return None
        counters.first_minibatch = counters.first_minibatch or minibatch
        minibatch.grad_norms.append(norm)
        self.num_updates += 1
        return minibatch

    def _policy_gradient(self, batch: _Batch, chosen: Sequence[int], minibatch: TokenCounters) -> None:
        """Accumulate the gradient of one minibatch, micro-batch by micro-batch."""
        config, items = self._config, batch.trajectories
        advantages = self._minibatch_advantages(batch, chosen)
        minibatch.steps = sum(len(items[i].steps) for i in chosen)
        minibatch.tokens = sum(items[i].num_response_tokens for i in chosen)
        num_positive = sum(items[i].num_response_tokens for i in chosen if items[i].is_success)
        for steps in self._step_batches(items, chosen):
            if not steps.refs:
                self._pass_with_the_others(steps)
                continue
            tokens_N = torch.tensor([float(items[ref.trajectory].num_response_tokens) for ref in steps.refs], device=self.model.device)[
                steps.rows_N
            ]
            weights_N = token_weights(
                steps.rows_N,
                aggregation=config.aggregation,
                num_episodes=len(chosen),
                num_steps=minibatch.steps,
                num_tokens=minibatch.tokens,
                episode_scale=config.episode_scale,
                episode_tokens_N=tokens_N,
            )
            if config.mode == "replay_only":
                weights_N = torch.zeros_like(weights_N)  # the same compute, and nothing of it teaches: no penalty, no bonus
            positive_N = None
            if config.positive_nll_weight and num_positive and config.mode == "learn":
                is_positive = torch.tensor([float(items[ref.trajectory].is_success) for ref in steps.refs], device=self.model.device)
                positive_N = is_positive[steps.rows_N] * (config.positive_nll_weight / num_positive)
            self._accumulate(steps, batch, gathered(steps, items, advantages), weights_N, positive_N, minibatch)

    def _minibatch_advantages(self, batch: _Batch, chosen: Sequence[int]) -> Sequence[Floats]:
        if batch.unscaled_E is None:
            return batch.advantages
        config, scaled = self._config, list(batch.advantages)
        unscaled = [i for i in chosen if batch.unscaled_E[i]]
        widths = {i: batch.trajectories[i].tokens_per_step if config.level == "step" else [1] * len(scaled[i]) for i in unscaled}
        # One value a decision, as over a batch: a long answer counts as one step, as a short one does.
        decisions = [scaled[i][np.cumsum([0, *widths[i][:-1]])] for i in unscaled]
        for i, values in zip(unscaled, normalised(decisions, config.advantage_normalisation), strict=True):
            scaled[i] = np.repeat(np.clip(values, -config.highest_advantage, config.highest_advantage), widths[i])
        return scaled

    def _accumulate(
        self, steps: StepBatch, batch: _Batch, advantages_N: Tensor, weights_N: Tensor, positive_N: Tensor | None, minibatch: TokenCounters
    ) -> None:
        config, items = self._config, batch.trajectories
        log_distribution_NV = self._log_distribution(self.model, steps)
        logprobs_N = log_distribution_NV.detach().gather(1, steps.targets_N[:, None])[:, 0]
        correction_N = gathered(steps, items, batch.corrections)
        old_N = steps.old_logprobs_N
        if batch.proximal is not None:
            old_N = gathered(steps, items, batch.proximal)
        elif config.off_policy != "none":
            old_N = loglinear_proximal(logprobs_N, steps.old_logprobs_N, gathered(steps, items, batch.ages))
            correction_N = correction_N * token_correction(old_N, steps.old_logprobs_N, config)
        result = policy_loss(
            log_distribution_NV,
            steps.targets_N,
            old_N,
            advantages_N,
            weights_N,
            self._loss,
            correction_N=correction_N,
            reference_logprobs_N=self._reference_logprobs(steps),
            positive_weights_N=positive_N,
        )
        with self.optimizer.checking_a_pass():
            if not torch.isfinite(result.loss):
                raise TrainingDiverged(f"the policy loss is {result.loss.item()} at update {self.num_updates + 1}: lower learning_rate")
        self.optimizer.backward(result.loss)
        minibatch.count(result)
        minibatch.mismatch += float(kl_k3(logprobs_N, steps.old_logprobs_N).sum())
        minibatch.corrected += float(correction_N.sum())
        minibatch.dropped += int((correction_N == 0).sum())

    @torch.no_grad()
    def _reference_logprobs(self, steps: StepBatch) -> Tensor | None:
        if self._reference is None or not self._loss.kl_coefficient:
            return None
        with self._as_reference():
            reference_NV = self._log_distribution(self._reference, steps)
        return reference_NV.gather(1, steps.targets_N[:, None])[:, 0]

    def _pass_with_the_others(self, steps: StepBatch, *, replayed: bool = False) -> None:
        """A pass that other processes wait for, and that adds nothing. It makes the same calls as theirs."""
        log_distribution_NV = self._log_distribution(self.model, steps)
        if not replayed:
            self._reference_logprobs(steps)
        with self.optimizer.checking_a_pass():
            pass
        self.optimizer.backward(log_distribution_NV.gather(1, steps.targets_N[:, None]).sum() * 0.0)

    def _replay_gradient(self, batch: _Batch, chosen: Sequence[int], generator: np.random.Generator, minibatch: TokenCounters) -> None:
        """Add the gradient of the auxiliary supervised loss, each pool weighed by how many samples it gives. They are few, and who leads
        computes them; all draw, so that their generators stay alike."""
        config = self._config
        drawn = self._replay.draw(generator, num_sft=config.replay_sft, num_ct=config.replay_ct)
        total = sum(len(samples) for samples in drawn)
        for samples in drawn if config.replay_weight else []:
            if self._group.is_leader:
                self._replay_pass(samples, len(samples) / total, minibatch)
            elif self.optimizer.is_lockstep:
                refs = step_refs(batch.trajectories, chosen)
                self._pass_with_the_others(filler(batch.trajectories, refs, pad_id=self._pad_id, device=self.model.device), replayed=True)

    def _replay_pass(self, samples: Sequence[EncodedSample], share: float, minibatch: TokenCounters) -> None:
        self.check_alike(bool(sample.screenshot_ids) for sample in samples)
        loss = self._replay.loss(self.optimizer.module, samples, pad_id=self._pad_id, device=self.model.device) * share
        with self.optimizer.checking_a_pass():
            if not torch.isfinite(loss):
                raise TrainingDiverged(f"the replay loss is {loss.item()} at update {self.num_updates + 1}: lower learning_rate")
        self.optimizer.backward(self._config.replay_weight * loss)
        minibatch.replay.append(loss.item())
