"""The power is cut at random moments of a logged disk: what had been acknowledged is there, and work goes on. More moments, every command
that changes a table and a smoke run: `python -m benchmarks.power_cut`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.power_cut.__main__ import Arm
from benchmarks.power_cut.logged_disk import MARK, LoggedDisk, Platter, entries, mounted, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=f"no disk can be logged here: {why_not()}")]

NUM_CUTS = 25


def test_a_cut_takes_what_was_not_flushed_and_nothing_else(tmp_path: Path) -> None:
    """The disk itself: a file that was synced before the cut is whole; one that was only written is often lost."""
    dice, size_mib = random.Random(1), 64
    with LoggedDisk(tmp_path / "disk", size_mib=size_mib) as disk:
        for number in range(12):
            (disk.mount / f"loose{number}").write_bytes(dice.randbytes(9000))
            with (disk.mount / f"synced{number}").open("wb") as file:
                file.write(dice.randbytes(9000))
                file.flush()
                os.fsync(file.fileno())
            disk.mark(f"synced{number}")
    kinds = [entry.kind for entry in entries(disk.log)]
    platter, num_loose_lost = Platter(disk.log, tmp_path / "platter", size=size_mib * 1024**2), 0
    for moment in sorted(dice.sample(range(kinds.index(MARK), len(kinds) - 40), 8)):
        platter.advance(moment)
        platter.cut(tmp_path / "image", dice)
        with mounted(tmp_path / "image", tmp_path / "mnt") as mount:
            assert [name for name in platter.marks if (mount / name).stat().st_size != 9000] == []
            num_loose_lost += sum(path.stat().st_size != 9000 for path in mount.glob("loose*"))
    assert num_loose_lost > 0


def test_acknowledged_commits_survive_a_power_cut(tmp_path: Path) -> None:
    arm = Arm("commits", tmp_path / "commits", 0, None)
    arm.record()
    rows = arm.cuts(NUM_CUTS, 0, Console(quiet=True))
    assert len(rows) == NUM_CUTS
    assert [row["faults"] for row in rows if row["faults"]] == []
