"""What an invariant of multi-turn reinforcement learning is a function of: a library's operations, batches of episodes, naive definitions.
The invariants themselves: advantages.py, losses.py.

Each invariant is a function of a library (an adapter to its functions: peers/rl_*.py, ours/rl_functions.py) and a random generator; it
raises AssertionError where the library breaks it, and Missing where the library has no function or argument for it. numpy only, so that it
runs in the venv of any library. The traps were met by others in practice: each names where.

Shape suffixes: B episodes, T token positions of the longest, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
TOLERANCE = 1e-6


class Missing(Exception):
    """The library has no function, or no argument, for what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Episodes as most libraries lay them out: one row of tokens each, `mask_BT` True at response tokens and False at observations and
    padding. `after_B[i]` is the value of the state that a limit kept episode i from; None where the environment ended it."""

    mask_BT: Bools
    rewards_BT: Floats
    values_BT: Floats
    after_B: tuple[float | None, ...] = ()

    def after(self, row: int) -> float | None:
        return self.after_B[row] if self.after_B else None

    def rows(self, order: Sequence[int]) -> Spans:
        chosen = list(order)
        return Spans(
            mask_BT=self.mask_BT[chosen],
            rewards_BT=self.rewards_BT[chosen],
            values_BT=self.values_BT[chosen],
            after_B=tuple(self.after(i) for i in chosen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """One batch for a policy loss, as torch tensors (B, T): `mask` True at response tokens."""

    logprobs: Any
    old_logprobs: Any
    advantages: Any
    mask: Any
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None


class Library:
    """What an adapter may answer. Whatever it leaves out is Missing."""

    name = ""
    version = ""
    functions: dict[str, str] = {}  # noqa: RUF012  # operation -> name of the library's own function
    notes: dict[str, str] = {}  # noqa: RUF012  # invariant -> what to know before judging the result

    def gae(self, spans: Spans, *, gamma: float, lambda_: float) -> tuple[Floats, Floats]:
        """Advantages (not normalised) and value targets (B, T)."""
        raise Missing("no function for GAE")

    def decoupled_gae(self, spans: Spans, *, gamma: float, lambda_policy: float, lambda_critic: float) -> tuple[Floats, Floats]:
        raise Missing("no second lambda for the critic")

    def length_lambda(self, num_tokens: int, *, alpha: float) -> float:
        raise Missing("no length-adaptive lambda")

    def returns(self, spans: Spans, *, gamma: float) -> tuple[Floats, Floats]:
        """REINFORCE++: normalised advantages and returns (B, T)."""
        raise Missing("no function for REINFORCE++")

    def group(self, rewards_E: Floats, groups_E: Sequence[str], *, normalise_std: bool) -> Floats:
        """GRPO's advantages, one an episode."""
        raise Missing("no function for group advantages")

    def policy_loss(self, case: LossCase, *, aggregation: str, parts: Sequence[Sequence[int]] | None = None) -> Any:
        """A differentiable scalar. `aggregation`: token or episode_mean; `parts`: rows of each micro-batch, whose losses are added up."""
        raise Missing("no function for the clipped loss")

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        raise Missing("no function for the k3 estimate")

    def correction(self, proximal: Any, behaviour: Any, mask: Any, *, kind: str) -> Any:
        """Weights (B, T) of off-policy tokens; kind: tis (cap 2), icepop (0.5 to 5), sequence_mask (0.99 to 1.01)."""
        raise Missing("no function for off-policy weights")

    def value_loss(self, values: Any, old_values: Any, targets: Any, mask: Any, *, clip: float) -> Any:
        raise Missing("no function for the value loss")

    def explained_variance(self, values: Floats, returns: Floats) -> float:
        raise Missing("no function for explained variance")


def random_spans(rng: np.random.Generator, *, episodes: int = 3, is_plain: bool = False) -> Spans:
    """Episodes of one to three responses with observations between them (none if plain), rewards on the last token of each response."""
    rows: list[tuple[list[bool], list[float]]] = []
    for _ in range(episodes):
        mask: list[bool] = []
        rewards: list[float] = []
        for step in range(1 if is_plain else rng.integers(1, 4)):
            if step:
                gap = int(rng.integers(1, 4))
                mask += [False] * gap
                rewards += [0.0] * gap
            length = int(rng.integers(1, 5))
            mask += [True] * length
            rewards += [0.0] * (length - 1) + [float(rng.normal())]
        rows.append((mask, rewards))
    longest = max(len(mask) for mask, _ in rows)
    mask_BT = np.zeros((episodes, longest), dtype=bool)
    rewards_BT = np.zeros((episodes, longest))
    for i, (mask, rewards) in enumerate(rows):
        mask_BT[i, : len(mask)], rewards_BT[i, : len(mask)] = mask, rewards
    values_BT = np.where(mask_BT, rng.normal(size=mask_BT.shape), 0.0)
    return Spans(mask_BT=mask_BT, rewards_BT=rewards_BT, values_BT=values_BT)


def responses(spans: Spans, matrix_BT: Floats) -> list[Floats]:
    """What a matrix says at the response tokens of each episode."""
    return [row[mask] for row, mask in zip(np.asarray(matrix_BT, dtype=np.float64), spans.mask_BT, strict=True)]


def same(found: Sequence[Floats], expected: Sequence[Floats], what: str) -> None:
    for a, b in zip(found, expected, strict=True):
        if not np.allclose(a, b, atol=TOLERANCE, rtol=1e-5):  # NaN is never close
            raise AssertionError(f"{what}: {np.round(a, 3).tolist()} for {np.round(b, 3).tolist()}")


def naive_gae(rewards_T: Floats, values_T: Floats, gamma: float, lambda_: float, after: float = 0.0) -> Floats:
    """The definition as a double sum over one episode's response tokens (Schulman et al., arXiv 1506.02438, equation 16)."""
    following = [*values_T[1:], after]
    deltas = [r + gamma * then - v for r, then, v in zip(rewards_T, following, values_T, strict=True)]
    count = len(deltas)
    return np.array([sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)])


def expected_gae(spans: Spans, gamma: float, lambda_: float) -> list[Floats]:
    pairs = zip(responses(spans, spans.rewards_BT), responses(spans, spans.values_BT), strict=True)
    return [naive_gae(r, v, gamma, lambda_, spans.after(i) or 0.0) for i, (r, v) in enumerate(pairs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """`operation` is the Library's method that it tests; `source` says where the trap was met, or which formula it is."""

    check: Callable[[Library, np.random.Generator], None]
    operation: str
    source: str

    @property
    def name(self) -> str:
        return self.check.__name__
