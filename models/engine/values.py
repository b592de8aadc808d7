"""Values of finished answers, for callers who want them with their tokens (EmbeddedEngine's `critic`): the critic's forward pass over
prompt and answer. What a critic is: models/rl/value/critic.py.

Shape suffixes: B rows, T positions, N answer tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from models.engine.rows import Row
from models.families.vision import collate_vision
from models.training.forward import hidden_where

if TYPE_CHECKING:
    from models.rl.value.critic import Critic


@torch.inference_mode()
def response_values(critic: Critic, rows: Sequence[Row], pad_id: int) -> list[list[float]]:
    """For each row, V at the positions before its answer tokens: the critic's level `token`. Images are looked at as in learning."""
    if not rows:
        return []
    device = critic.head.weight.device
    longest = max(len(row.tokens) for row in rows)
    ids_BT = torch.tensor([row.tokens + [pad_id] * (longest - len(row.tokens)) for row in rows], device=device)[:, :-1]
    answers_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for index, row in enumerate(rows):
        answers_BT[index, len(row.request.prompt) - 1 : len(row.tokens) - 1] = True
    vision = collate_vision([row.request.vision for row in rows])
    values_N = critic.of_hidden(hidden_where(critic.backbone, ids_BT, answers_BT, vision=vision)).tolist()
    lengths = [len(row.logprobs) for row in rows]
    return [values_N[sum(lengths[:index]) : sum(lengths[: index + 1])] for index in range(len(rows))]
