"""Replayed supervised samples beside the policy loss, so that a policy does not forget what it was taught: which, how many, their loss.

Samples and loss are those of supervised training; when they are drawn and how much they weigh is update.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.families.vision import PixelLoader
from models.training.batching import EncodedSample, tensors
from models.training.forward import weighted_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPool:
    """What the auxiliary supervised loss draws from; either kind may be empty. Each sample has some loss weight. `pixels` loads the images
    that samples show."""

    sft: Sequence[EncodedSample] = ()
    ct: Sequence[EncodedSample] = ()
    pixels: PixelLoader | None = None

    @staticmethod
    def as_large_as(num_sft: int, num_ct: int) -> ReplayPool:
        """A pool that draws as one of these sizes does, of samples without content."""
        nothing = EncodedSample(token_ids=(), loss_weights=())
        return ReplayPool(sft=[nothing] * num_sft, ct=[nothing] * num_ct)

    def draw(self, generator: np.random.Generator, *, num_sft: int, num_ct: int) -> list[list[EncodedSample]]:
        """So many of each kind, with repeats and all alike likely; nothing of a kind without samples."""
        wanted = [(self.sft, num_sft), (self.ct, num_ct)]
        return [[samples[i] for i in generator.integers(len(samples), size=count)] for samples, count in wanted if samples and count]

    def loss(self, model: nn.Module, samples: Sequence[EncodedSample], *, pad_id: int, device: torch.device) -> Tensor:
        """Weighted mean negative log-likelihood of the samples' tokens, differentiable; `model` is a LogitsWhere, maybe wrapped."""
        batch = tensors(samples, pad_id, pixels=self.pixels)
        on_device = {name: part.to(device) if isinstance(part, Tensor) else part for name, part in batch.items()}
        return weighted_loss(model, on_device)
