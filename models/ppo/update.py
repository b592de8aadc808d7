"""One round's gradient steps on the policy: minibatches of episodes, the clipped loss, replayed samples, the stop at too much KL.

Advantages come in ready; where they come from is value_learner.py and advantages.py. Shape suffixes as in losses.py and buffer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from transformers import PreTrainedModel

from models.ppo.buffer import Trajectory, TurnBatch, turn_batches
from models.ppo.config import PpoConfig
from models.ppo.losses import policy_loss, token_weights
from models.training_forward import hidden_where
from warehouse.errors import TrainingDiverged

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySample:
    """A supervised sample as tokens: `weights[i]` is the weight of predicting `token_ids[i]` (0: context only)."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPool:
    """What the auxiliary supervised loss draws from; either may be empty."""

    sft: Sequence[ReplaySample] = ()
    ct: Sequence[ReplaySample] = ()


@dataclass(slots=True)
class _Tally:
    """Sums over the tokens of one epoch."""

    kl: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    tokens: int = 0
    steps: int = 0
    replay: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    first_minibatch_kl: float | None = None


def response_log_distribution(model: PreTrainedModel, batch: TurnBatch, temperature: float) -> Tensor:
    """log p(token | before) over the vocabulary (N, V) at every response position, under the distribution that is sampled from. Logits
    are computed at these positions only."""
    logits_NV = model.get_output_embeddings()(hidden_where(model, batch.inputs_BT, batch.response_BT))
    return log_softmax(logits_NV.float() / temperature, dim=-1)


def replay_loss(model: PreTrainedModel, samples: Sequence[ReplaySample], *, pad_id: int) -> Tensor:
    """Weighted mean negative log-likelihood of the samples' tokens."""
    longest = max(len(sample.token_ids) for sample in samples)
    ids_BT = torch.full((len(samples), longest), pad_id, dtype=torch.long)
    weights_BT = torch.zeros((len(samples), longest))
    for row, sample in enumerate(samples):
        ids_BT[row, : len(sample.token_ids)] = torch.tensor(sample.token_ids)
        weights_BT[row, : len(sample.weights)] = torch.tensor(sample.weights)
    ids_BT, weights_BT = ids_BT.to(model.device), weights_BT.to(model.device)
    marked_BT = weights_BT[:, 1:] > 0
    logits_NV = model.get_output_embeddings()(hidden_where(model, ids_BT[:, :-1], marked_BT)).float()
    losses_N = nn.functional.cross_entropy(logits_NV, ids_BT[:, 1:][marked_BT], reduction="none")
    weights_N = weights_BT[:, 1:][marked_BT]
    return (losses_N * weights_N).sum() / weights_N.sum().clamp(min=1e-8)


