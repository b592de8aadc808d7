"""Perceptual hashes of screenshots: 128 bits that differ little where two pictures do (difference hash along rows and along columns).

A hash belongs to a picture's bytes, so it is computed once and kept in a cache folder, which may be deleted at any time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from PIL import Image

from warehouse.storage.screenshots import pictures

SIDE = 9
"""Pictures are shrunk to so many grey pixels a side: 8 differences a row and a column."""
ALGORITHM = "dhash128-1"
_SCHEMA = pa.schema([("screenshot_id", pa.string()), ("hash", pa.binary(16))])
_BATCH = 1024
"""Pictures that are read at a time."""

Hashes: TypeAlias = "npt.NDArray[np.uint8]"


def difference_hashes(images: Iterable[bytes]) -> Hashes:
    """16 bytes a picture: whether each of 9 × 9 areas is darker than its right neighbour (64 bits), then than the one below (64)."""
    small = [_small(data) for data in images]
    if not small:
        return np.zeros((0, 16), np.uint8)
    grey = np.stack(small).astype(np.int16)
    across = grey[:, : SIDE - 1, 1:] > grey[:, : SIDE - 1, :-1]
    down = grey[:, 1:, : SIDE - 1] > grey[:, :-1, : SIDE - 1]
    return np.packbits(np.concatenate((across.reshape(len(small), -1), down.reshape(len(small), -1)), axis=1), axis=1)


def _small(data: bytes) -> npt.NDArray[np.uint8]:
    with pictures.opened(data) as image:
        image.draft("L", (SIDE * 8, SIDE * 8))
        grey: npt.NDArray[np.uint8] = np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))
        return grey


def distance(first: bytes, second: bytes) -> int:
    """Bits in which two hashes differ."""
    return (int.from_bytes(first) ^ int.from_bytes(second)).bit_count()


class ScreenHashes:
    """Hashes of the pictures of a connection's view `screenshots`, by id."""

    def __init__(self, con: duckdb.DuckDBPyConnection, cache: Path) -> None:
        self._con = con
        self._cache = cache / ALGORITHM
        self._known: dict[str, bytes] | None = None

    def of(self, ids: Collection[str]) -> dict[str, bytes]:
        """The hash of each picture that is stored; computes what the cache lacks, and adds it there."""
        if self._known is None:
            self._known = self._read_cache()
        lacking = sorted({id_ for id_ in ids if id_ not in self._known})
        if lacking:
            self._compute(lacking)
        return {id_: self._known[id_] for id_ in ids if id_ in self._known}

    def _read_cache(self) -> dict[str, bytes]:
        if not self._cache.is_dir():
            return {}
        table = pads.dataset(self._cache, schema=_SCHEMA, format="parquet").to_table()
        return dict(zip(table["screenshot_id"].to_pylist(), table["hash"].to_pylist(), strict=True))

    def _compute(self, ids: list[str]) -> None:
        made: dict[str, bytes] = {}
        for at in range(0, len(ids), _BATCH):
            self._con.register("wanted_screens", pa.table({"screenshot_id": pa.array(ids[at : at + _BATCH], pa.string())}))
            found = self._con.sql("select s.screenshot_id, s.data from screenshots s semi join wanted_screens using (screenshot_id)")
            names, images = (column.to_pylist() for column in found.to_arrow_table().columns)
            made |= dict(zip(names, (row.tobytes() for row in difference_hashes(images)), strict=True))
        self._known = (self._known or {}) | made
        if made:
            self._cache.mkdir(parents=True, exist_ok=True)
            aside = self._cache.parent / f".{uuid.uuid4().hex}.tmp"
            columns = [pa.array(list(made), pa.string()), pa.array(list(made.values()), pa.binary(16))]
            pq.write_table(pa.table(columns, schema=_SCHEMA), aside)
            os.replace(aside, self._cache / f"{uuid.uuid4().hex}.parquet")
