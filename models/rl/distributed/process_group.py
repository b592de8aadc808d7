"""Data-parallel processes: each computes its share of a batch, and the results are summed over all ranks before anything is decided.

All ranks run the same code on the same numbers and hold the same weights, so all take the same decisions: whether a KL stops an update,
whether a loss is a finite number, what the next weights are. In a group of one process nothing here does anything.
models/rl/updates/update.py and models/rl/value/critic.py say what is learned; ranks.py has the processes started and ended.

Collectives go over gloo, gradients on GPUs over NCCL. When a process dies, gloo fails at once; NCCL may not notice, so every sum of
gradients comes after a sum over gloo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from models.rl.updates.advantages import Floats
from models.training.batching import share_out
from models.training.hosts import TIMEOUT
from models.training.processes import is_of_collectives, use_interface_of
from models.training.zero import leave_group
from warehouse.core.errors import FlywheelError, ModelError, ProcessLost, TrainingDiverged

BUCKET_BYTES = 64 * 2**20
"""Of gradients that are summed at once."""
MESSAGE_BYTES = 1000
"""Length of an error message that one rank sends to the others."""
_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class ProcessGroup:
    """This process as one of `size` ranks; rank 0 is the leader."""

    def __init__(self, rank: int = 0, size: int = 1, timeout: timedelta = TIMEOUT) -> None:
        """`timeout`: how much longer than the others one rank may need for its share of a batch."""
        self.rank, self.size, self.timeout = rank, size, timeout
        self._has_joined = False

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def join(self, store: Store, address: str, *, on_gpu: bool) -> None:
        """Join the other ranks, which all have the same store; `address` is where they reach this one's host. Blocks until all have joined.
        Raises ProcessLost."""
        use_interface_of(address)
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        with _raising_process_lost():
            store = dist.PrefixStore("group", store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=self.timeout)
        self._has_joined = True

    def leave(self) -> None:
        """Leave the group: ranks that still wait for this one get an error."""
        if self._has_joined:
            leave_group()
            self._has_joined = False

    def own_rows(self, lengths: Sequence[int]) -> Sequence[int]:
        """Which of these rows, given their numbers of tokens, this rank computes: every row goes to one rank, and all ranks get about as
        many tokens."""
        return self.rows_by_rank(lengths)[self.rank]

    def rows_by_rank(self, lengths: Sequence[int]) -> list[Sequence[int]]:
        """The same of every rank."""
        if self.size == 1:
            return [range(len(lengths))]
        return [sorted(rows) for rows in share_out(range(len(lengths)), lengths, self.size)]

    @contextmanager
    def raising_together(self) -> Iterator[None]:
        """When any rank raises TrainingDiverged within the block, all raise it, with the message of the lowest rank. Any other error ends
        its process, and with it the group."""
        message = ""
        try:
            yield
        except TrainingDiverged as error:
            if self.size == 1:
                raise
            message = str(error)
        if self.size > 1:
            first = next((each for each in self._gather_messages(message) if each), None)
            if first is not None:
                raise TrainingDiverged(first)

    def sum(self, values: Sequence[float] | Floats) -> Floats:
        """The elementwise sums over all ranks."""
        summed = torch.tensor(np.asarray(values, dtype=np.float64))
        if self.size > 1:
            self._reduce(summed, dist.ReduceOp.SUM)
        found: Floats = summed.numpy()
        return found

    def fill(self, parts: Sequence[Floats]) -> Sequence[Floats]:
        """Vectors with all elements set, from vectors in which each rank has set the elements of its share and left the others 0."""
        if self.size == 1 or not parts:
            return parts
        return np.split(self.sum(np.concatenate(parts)), np.cumsum([len(part) for part in parts])[:-1])

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every rank the sum of all ranks' gradients, in place. A parameter without a gradient on every rank still has none
        afterwards, so that the optimizer skips it."""
        if self.size == 1:
            return
        num_having = self.sum([float(parameter.grad is not None) for parameter in parameters])
        for bucket in _buckets(parameter for parameter, num in zip(parameters, num_having, strict=True) if num):
            gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self._reduce(flat, dist.ReduceOp.SUM)
            for parameter, part in zip(bucket, flat.split([gradient.numel() for gradient in gradients]), strict=True):
                parameter.grad = part.view_as(parameter)

    def check_same_weights(self, parameters: Sequence[nn.Parameter]) -> None:
        """Check that all ranks hold the same weights, to the bit. Raises ModelError where they differ."""
        if self.size == 1:
            return
        # Bits as whole numbers: their sum does not depend on the order of adding.
        bits = [parameter.detach().contiguous().view(_SAME_SIZE[parameter.element_size()]) for parameter in parameters]
        found = torch.stack([each.sum(dtype=torch.int64) for each in bits]).cpu()
        least, most = found.clone(), found.clone()
        self._reduce(least, dist.ReduceOp.MIN)
        self._reduce(most, dist.ReduceOp.MAX)
        if num := int((least != most).sum()):
            raise ModelError(
                f"{num} of {len(bits)} weight tensors differ between the {self.size} training processes: their devices do not compute "
                "alike; use GPUs of one kind, or set rl.num_processes to 1"
            )

    def _gather_messages(self, message: str) -> list[str]:
        """Each rank's message, by rank; nothing is exchanged where all are empty."""
        if not self.sum([float(bool(message))])[0]:
            return []
        encoded = message.encode()[:MESSAGE_BYTES]
        mine = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        mine[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in self._gather(mine)]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _raising_process_lost():
            dist.all_gather(found, mine)
        return found

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        with _raising_process_lost():
            dist.all_reduce(tensor, operation)


SINGLE_PROCESS = ProcessGroup()
"""A group of one: training in a single process."""


@contextmanager
def _raising_process_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of gloo and NCCL alike
        raise _process_lost(error) from error


@contextmanager
def deepspeed_raising_process_lost() -> Iterator[None]:
    """Raises ProcessLost where a collective of DeepSpeed's fails within the block."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, FlywheelError) or not is_of_collectives(error):
            raise
        raise _process_lost(error) from error


def _process_lost(error: RuntimeError) -> ProcessLost:
    return ProcessLost(f"another training process does not answer ({error}): start the run again, it resumes there")


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Consecutive parameters of one dtype, up to BUCKET_BYTES together, or a single larger one."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        num_bytes = parameter.numel() * parameter.element_size()
        if bucket and (size + num_bytes > BUCKET_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += num_bytes
    if bucket:
        yield bucket
