"""Streaming: tensors from several checkpoints in, one checkpoint out, piece by piece, on a few threads. What is done with a piece is up to
the merge methods.

Nothing larger than a few pieces a thread is ever held. Files are read and written at explicit offsets, so threads share them; a tensor
belongs to one thread from its first piece to its last, the largest tensors first.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.checkpoints.safetensors_stream import TensorInfo
from models.merging.dtype_codec import FLOAT_TYPES, Bytes, FloatArrays, Floats, Scratch, decode, encode, has_nan
from warehouse.core.errors import CheckpointError, MergeError

PIECE_BYTES = 1 << 18
"""Bytes of a tensor worked on at once: small enough that every intermediate result stays in a core's cache. DARE's masks depend on it."""
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a tensor's bytes lie: an open file, its path for messages, the first byte."""

    descriptor: int
    path: Path
    start: int

    def read(self, offset: int, into: Bytes) -> None:
        """Fill `into` from `offset` bytes into the tensor. Raises CheckpointError when the file ends too early."""
        filled = 0
        while filled < len(into):
            count = os.preadv(self.descriptor, [into[filled:].data], self.start + offset + filled)
            if not count:
                raise CheckpointError(f"{self.path} was truncated while it was being read: copy or train it again")
            filled += count

    def write(self, offset: int, data: Bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, data[written:].data, self.start + offset + written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some bytes of a tensor, as they are in each parent and in the base (where the method has one), padded with zeros to whole words.
    The arrays are the thread's buffers: the next piece overwrites them."""

    index: int
    offset: int
    size: int
    parents: tuple[Bytes, ...]
    base: Bytes | None

    @property
    def sources(self) -> tuple[Bytes, ...]:
        return self.parents if self.base is None else (*self.parents, self.base)


class TensorJob:
    """One tensor of the output while it is made."""

    def __init__(
        self,
        tensor: TensorInfo,
        parents: Sequence[Span],
        base: Span | None,
        output: Span,
        scratch: Scratch,
        stop: threading.Event,
        advance: Callable[[int], None],
    ) -> None:
        self.tensor = tensor
        self._parents, self._base, self._output = parents, base, output
        self.scratch, self._stop, self._advance = scratch, stop, advance

    @property
    def num_parents(self) -> int:
        return len(self._parents)

    @property
    def num_elements(self) -> int:
        return math.prod(self.tensor.shape)

    @property
    def num_bytes(self) -> int:
        return self.tensor.end - self.tensor.start

    def pieces(self) -> Iterator[Piece]:
        """The tensor from its first byte to its last. May be called again for another pass. Raises InterruptedError once another thread
        has failed."""
        for index, offset in enumerate(range(0, self.num_bytes, PIECE_BYTES)):
            if self._stop.is_set():
                raise InterruptedError("another tensor of this merge failed")
            yield self._read(index, offset, min(PIECE_BYTES, self.num_bytes - offset))

    def _read(self, index: int, offset: int, size: int) -> Piece:
        spans = self._parents if self._base is None else (*self._parents, self._base)
        padded = -(-size // _ALIGNMENT) * _ALIGNMENT
        filled = []
        for number, span in enumerate(spans):
            buffer: Bytes = self.scratch.array(f"piece {number}", padded, np.uint8)
            span.read(offset, buffer[:size])
            buffer[size:] = 0
            filled.append(buffer)
        return Piece(
            index=index,
            offset=offset,
            size=size,
            parents=tuple(filled[: self.num_parents]),
            base=None if self._base is None else filled[-1],
        )

    def sample(self, num_chunks: int, chunk_bytes: int) -> Iterator[Piece]:
        """Small pieces at even distances."""
        step = max(chunk_bytes, self.num_bytes // num_chunks) // _ALIGNMENT * _ALIGNMENT
        for index, offset in enumerate(range(0, self.num_bytes - chunk_bytes + 1, step)):
            yield self._read(index, offset, chunk_bytes)

    def head(self, parent: int | None, num_bytes: int) -> bytes:
        """The first bytes of the tensor in a parent, or in the base."""
        span = self._base if parent is None else self._parents[parent]
        start: Bytes = np.empty(min(num_bytes, self.num_bytes), dtype=np.uint8)
        if span is not None:
            span.read(0, start)
        return start.tobytes()

    def decoded(self, piece: Piece) -> list[tuple[Floats, ...]]:
        """For each array of the codec, its values in every parent. They may be written to, and the piece is overwritten: call this once,
        after `copied`."""
        parents = [decode(source, self.tensor.dtype, self.scratch, f"array {number}") for number, source in enumerate(piece.parents)]
        return list(zip(*parents, strict=True))

    def deltas(self, piece: Piece) -> list[tuple[Floats, tuple[Floats, ...]]]:
        """For each array of the codec, the base's values and every parent's difference from them, in the precision of the array. As
        `decoded`."""
        if piece.base is None:
            raise MergeError("this merge method needs the checkpoint that the parents were trained from: give it as the base")
        base = decode(piece.base, self.tensor.dtype, self.scratch, "base")
        return [
            (start, tuple(np.subtract(values, start, out=values) for values in arrays))
            for start, arrays in zip(base, self.decoded(piece), strict=True)
        ]

    def copied(self, piece: Piece) -> bool:
        """Write the piece as it is where all sources agree on it; returns whether they did. Raises MergeError for a NaN that all agree on,
        and where they differ in a type that is not a float."""
        first, *others = piece.sources
        if not all(np.array_equal(first[:64], other[:64]) and np.array_equal(first, other) for other in others):
            if self.tensor.dtype not in FLOAT_TYPES:
                raise MergeError(
                    f"tensor {self.tensor.name} of type {self.tensor.dtype} differs between the parents, and only {sorted(FLOAT_TYPES)} "
                    "can be merged; if it is a quantised weight, merge the unquantised parents"
                )
            return False
        self._output.write(piece.offset, first[: piece.size])
        if self.tensor.dtype in FLOAT_TYPES and has_nan(decode(first, self.tensor.dtype, self.scratch, "array 0")):
            raise self._not_a_number(piece)
        self._advance(piece.size)
        return True

    def write(self, piece: Piece, arrays: FloatArrays) -> None:
        """Round the result and write it. Raises MergeError when it holds NaN, or what float16 cannot hold."""
        if has_nan(arrays):
            raise self._not_a_number(piece)
        stored = encode(arrays, self.tensor.dtype, self.scratch)
        if self.tensor.dtype == "F16" and np.isinf(stored.view("<f2")).any() and not np.isinf(arrays[0]).any():
            raise MergeError(f"tensor {self.tensor.name}: a merged value exceeds the largest F16 (65504); use smaller weights or scale")
        self._output.write(piece.offset, stored[: piece.size])
        self._advance(piece.size)

    def _not_a_number(self, piece: Piece) -> MergeError:
        spans = self._parents if self._base is None else (*self._parents, self._base)
        again = self._read(piece.index, piece.offset, piece.size)
        bad = [
            str(span.path)
            for span, source in zip(spans, again.sources, strict=True)
            if has_nan(decode(source, self.tensor.dtype, self.scratch, "array 0"))
        ]
        where = f"it has NaN in {', '.join(bad)}: train that one again" if bad else "infinite values in the parents cancel out"
        return MergeError(f"tensor {self.tensor.name} would hold NaN: {where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """One tensor to make: where it goes, and where it comes from, as (path, first byte)."""

    tensor: TensorInfo
    parents: tuple[tuple[Path, int], ...]
    base: tuple[Path, int] | None


def run(
    plans: Sequence[TensorPlan],
    output: Path,
    merge_tensor: Callable[[TensorJob], None],
    *,
    num_threads: int,
    advance: Callable[[int], None],
) -> None:
    """Make every tensor in the files that are there in the folder `output`. The first error stops all threads and is raised.

    `advance` is called, from any thread, with the number of bytes written.
    """
    stop = threading.Event()
    local = threading.local()
    ordered = sorted(plans, key=lambda plan: plan.tensor.start - plan.tensor.end)
    with ExitStack() as stack:
        opened: dict[Path, int] = {}

        def descriptor(path: Path, flags: int) -> int:
            if path not in opened:
                opened[path] = os.open(path, flags)
                stack.callback(os.close, opened[path])
            return opened[path]

        def span(place: tuple[Path, int]) -> Span:
            return Span(descriptor=descriptor(place[0], os.O_RDONLY), path=place[0], start=place[1])

        jobs = []
        for plan in ordered:
            out = output / plan.tensor.file
            target = Span(descriptor=descriptor(out, os.O_WRONLY), path=out, start=plan.tensor.start)
            jobs.append((plan.tensor, [span(place) for place in plan.parents], None if plan.base is None else span(plan.base), target))

        def make(tensor: TensorInfo, parents: list[Span], base: Span | None, target: Span) -> None:
            if not hasattr(local, "scratch"):
                local.scratch = Scratch()
            job = TensorJob(tensor, parents, base, target, local.scratch, stop, advance)
            with np.errstate(all="ignore"):
                if tensor.dtype in FLOAT_TYPES:
                    merge_tensor(job)
                else:
                    for piece in job.pieces():
                        job.copied(piece)

        if num_threads == 1:
            for job in jobs:
                make(*job)
            return
        pool = stack.enter_context(ThreadPoolExecutor(num_threads, thread_name_prefix="merge"))
        try:
            futures = [pool.submit(make, *job) for job in jobs]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        errors = [error for future in done if not future.cancelled() and (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, InterruptedError)):
            raise error
