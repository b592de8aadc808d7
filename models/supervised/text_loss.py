"""The loss of a checkpoint on held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agent.policy.policy import Message
from models.families.registry import load_codec, load_policy, max_positions
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import cut_padded, tensors
from models.training.forward import weighted_loss
from warehouse.core.errors import ConfigError

BATCH_TOKENS = 4096


@torch.no_grad()
def text_loss(folder: Path, texts: Sequence[tuple[Message, ...]]) -> float | None:
    """Mean negative log-likelihood, in nats a token, of what the assistant says in these conversations; None where it says nothing that the
    model can read."""
    codec = load_codec(folder)
    try:
        samples = encode_samples(codec, [TrainingSample(messages=text) for text in texts], 0.0, max_tokens=max_positions(folder))
    except ConfigError:
        return None
    model = load_policy(folder).eval()
    total = loss = 0.0
    for rows in cut_padded(range(len(samples)), [len(sample.token_ids) for sample in samples], BATCH_TOKENS):
        batch = tensors([samples[row] for row in rows], codec.pad_token_id)
        weight = float(batch["loss_weights"].sum())
        total, loss = total + weight, loss + weight * float(weighted_loss(model, batch))
    return loss / total
