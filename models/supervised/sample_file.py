"""Encoded samples in a file that is mapped into memory: a training set may be larger than memory, and the processes of a run share it.

The file is Arrow's IPC format, written part by part and read in place: opening one reads how long the samples are, not their tokens; a
batch reads the tokens of its own samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from models.training.batching import EncodedSample

PART_TOKENS = 1 << 20
"""Tokens that are held until they are written together."""
_SCHEMA = pa.schema(
    {
        "token_ids": pa.large_list(pa.int32()),
        "loss_weights": pa.large_list(pa.float32()),
        "weight": pa.float64(),
        "sample_id": pa.string(),
        "screenshot_ids": pa.list_(pa.string()),
    }
)


class SampleWriter:
    """Writes a file of samples, one after the other; it is whole when the `with` block has been left. Raises OSError for a full disk."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = pa.ipc.new_file(str(path), _SCHEMA)
        self._waiting: list[EncodedSample] = []
        self._num_tokens = 0
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._write()
        self._file.close()

    @property
    def digest(self) -> str:
        """Of the samples so far, in their order."""
        return self._hash.hexdigest()

    def add(self, sample: EncodedSample) -> None:
        token_ids, loss_weights = np.asarray(sample.token_ids, dtype=np.int32), np.asarray(sample.loss_weights, dtype=np.float32)
        described = repr((len(token_ids), sample.weight, sample.sample_id, list(sample.screenshot_ids))).encode()
        for part in (described, token_ids.tobytes(), loss_weights.tobytes()):
            self._hash.update(part)
        self._waiting.append(replace(sample, token_ids=token_ids, loss_weights=loss_weights))
        self._num_tokens += len(token_ids)
        if self._num_tokens >= PART_TOKENS:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        samples, self._waiting, self._num_tokens = self._waiting, [], 0
        offsets = np.cumsum([0, *(len(sample.token_ids) for sample in samples)])
        columns = {
            "token_ids": pa.LargeListArray.from_arrays(offsets, np.concatenate([sample.token_ids for sample in samples])),
            "loss_weights": pa.LargeListArray.from_arrays(offsets, np.concatenate([sample.loss_weights for sample in samples])),
            "weight": [sample.weight for sample in samples],
            "sample_id": [sample.sample_id for sample in samples],
            "screenshot_ids": [sample.screenshot_ids for sample in samples],
        }
        self._file.write_batch(pa.RecordBatch.from_pydict(columns, schema=_SCHEMA))


class SampleFile(Sequence[EncodedSample]):
    """What a SampleWriter wrote, as a sequence. `lengths` (tokens) and `weights` of all samples are held; the rest stays in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            self._parts = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        self._firsts = np.cumsum([0, *(part.num_rows for part in self._parts)])
        self._offsets = [part.column("token_ids").offsets.to_numpy() for part in self._parts]
        no_rows = np.zeros(0)
        self.lengths: NDArray[np.int64] = np.concatenate([no_rows.astype(np.int64), *map(np.diff, self._offsets)])
        self.weights: NDArray[np.float64] = np.concatenate([no_rows, *(part.column("weight").to_numpy() for part in self._parts)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @overload
    def __getitem__(self, row: int) -> EncodedSample: ...

    @overload
    def __getitem__(self, row: slice) -> list[EncodedSample]: ...

    def __getitem__(self, row: int | slice) -> EncodedSample | list[EncodedSample]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} samples")
        row %= len(self)
        index = int(np.searchsorted(self._firsts, row, side="right")) - 1
        part, place = self._parts[index], int(row - self._firsts[index])
        tokens = slice(self._offsets[index][place], self._offsets[index][place + 1])
        return EncodedSample(
            token_ids=part.column("token_ids").values.to_numpy()[tokens],
            loss_weights=part.column("loss_weights").values.to_numpy()[tokens],
            weight=float(self.weights[row]),
            sample_id=part.column("sample_id")[place].as_py(),
            screenshot_ids=tuple(part.column("screenshot_ids")[place].as_py()),
        )

    def screenshot_ids(self) -> list[str]:
        """Those that any of the samples shows, each once."""
        return sorted({name for part in self._parts for name in pc.unique(part.column("screenshot_ids").flatten()).to_pylist()})


def sizes(samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens and weight of each sample."""
    if isinstance(samples, SampleFile):
        return samples.lengths, samples.weights
    return np.array([len(sample.token_ids) for sample in samples], dtype=np.int64), np.array([sample.weight for sample in samples])
