"""An optimizer whose state the processes of a group share out: ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1).

Each process keeps the state of its part of the parameters and makes their steps, then all hand round what they made. Adam's step of an
element depends on that element alone, so the weights are those of a whole optimizer, to the bit. Stages 2 and 3 are not here: gradients and
weights are whole on every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from models.rl.process_group import ProcessGroup
from models.training.batching import share_out

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class ShardedOptimizer:
    """One process's part. `indexes` says which of all the parameters are its own."""

    def __init__(self, parameters: Sequence[nn.Parameter], make: MakeOptimizer, group: ProcessGroup) -> None:
        self._parameters, self._group = list(parameters), group
        sizes = [parameter.numel() for parameter in self._parameters]
        self._shares = [sorted(share) for share in share_out(range(len(sizes)), sizes, group.size)]
        self.indexes = self._shares[group.rank]
        self.own = make([self._parameters[index] for index in self.indexes])
        self.part = (group.rank, group.size)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.own.param_groups

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        self.own.step()
        for rank, share in enumerate(self._shares):
            self._group.hand_round([self._parameters[index] for index in share], rank)

    def state_dict(self) -> dict[str, Any]:
        """Of its own part, by its own numbers."""
        return self.own.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.own.load_state_dict(state)


Optimizer = torch.optim.Optimizer | ShardedOptimizer


def optimizer_of(parameters: Sequence[nn.Parameter], make: MakeOptimizer, group: ProcessGroup, zero_stage: int) -> Optimizer:
    """Whole on every process, or shared out at stage 1."""
    return ShardedOptimizer(parameters, make, group) if zero_stage and group.size > 1 else make(parameters)
