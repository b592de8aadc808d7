"""Counters over an update's minibatches, and the metrics made of them. What they count is measured in update.py and losses.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from models.rl.distributed.process_group import ProcessGroup
from models.rl.updates.losses import PolicyLoss

SUMMED = ("loss", "kl", "mismatch", "entropy", "clipped_low", "clipped_high", "corrected", "dropped")
"""What a rank measures of its share of a minibatch. `tokens` and `steps` are the whole minibatch's on every rank."""


@dataclass(slots=True)
class TokenCounters:
    """Sums over the tokens of one epoch, or of one minibatch. `mismatch` is the KL between sampler and learner; `corrected` sums the
    off-policy weights of the tokens and `dropped` counts those of weight 0."""

    loss: float = 0.0
    kl: float = 0.0
    mismatch: float = 0.0
    entropy: float = 0.0
    clipped_low: int = 0
    clipped_high: int = 0
    corrected: float = 0.0
    dropped: int = 0
    tokens: int = 0
    steps: int = 0
    replay: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)

    def count(self, result: PolicyLoss) -> None:
        """Add one micro-batch."""
        self.loss += float(result.loss.detach())
        self.kl += result.kl_sum
        self.entropy += result.entropy_sum
        self.clipped_low += result.num_clipped_low
        self.clipped_high += result.num_clipped_high

    def sum_over(self, group: ProcessGroup) -> None:
        """Replace this rank's sums by the sums over all ranks."""
        if group.size > 1:
            for name, total in zip(SUMMED, group.sum([getattr(self, name) for name in SUMMED]).tolist(), strict=True):
                setattr(self, name, total)

    def add(self, other: TokenCounters) -> None:
        """Add one minibatch."""
        for name in (*SUMMED, "tokens", "steps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.replay += other.replay
        self.grad_norms += other.grad_norms

    @property
    def kl_per_step(self) -> float:
        return self.kl / max(1, self.steps)


@dataclass(slots=True)
class UpdateCounters:
    """One update: its epochs, its first minibatch, and what went wrong."""

    epochs: list[TokenCounters] = field(default_factory=list)
    first_minibatch: TokenCounters | None = None
    skipped: int = 0
    exploded_kl: float | None = None
    reached_max_kl: bool = False
    """Within a pass, by one minibatch (`kl_check`)."""
    rolled_back: bool = False

    def metrics(self, *, num_active: int, num_updates: int) -> dict[str, float]:
        """`kl` is of the last epoch, in nats a step, against what the ratio was clipped against; `mismatch_kl` that of the first minibatch,
        before any update, between sampler and learner: what engine and learner disagree on by themselves, and staleness. At the first
        epoch `policy_loss` is a minibatch's and `entropy` a token's mean; clip fractions are of the last. `exploded`, `rolled_back` and
        `skipped_minibatches` are 0 in an update that went well."""
        metrics: dict[str, float] = {
            "active_episodes": num_active,
            "updates": num_updates,
            "epochs": len(self.epochs),
            "exploded": float(self.exploded_kl is not None),
            "rolled_back": float(self.rolled_back),
            "skipped_minibatches": self.skipped,
        }
        if self.exploded_kl is not None:
            metrics["exploded_kl"] = self.exploded_kl
        epochs = [epoch for epoch in self.epochs if epoch.tokens]
        if epochs:
            metrics |= self._measured(epochs, num_updates)
        return metrics

    def _measured(self, epochs: Sequence[TokenCounters], num_updates: int) -> dict[str, float]:
        first, last = epochs[0], epochs[-1]
        opening = self.first_minibatch or first
        metrics = {
            "policy_loss": first.loss / max(1, len(first.grad_norms)),
            "kl": last.kl_per_step,
            "mismatch_kl": opening.mismatch / max(1, opening.steps),
            "entropy": first.entropy / first.tokens,
            "clip_fraction": (last.clipped_low + last.clipped_high) / last.tokens,
            "clip_fraction_low": last.clipped_low / last.tokens,
            "clip_fraction_high": last.clipped_high / last.tokens,
            "correction_mean": first.corrected / first.tokens,
            "correction_dropped": first.dropped / first.tokens,
        }
        norms = [norm for epoch in epochs for norm in epoch.grad_norms]
        if norms:
            metrics["grad_norm"] = float(np.mean(norms))
        if any(epoch.replay for epoch in epochs):
            metrics["replay_loss"] = sum(sum(epoch.replay) for epoch in epochs) / max(1, num_updates)
        return metrics
