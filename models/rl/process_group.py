"""Several processes that learn as one: each computes its share of a batch, and what they computed is added up before anything is decided.

All run the same code on the same numbers and hold the same weights, so all decide alike: whether a KL stops an update, whether a loss is a
number, what the next weights are. One process is a gang of one, for which nothing here does anything. What they learn is update.py's and
critic.py's business, who starts and ends them that of ranks.py.

Collectives go over gloo, gradients on GPUs over NCCL. A process that dies breaks the connections that gloo waits on, at once; NCCL may not
notice, so every sum of gradients comes after one over gloo.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.rl.advantages import Floats
from models.training.batching import share_out
from warehouse.core.errors import ModelError, ProcessLost, TrainingDiverged

TIMEOUT = timedelta(minutes=30)
"""That one process may need longer than the others for its share of a batch."""
BUCKET_BYTES = 64 * 2**20
"""Of gradients that are added up at once."""
WORDS = 1000
"""Bytes of a message that one process tells the others."""
_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Gang:
    """This process's part among `size`; `rank` 0 leads."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._has_joined = False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def join(self, meeting: Path, *, on_gpu: bool) -> None:
        """Meet the others, who all name the same new file. Blocks until everybody is there. Raises ProcessLost."""
        if sys.platform == "linux":  # nobody outside this machine has a part in it
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        with _lost():
            store = dist.FileStore(str(meeting), self.size)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)
        self._has_joined = True

    def leave(self) -> None:
        """Part with the others: whoever still waits for this process is told so."""
        if self._has_joined:
            dist.destroy_process_group()
            self._has_joined = False

    def mine(self, lengths: Sequence[int]) -> Sequence[int]:
        """Which of these rows, given their numbers of tokens, this process computes: every row is one process's, and all have about as many
        tokens."""
        if self.size == 1:
            return range(len(lengths))
        return sorted(share_out(range(len(lengths)), lengths, self.size)[self.rank])

    @contextmanager
    def together(self) -> Iterator[None]:
        """What one process meets within, all do: where a number is none for any of them, all raise TrainingDiverged in the words of the
        first. Another error ends its process, and with it the gang."""
        trouble = ""
        try:
            yield
        except TrainingDiverged as error:
            if self.size == 1:
                raise
            trouble = str(error)
        if self.size > 1:
            told = next((words for words in self._heard(trouble) if words), None)
            if told is not None:
                raise TrainingDiverged(told)

    def add_up(self, values: Sequence[float] | Floats) -> Floats:
        """The sums of what each process has at each place."""
        summed = torch.tensor(np.asarray(values, dtype=np.float64))
        if self.size > 1:
            self._reduce(summed, dist.ReduceOp.SUM)
        found: Floats = summed.numpy()
        return found

    def whole(self, parts: Sequence[Floats]) -> Sequence[Floats]:
        """Vectors of which each process has filled the places of its share and left the others 0, with all places filled."""
        if self.size == 1 or not parts:
            return parts
        return np.split(self.add_up(np.concatenate(parts)), np.cumsum([len(part) for part in parts])[:-1])

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every process the sum of everybody's gradients, in place. Where nobody has one there is none afterwards: an optimizer passes
        such a weight over."""
        if self.size == 1:
            return
        num_having = self.add_up([float(parameter.grad is not None) for parameter in parameters])
        for bucket in _buckets(parameter for parameter, num in zip(parameters, num_having, strict=True) if num):
            gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self._reduce(flat, dist.ReduceOp.SUM)
            for parameter, part in zip(bucket, flat.split([gradient.numel() for gradient in gradients]), strict=True):
                parameter.grad = part.view_as(parameter)

    def check_alike(self, parameters: Sequence[nn.Parameter]) -> None:
        """Hold all processes to the same weights, to the bit. Raises ModelError where they have come apart."""
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
                f"the {self.size} processes that learn together differ in {num} of {len(bits)} weights: they run on devices that do not "
                "compute alike; choose GPUs of one kind, or set rl.num_processes to 1"
            )

    def _heard(self, words: str) -> list[str]:
        """What each process says, in their order; nothing is exchanged where nobody says anything."""
        if not self.add_up([float(bool(words))])[0]:
            return []
        said = words.encode()[:WORDS]
        mine = torch.zeros(WORDS, dtype=torch.uint8)
        mine[: len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in self._gather(mine)]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _lost():
            dist.all_gather(found, mine)
        return found

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        with _lost():
            dist.all_reduce(tensor, operation)


ALONE = Gang()
"""One process that learns by itself."""


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of gloo and NCCL alike
        raise ProcessLost(f"a process that learns with this one does not answer ({error}): start the run again, it goes on") from error


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbours of one type, of BUCKET_BYTES together or a single larger one."""
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
