"""A block of hostile cases at two doors; all of them: `python -m benchmarks.fuzz_doors`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from benchmarks.fuzz_doors import BLOCK, play_others, serve_blocks

pytestmark = pytest.mark.slow


def collected() -> tuple[Callable[[int, Counter[str], list[str]], None], Counter[str], list[str]]:
    counts, faults = Counter[str](), list[str]()

    def done(_: int, of_block: Counter[str], found: list[str]) -> None:
        counts.update(of_block)
        faults.extend(found)

    return done, counts, faults


def test_a_server_refuses_with_words_stores_nothing_of_it_and_goes_on() -> None:
    done, counts, faults = collected()
    asyncio.run(serve_blocks("gateway spans", [0], done))
    assert faults == [] and counts.total() == BLOCK and counts["refused"] > BLOCK / 4 and counts["answered"] > BLOCK / 10


def test_profiles_and_references_to_plug_ins_are_refused_with_words() -> None:
    done, counts, faults = collected()
    play_others("profiles and plug-ins", [0], done)
    assert faults == [] and counts.total() == BLOCK and counts["refused"] > BLOCK / 4
