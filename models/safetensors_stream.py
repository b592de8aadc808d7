"""Reading and writing safetensors piece by piece with numpy alone, single file or sharded. No torch, no model; bfloat16 handled by hand.

A file is 8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes
(https://huggingface.co/docs/safetensors). Nothing larger than one piece of one tensor is ever held in memory.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warehouse.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Types that can be averaged, and their width. Anything else must be equal in all parents."""


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
    """Memory-mapped access to one checkpoint's tensors; a context manager."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._maps: dict[str, mmap.mmap] = {}
        self._tensors = layout.tensors

    def __enter__(self) -> Reader:
        for file in self._layout.files:
            with (self._layout.folder / file.name).open("rb") as handle:
                self._maps[file.name] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for mapped in self._maps.values():
            mapped.close()

    def pieces(self, name: str, piece_bytes: int) -> Iterator[bytes]:
        """The tensor's bytes in pieces of at most `piece_bytes`, in order."""
        tensor = self._tensors[name]
        for start in range(tensor.start, tensor.end, piece_bytes):
            yield self._maps[tensor.file][start : min(start + piece_bytes, tensor.end)]


def to_float(piece: bytes, dtype: str) -> NDArray[np.floating[Any]]:
    """Bytes of a float tensor as float32 (float64 for F64), exactly."""
    if dtype == "BF16":
        return (np.frombuffer(piece, dtype="<u2").astype("<u4") << 16).view("<f4")
    if dtype == "F16":
        return np.frombuffer(piece, dtype="<f2").astype("<f4")
    return np.frombuffer(piece, dtype="<f8" if dtype == "F64" else "<f4")


def from_float(values: NDArray[np.floating[Any]], dtype: str) -> bytes:
    """float32 (float64 for F64) back to the tensor's own type, rounded to nearest, ties to even; NaN stays NaN."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = np.isnan(values)
        if is_nan.any():  # rounding up may carry a NaN's payload into the sign
            rounded = np.where(is_nan, (bits >> 16) | 0x40, rounded)
        return bytes(rounded.astype("<u2").tobytes())
    target = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
    return values.astype(target, copy=False).tobytes()
