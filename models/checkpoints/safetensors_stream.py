"""Where the tensors of a safetensors checkpoint lie, in a single file or in shards. Reads headers only; no torch, no model.

A file is 8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoints.model_files import INDEX_FILE, SINGLE_FILE, is_plain_name
from warehouse.core.errors import CheckpointError

_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Of one element; a type that is not here is taken at its header's word."""


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
    """All weight files of a checkpoint folder, and their tensors by name."""

    folder: Path
    files: tuple[SafetensorsFile, ...]
    tensors: dict[str, TensorInfo]


def read_layout(folder: Path) -> Layout:
    """The weight files of a checkpoint: `model.safetensors`, or the shards that the index names. Raises CheckpointError."""
    index = folder / INDEX_FILE
    if index.is_file():
        try:
            named: dict[str, str] = dict(json.loads(index.read_text())["weight_map"])
            names = sorted({str(name) for name in named.values()})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{index} is not a shard index ({error!r}): copy or train the checkpoint again") from error
        if climbing := [name for name in names if not is_plain_name(name)]:
            raise CheckpointError(f"{index} names the shard {climbing[0][:80]!r}: shards lie beside their index, under plain names")
    elif (folder / SINGLE_FILE).is_file():
        named, names = {}, [SINGLE_FILE]
    else:
        raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: use a folder written by save_pretrained")
    files = tuple(_read_header(folder / name) for name in names)
    tensors = {tensor.name: tensor for file in files for tensor in file.tensors}
    if missing := sorted(named.keys() - tensors.keys()):
        raise CheckpointError(f"{index} names {missing[:5]}, which no shard has: copy or train the checkpoint again")
    return Layout(folder=folder, files=files, tensors=tensors)


def _read_header(path: Path) -> SafetensorsFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length_bytes = file.read(8)
            (length,) = struct.unpack("<Q", length_bytes)
            if 8 + length > size:
                raise ValueError(f"its header should have {length} bytes, but the file has {size}")
            header_bytes = file.read(length)
        header: dict[str, Any] = json.loads(header_bytes)
        tensors = [_tensor(name, entry, path.name, 8 + length) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}): copy or train the checkpoint again") from error
    if any(tensor.end > size for tensor in tensors):
        raise CheckpointError(f"{path} is truncated: it has {size} bytes, its header describes more; copy or train the checkpoint again")
    return SafetensorsFile(name=path.name, header=length_bytes + header_bytes, tensors=tuple(sorted(tensors, key=lambda t: t.start)))


def _tensor(name: str, entry: dict[str, Any], file: str, data_start: int) -> TensorInfo:
    """Raises ValueError where the header contradicts itself."""
    (start, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
    if not 0 <= start <= end or (dtype in _BITS and end - start != math.prod(shape) * _BITS[dtype] // 8):
        raise ValueError(f"tensor {name} is {dtype}{list(shape)} in {end - start} bytes at {start}")
    return TensorInfo(name=name, dtype=dtype, shape=shape, file=file, start=data_start + start, end=data_start + end)