class PolicyLearner:
    """The live policy and its optimizer through the rounds of one run. `num_updates` counts optimizer steps, for the warm-up."""

    def __init__(
        self, model: PreTrainedModel, config: PpoConfig, *, pad_id: int, replay: ReplayPool, reference: PreTrainedModel | None = None
    ) -> None:
        self.model = model
        self.num_updates = 0
        self._config = config
        self._pad_id = pad_id
        self._replay = replay
        self._reference = reference
        betas = (config.adam_beta1, config.adam_beta2)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, betas=betas)

    def update(
        self, trajectories: Sequence[Trajectory], advantages: Sequence[Floats], generator: np.random.Generator, *, version: int = 0
    ) -> dict[str, float]:
        """Learn from a round: `advantages[i][t]` weighs response token t of trajectory i. `version` counts the updates that these weights
        have seen; a token's staleness is the difference to its own. Returns what was measured (see `_metrics`).

        Episodes without any advantage are left out (in the replay-only control they stay, for the same compute). Raises TrainingDiverged
        when a loss or a gradient is not finite.
        """
        config = self._config
        if not all(np.isfinite(values).all() for values in advantages):
            raise TrainingDiverged("an advantage is not a finite number: the critic has diverged; lower critic_learning_rate")
        active = [i for i, values in enumerate(advantages) if config.mode == "replay_only" or np.abs(values).max() > 1e-3]
        self.model.train()
        tallies: list[_Tally] = []
        updates_before = self.num_updates
        for _ in range(config.epochs if active else 0):
            tally = _Tally()
            tallies.append(tally)
            order = [active[i] for i in generator.permutation(len(active))]
            for start in range(0, len(order), config.minibatch_episodes):
                self._step(trajectories, advantages, order[start : start + config.minibatch_episodes], generator, tally)
            if tally.kl / tally.steps > config.max_kl:
                break
        self.model.eval()
        return self._metrics(tallies, num_active=len(active), num_updates=self.num_updates - updates_before)

    def _step(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Floats],
        chosen: Sequence[int],
        generator: np.random.Generator,
        tally: _Tally,
    ) -> None:
        config = self._config
        self.optimizer.zero_grad()
        num_steps = sum(len(trajectories[i].turns) for i in chosen)
        num_tokens = sum(trajectories[i].num_response_tokens for i in chosen)
        kl_before = tally.kl
        for batch in turn_batches(trajectories, chosen, max_tokens=config.microbatch_tokens, pad_id=self._pad_id, device=self.model.device):
            weights_N = token_weights(
                batch.rows_N, aggregation=config.aggregation, num_episodes=len(chosen), num_steps=num_steps, num_tokens=num_tokens,
                episode_scale=config.episode_scale,
            )  # fmt: skip
            self._accumulate(batch, _token_advantages(batch, trajectories, advantages), weights_N, tally)
        tally.steps += num_steps
        tally.tokens += num_tokens
        if tally.first_minibatch_kl is None:
            tally.first_minibatch_kl = (tally.kl - kl_before) / num_steps
        self._replay_step(generator, tally)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip))
        if not np.isfinite(norm):
            raise TrainingDiverged(f"the gradient norm is {norm} at update {self.num_updates + 1}: lower learning_rate or advantage_clip")
        tally.grad_norms.append(norm)
        self.num_updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, self.num_updates / config.warmup_updates)
        self.optimizer.step()

    def _accumulate(self, batch: TurnBatch, advantages_N: Tensor, weights_N: Tensor, tally: _Tally) -> None:
        config = self._config
        reference_N = None
        if config.kl_coefficient and self._reference is not None:
            with torch.no_grad():
                reference_NV = response_log_distribution(self._reference, batch, config.temperature)
                reference_N = reference_NV.gather(1, batch.targets_N[:, None])[:, 0]
        result = policy_loss(
            response_log_distribution(self.model, batch, config.temperature),
            batch.targets_N, batch.old_logprobs_N, advantages_N, weights_N,
            clip_low=config.clip_low, clip_high=config.clip_high, kl_coefficient=config.kl_coefficient, reference_logprobs_N=reference_N,
        )  # fmt: skip
        if not torch.isfinite(result.loss):
            raise TrainingDiverged(f"the policy loss is {result.loss.item()} at update {self.num_updates + 1}: lower learning_rate")
        result.loss.backward()
        tally.kl += result.kl_sum
        tally.entropy += result.entropy_sum
        tally.clipped += result.num_clipped

    def _replay_step(self, generator: np.random.Generator, tally: _Tally) -> None:
        """Add the gradient of the auxiliary supervised loss, each pool weighed by how many samples it gives."""
        config = self._config
        wanted = [(self._replay.sft, config.replay_sft), (self._replay.ct, config.replay_ct)]
        drawn = [[pool[i] for i in generator.integers(len(pool), size=count)] for pool, count in wanted if pool and count]
        total = sum(len(samples) for samples in drawn)
        for samples in drawn if config.replay_weight else []:
            loss = replay_loss(self.model, samples, pad_id=self._pad_id) * (len(samples) / total)
            if not torch.isfinite(loss):
                raise TrainingDiverged(f"the replay loss is {loss.item()} at update {self.num_updates + 1}: lower learning_rate")
            (config.replay_weight * loss).backward()
            tally.replay.append(loss.item())

    def _metrics(self, tallies: Sequence[_Tally], *, num_active: int, num_updates: int) -> dict[str, float]:
        """`kl` is of the last epoch, in nats a step; `mismatch_kl` is that of the first minibatch, before any update: what engine and
        learner disagree on by themselves. `entropy` is a token's mean at the first epoch."""
        metrics: dict[str, float] = {"active_episodes": num_active, "updates": num_updates, "epochs": len(tallies)}
        if tallies:
            first, last = tallies[0], tallies[-1]
            metrics |= {
                "kl": last.kl / last.steps,
                "mismatch_kl": first.first_minibatch_kl or 0.0,
                "entropy": first.entropy / first.tokens,
                "clip_fraction": last.clipped / last.tokens,
                "grad_norm": float(np.mean([norm for tally in tallies for norm in tally.grad_norms])),
            }
            if any(tally.replay for tally in tallies):
                metrics["replay_loss"] = sum(sum(tally.replay) for tally in tallies) / max(1, num_updates)
        return metrics


def _token_advantages(batch: TurnBatch, trajectories: Sequence[Trajectory], advantages: Sequence[Floats]) -> Tensor:
    parts = []
    for ref in batch.refs:
        tokens = trajectories[ref.trajectory].tokens_per_turn
        start = sum(tokens[: ref.turn])
        parts.append(advantages[ref.trajectory][start : start + tokens[ref.turn]])
    return torch.tensor(np.concatenate(parts), dtype=torch.float32, device=batch.targets_N.device)
