"""A block of hostile cases at some of the doors; all of them: `python -m benchmarks.fuzz_doors`."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.fuzz_doors import BLOCK, DOORS, IMPORTS, SHARES, Block, play_blocks, summed


@pytest.mark.slow
@pytest.mark.parametrize(
    "door", ["gateway spans", "sandbox server", "openenv server", "http itself", "mcp elsewhere", "harbor folders", "profiles and plug-ins"]
)
def test_a_door_refuses_with_words_stores_nothing_of_it_and_goes_on(door: str) -> None:
    blocks: list[Block] = []
    asyncio.run(play_blocks(door, [0], blocks.append))
    (block,) = blocks
    assert block.faults == [] and block.counts.total() == BLOCK and block.counts["refused"] > BLOCK / 4 and block.counts["answered"] > 3


def test_figures_are_summed_by_door() -> None:
    line = {"door": "http itself", "first": 0, "counts": {"refused": 90, "answered": 10}, "faults": ["x"], "wall_s": 1.0, "cpu_s": 0.5}
    assert summed([line, line | {"first": 100, "faults": []}]) == {
        "http itself": {"cases": 200, "answered": 20, "refused": 180, "faults": 1, "cases_per_cpu_s": 200.0}
    }
    assert set(SHARES) == {*DOORS, *IMPORTS}
