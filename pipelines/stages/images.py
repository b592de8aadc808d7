"""Screenshots out of the warehouse for training: written into files once, because a run reads each of them many times."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from models.families.vision import ReadImage, screenshot_ids
from models.supervised.training_set import TrainingSample
from warehouse.core.errors import UnknownId
from warehouse.core.home import atomic_write
from warehouse.reporting.screens import check_screenshot
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

IDS_A_QUERY = 500


def spooled_images(warehouse: Warehouse, samples: Iterable[TrainingSample], folder: Path) -> ReadImage:
    """Write the screenshots that samples show into `folder`, those that are not there yet; returns what reads one by its id. Raises
    UnknownId when one is not stored, CorruptTable when one is not what its id says."""
    shown = sorted({name for sample in samples for name in screenshot_ids(sample.messages)})
    missing = [name for name in shown if not (folder / name).exists()]
    with connect(warehouse) as con:
        for first in range(0, len(missing), IDS_A_QUERY):
            wanted = missing[first : first + IDS_A_QUERY]
            found = con.execute("select screenshot_id, data from screenshots where screenshot_id in $ids", {"ids": wanted}).fetchall()
            for name, data in found:
                check_screenshot(name, data)
                atomic_write(folder / name, data)
            if len(found) < len(wanted):
                absent = sorted(set(wanted) - {name for name, _ in found})
                raise UnknownId(
                    f"{len(absent)} screenshots that samples show are not stored, the first is {absent[0]}: run the stage that showed them "
                    "again, with screenshots on"
                )
    return lambda name: (folder / name).read_bytes()
