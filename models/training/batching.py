"""Which samples a supervised run reads at which step: a plan made before the first step, a pure function of lengths, weights and a seed.

A resumed run makes the same plan and goes on where it stopped. Tensors are made of a batch here too, padded or packed, and shared out over
the processes of a run; the loss is in models/training/forward.py, attention over packed rows in models/training/packing.py.

Shapes: B rows, T tokens, S samples of a packed row. A sample's last token is only ever a target, so T leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from models.families.vision import PixelLoader, collate_vision
from warehouse.core.errors import ModelError

CHUNK_ROWS = 1024
"""Rows drawn at a time; a chunk's rows are sorted by length and cut into batches, so that little of a batch is padding."""
NAMED_SAMPLES = 5
"""How many samples an error names."""
_GOLDEN = (5**0.5 - 1) / 2
Lengths = Sequence[int] | NDArray[np.int64]
Packing = Literal["padded", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """Token ids of a whole conversation, the weight of each in the loss, and how often to draw it relative to the others. `sample_id`
    names it in messages. `screenshot_ids` are the images that it shows, in order; they are read when its batch is made."""

    token_ids: Sequence[int] | NDArray[np.int32]
    loss_weights: Sequence[float] | NDArray[np.float32]
    weight: float = 1.0
    sample_id: str = ""
    screenshot_ids: Sequence[str] = ()


def plan_batches(
    lengths: Lengths,
    weights: Sequence[float] | NDArray[np.float64],
    *,
    batch_tokens: int,
    steps: int,
    seed: int,
    packing: Packing = "padded",
) -> list[list[int]]:
    """Row numbers of each of `steps` batches. A batch holds as many rows as fit into `batch_tokens`; at least one.

    `padded`: of rows of similar length, padding counted. `packed`: in the order in which they are drawn, so that every batch is a mixture
    of its own. Rows are drawn by the golden-ratio sequence over their cumulated weights: each row returns at nearly equal intervals, in
    proportion to its weight, so an epoch of equal rows is close to a pass over all of them. Raises ValueError without a row of positive
    weight.
    """
    cumulated = np.cumsum(np.asarray(weights, dtype=np.float64))
    if not len(cumulated) or not np.isfinite(cumulated[-1]) or cumulated[-1] <= 0 or np.min(weights) < 0:
        raise ValueError("sample weights must be finite, not negative, and not all zero")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    cumulated = np.cumsum(np.asarray(weights, dtype=np.float64)[order])
    start, drawn = generator.random(), 0
    batches: list[list[int]] = []
    while len(batches) < steps:
        points = np.mod(start + np.arange(drawn, drawn + CHUNK_ROWS) * _GOLDEN, 1.0)
        drawn += CHUNK_ROWS
        positions = np.searchsorted(cumulated, points * cumulated[-1], side="right").clip(max=len(order) - 1)
        rows = [int(row) for row in order[positions]]
        chunk = cut_padded(rows, lengths, batch_tokens) if packing == "padded" else _cut_packed(rows, lengths, batch_tokens)
        batches.extend(chunk[index] for index in generator.permutation(len(chunk)))
    return batches[:steps]


def cut_padded(rows: Sequence[int], lengths: Lengths, batch_tokens: int) -> list[list[int]]:
    """Batches of rows of similar length, at most `batch_tokens` each with padding."""
    batches: list[list[int]] = []
    for row in sorted(rows, key=lambda row: lengths[row]):
        if batches and lengths[row] * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _cut_packed(rows: Sequence[int], lengths: Lengths, batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    num_tokens = 0
    for row in rows:
        num_tokens += lengths[row]
        if batches and num_tokens <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
            num_tokens = lengths[row]
    return batches


def share_out(rows: Sequence[int], lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """The rows of one batch for each of `num_ranks` processes: the longest first, each to the process with the fewest tokens."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for row in sorted(rows, key=lambda row: (-lengths[row], row)) if num_ranks > 1 else rows:
        rank = loads.index(min(loads))
        shares[rank].append(row)
        loads[rank] += lengths[row]
    return shares


class PlannedBatches(Dataset[dict[str, Any]]):
    """Whole batches as items, one a step; of several processes each gets its share.

    `input_ids`, `targets` and `loss_weights` of the targets are (B, T): padded on the right with loss 0, or packed into one row, then
    with `lengths` (S). `vision` holds the tensors of the images that the batch shows, if any. `total_weight` is the sum of loss weights
    over the whole batch, all processes together.
    """

    def __init__(
        self,
        samples: Sequence[EncodedSample],
        plan: Sequence[Sequence[int]],
        pad_token_id: int,
        *,
        packing: Packing = "padded",
        rank: int = 0,
        num_ranks: int = 1,
        pixels: PixelLoader | None = None,
    ) -> None:
        self._samples, self._plan, self._pad, self.packing, self.pixels = samples, plan, pad_token_id, packing, pixels
        self._rank, self._num_ranks = rank, num_ranks

    def __len__(self) -> int:
        return len(self._plan)

    def samples_at(self, step: int) -> list[EncodedSample]:
        """This process's share of a batch."""
        return self._share(self._read(step))

    def __getitem__(self, step: int) -> dict[str, Any]:
        batch = self._read(step)
        # A process without a share takes part all the same, with a sample that weighs nothing.
        own = self._share(batch) or [_without_weight(batch[0])]
        total = sum(float(np.sum(sample.loss_weights[1:], dtype=np.float64)) for sample in batch)
        return {**tensors(own, self._pad, self.packing, self.pixels), "total_weight": torch.tensor(total)}

    def _read(self, step: int) -> list[EncodedSample]:
        return [self._samples[row] for row in self._plan[step]]

    def _share(self, batch: Sequence[EncodedSample]) -> list[EncodedSample]:
        shares = share_out(range(len(batch)), [len(sample.token_ids) for sample in batch], self._num_ranks)
        return [batch[place] for place in shares[self._rank]]


def _without_weight(sample: EncodedSample) -> EncodedSample:
    """Of a sample with images all of it: every process has to take part in the vision tower's passes too."""
    num = len(sample.token_ids) if sample.screenshot_ids else 2
    return EncodedSample(token_ids=sample.token_ids[:num], loss_weights=[0.0] * num, screenshot_ids=sample.screenshot_ids)


def tensors(
    samples: Sequence[EncodedSample], pad_token_id: int, packing: Packing = "padded", pixels: PixelLoader | None = None
) -> dict[str, Any]:
    """Samples as one batch: `input_ids`, `targets`, `loss_weights`, `lengths` where they are packed, `vision` where they show images;
    see PlannedBatches. Raises ModelError for samples with images and no `pixels` to load them."""
    ids = [torch.tensor(sample.token_ids, dtype=torch.int64) for sample in samples]
    weights = [torch.tensor(sample.loss_weights, dtype=torch.float32) for sample in samples]
    columns = {
        "input_ids": ([row[:-1] for row in ids], pad_token_id),
        "targets": ([row[1:] for row in ids], pad_token_id),
        "loss_weights": ([row[1:] for row in weights], 0),
    }
    if packing == "packed":
        lengths = torch.tensor([len(row) - 1 for row in ids])
        return {**{name: torch.cat(rows).unsqueeze(0) for name, (rows, _) in columns.items()}, "lengths": lengths}
    batch: dict[str, Any] = {name: pad_sequence(rows, batch_first=True, padding_value=fill) for name, (rows, fill) in columns.items()}
    return batch | _vision(samples, pixels)


def _vision(samples: Sequence[EncodedSample], pixels: PixelLoader | None) -> dict[str, Any]:
    if not any(sample.screenshot_ids for sample in samples):
        return {}
    if pixels is None:
        raise ModelError("samples show screenshots, but there is no reader for images: pass `read_image` to train_supervised")
    return {"vision": collate_vision([pixels(sample.screenshot_ids) for sample in samples])}
