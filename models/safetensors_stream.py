"""Reading and writing safetensors piece by piece with numpy alone, single file or sharded. No torch, no model; bfloat16 handled by hand.

A file is 8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes
(https://huggingface.co/docs/safetensors). Nothing larger than one piece of one tensor is ever held in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warehouse.errors import CheckpointError

Floats = NDArray[np.floating[Any]]
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that can be averaged; a tensor of any other must be equal in all parents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor's place: `start` and `end` are byte offsets in its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """One file's header as it stands (padding included), and its tensors in the order of their bytes."""

    name: str
    header: bytes
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All weight files of a checkpoint folder."""

    folder: Path
    files: tuple[SafetensorsFile, ...]

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for file in self.files for tensor in file.tensors}


def read_layout(folder: Path) -> Layout:
    """The weight files of a checkpoint: `model.safetensors`, or the shards that the index names. Raises CheckpointError."""
    index = folder / INDEX_FILE
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif (folder / SINGLE_FILE).is_file():
        names = [SINGLE_FILE]
    else:
        raise CheckpointError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}: give a folder written by save_pretrained")
    return Layout(folder=folder, files=tuple(_read_header(folder / name) for name in names))


def _read_header(path: Path) -> SafetensorsFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length_bytes = file.read(8)
            (length,) = struct.unpack("<Q", length_bytes)
            if 8 + length > size:
                raise ValueError(f"its header claims {length} bytes, the file has {size}")
            header_bytes = file.read(length)
        header: dict[str, Any] = json.loads(header_bytes)
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}): copy or train the checkpoint again") from error
    base = 8 + length
    tensors = [
        TensorInfo(name=name, dtype=entry["dtype"], shape=tuple(entry["shape"]), file=path.name,
                   start=base + entry["data_offsets"][0], end=base + entry["data_offsets"][1])
        for name, entry in header.items() if name != "__metadata__"
    ]  # fmt: skip
    if any(tensor.end > size for tensor in tensors):
        raise CheckpointError(f"{path} is cut off: {size} bytes, its header describes more; copy or train the checkpoint again")
    return SafetensorsFile(name=path.name, header=length_bytes + header_bytes, tensors=tuple(sorted(tensors, key=lambda t: t.start)))


class Reader:
    """Piecewise access to one checkpoint's tensors; a context manager. Read, not mapped, so that memory stays at a few pieces."""

    def __init__(self, layout: Layout, piece_bytes: int) -> None:
        self._layout = layout
        self._files: dict[str, BinaryIO] = {}
        self._tensors = layout.tensors
        self._buffer = memoryview(bytearray(piece_bytes))

    def __enter__(self) -> Reader:
        self._files = {file.name: (self._layout.folder / file.name).open("rb", buffering=0) for file in self._layout.files}
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def pieces(self, name: str) -> Iterator[memoryview]:
        """The tensor's bytes in order, in pieces of the reader's size. A piece is overwritten by the next one."""
        tensor = self._tensors[name]
        file = self._files[tensor.file]
        file.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            piece = self._buffer[: min(left, len(self._buffer))]
            filled = 0
            while filled < len(piece):
                count = file.readinto(piece[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise CheckpointError(f"{self._layout.folder / tensor.file} was cut off while it was read: copy or train it again")
                filled += count
            left -= len(piece)
            yield piece


def to_float(piece: bytes | memoryview, dtype: str) -> Floats:
    """Bytes of a float tensor as float32 (float64 for F64), exactly."""
    if dtype == "BF16":
        bits = np.frombuffer(piece, dtype="<u2").astype("<u4")
        bits <<= 16
        return bits.view("<f4")
    if dtype == "F16":
        return np.frombuffer(piece, dtype="<f2").astype("<f4")
    return np.frombuffer(piece, dtype="<f8" if dtype == "F64" else "<f4")


def from_float(values: Floats, dtype: str) -> NDArray[Any]:
    """float32 (float64 for F64) back to the tensor's own type, as an array to write: rounded to nearest, ties to even; NaN stays NaN."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        # A sum is finite only if every value is, and costs one pass: most pieces need no look at NaN, whose payload may carry away.
        with np.errstate(all="ignore"):
            is_suspect = not np.isfinite(values.sum())
        if is_suspect:
            rounded = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded)
        return rounded.astype("<u2")
    return values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype], copy=False)
