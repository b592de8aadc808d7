"""Which samples a supervised run reads at which step: a plan made before the first step, a pure function of lengths, weights and a seed.

A resumed run makes the same plan and goes on where it stopped. Tensors are made of a batch here too; the loss is models/supervised.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

CHUNK_ROWS = 1024
"""Rows drawn at a time; a chunk's rows are sorted by length and cut into batches, so that little of a batch is padding."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """Token ids of a whole conversation, the weight of each in the loss, and how often to draw it relative to the others."""

    token_ids: Sequence[int]
    loss_weights: Sequence[float]
    weight: float = 1.0


def plan_batches(lengths: Sequence[int], weights: Sequence[float], *, batch_tokens: int, steps: int, seed: int) -> list[list[int]]:
    """Row numbers of each of `steps` batches. A batch holds as many rows as fit into `batch_tokens` with padding; at least one.

    Rows are drawn by the golden-ratio sequence over their cumulated weights: each row returns at nearly equal intervals, in proportion
    to its weight, so an epoch of equal rows is close to a pass over all of them. Raises ValueError without a row of positive weight.
    """
    cumulated = np.cumsum(np.asarray(weights, dtype=np.float64))
    if not len(cumulated) or not np.isfinite(cumulated[-1]) or cumulated[-1] <= 0 or min(weights) < 0:
        raise ValueError("the weights of the samples must be finite, not negative, and not all zero")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    cumulated = np.cumsum(np.asarray(weights, dtype=np.float64)[order])
    start, drawn = generator.random(), 0
    batches: list[list[int]] = []
    while len(batches) < steps:
        points = np.mod(start + np.arange(drawn, drawn + CHUNK_ROWS) * _GOLDEN, 1.0)
        drawn += CHUNK_ROWS
        positions = np.searchsorted(cumulated, points * cumulated[-1], side="right").clip(max=len(order) - 1)
        chunk = _cut([int(row) for row in order[positions]], lengths, batch_tokens)
        batches.extend(chunk[index] for index in generator.permutation(len(chunk)))
    return batches[:steps]


def _cut(rows: list[int], lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for row in sorted(rows, key=lambda row: lengths[row]):
        if batches and lengths[row] * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


class PlannedBatches(Dataset[dict[str, Tensor]]):
    """Whole batches as items, one a step: `input_ids` and `loss_weights`, both (rows, tokens), padded on the right."""

    def __init__(self, samples: Sequence[EncodedSample], plan: Sequence[Sequence[int]], pad_token_id: int) -> None:
        self._samples, self._plan, self._pad = samples, plan, pad_token_id

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        rows = [self._samples[row] for row in self._plan[step]]
        longest = max(len(row.token_ids) for row in rows)
        return {
            "input_ids": torch.tensor([[*row.token_ids, *[self._pad] * (longest - len(row.token_ids))] for row in rows]),
            "loss_weights": torch.tensor([[*row.loss_weights, *[0.0] * (longest - len(row.loss_weights))] for row in rows]),
        }
