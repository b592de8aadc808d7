"""A process group of threads: the arithmetic of several ranks in this process, for quick tests. Ranks meet at a barrier instead of sockets;
real processes are in test_rl_processes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from models.rl.distributed.process_group import ProcessGroup

Part = TypeVar("Part")
Made = TypeVar("Made")


class Meeting:
    """Where threads lay down what they have, and take what all have."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=30)
        self.laid: list[Tensor] = [torch.empty(0)] * size


class ThreadGroup(ProcessGroup):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, len(meeting.laid))
        self._meeting = meeting

    def _gather(self, mine: Tensor) -> list[Tensor]:
        self._meeting.laid[self.rank] = mine.clone()
        self._meeting.barrier.wait()
        found = list(self._meeting.laid)
        self._meeting.barrier.wait()  # nobody lays down the next before all have taken this
        return found

    def _broadcast(self, tensor: Tensor, rank: int) -> None:
        tensor.copy_(self._gather(tensor)[rank])

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        found = torch.stack(self._gather(tensor))
        if operation == dist.ReduceOp.SUM:
            tensor.copy_(found.sum(0))
        else:
            tensor.copy_(found.amin(0) if operation == dist.ReduceOp.MIN else found.amax(0))


def groups(size: int) -> list[ProcessGroup]:
    """The groups of so many threads; of one it is the real one."""
    meeting = Meeting(size)
    return [ProcessGroup()] if size == 1 else [ThreadGroup(rank, meeting) for rank in range(size)]


def at_once(parts: Sequence[Part], work: Callable[[Part], Made]) -> list[Made]:
    """What the work makes of each part, each in a thread of its own. Raises what the first of them raises."""
    with ThreadPoolExecutor(len(parts)) as threads:
        found = [threads.submit(work, part) for part in parts]
    return [each.result() for each in found]
