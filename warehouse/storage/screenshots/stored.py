"""Screenshots by their ids, read from the files that hold them and no others: there may be more of them than anything else."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import duckdb

from warehouse.reporting.screens import check_screenshot
from warehouse.storage.files.id_index import IdIndex
from warehouse.storage.sql.file_sql import stored_rows
from warehouse.storage.tables import Warehouse


class Picture(NamedTuple):
    data: bytes
    format: str
    width_px: int
    height_px: int


def pictures(warehouse: Warehouse, ids: Collection[str]) -> dict[str, Picture]:
    """Those that are stored, by id. Raises CorruptTable for one that is not what its id says."""
    listed = IdIndex(warehouse, "screenshots").files_with(ids) if ids else []
    if not listed:
        return {}
    query = f"select screenshot_id, {', '.join(Picture._fields)} from {stored_rows('screenshots', warehouse.files('screenshots', listed))}"
    found: dict[str, Picture] = {}
    with duckdb.connect(config={"threads": 1}) as con:  # each thread would hold pictures of its own
        rows = con.execute(f"{query} where screenshot_id in (select unnest($1))", [sorted(ids)])
        while (row := rows.fetchone()) is not None:
            check_screenshot(row[0], row[1])
            found[row[0]] = Picture(*row[1:])
    return found
