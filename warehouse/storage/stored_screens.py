"""Screenshots by their ids, read from the files that hold them and no others: there may be more of them than anything else."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warehouse.reporting.screens import check_screenshot
from warehouse.storage.data_files import check_file
from warehouse.storage.id_index import IdIndex
from warehouse.storage.tables import Warehouse


class Picture(NamedTuple):
    data: bytes
    format: str
    width_px: int
    height_px: int


def pictures(warehouse: Warehouse, ids: Collection[str]) -> dict[str, Picture]:
    """Those that are stored, by id. Raises CorruptTable for one that is not what its id says."""
    found: dict[str, Picture] = {}
    wanted = pa.array(sorted(ids), pa.string())
    for file in IdIndex(warehouse, "screenshots").files_with(ids) if ids else ():
        path = warehouse.folder("screenshots") / unquote(file.path)
        check_file(path)
        with pq.ParquetFile(path) as stored:
            for group in range(stored.num_row_groups):
                is_meant = pc.is_in(stored.read_row_group(group, columns=["screenshot_id"]).column(0), value_set=wanted)
                if pc.any(is_meant).as_py():
                    for row in stored.read_row_group(group).filter(is_meant).to_pylist():
                        check_screenshot(row["screenshot_id"], row["data"])
                        found[row["screenshot_id"]] = Picture(*(row[name] for name in Picture._fields))
    return found
