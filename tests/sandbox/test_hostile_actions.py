"""No sequence of actions of a policy, on a healthy machine, ends as crashed: random ones, hostile text among them, in every kind of
session, on leases of a pool, judged at the end. Many more: `python -m benchmarks.fuzz_actions`. Pages that mean harm are
test_hostile_pages.py's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.fuzz_actions import fuzzed_episode, play
from sandbox.desktop.apps import missing_packages
from sandbox.pool.pool import SessionPool

NUM_EPISODES = {"page": 8, "game": 2, "terminal": 2, "hybrid": 1, "web": 1, "desktop": 1}
"""Of up to 60 actions each: seconds on a free machine."""
needs_desktop = pytest.mark.skipif(bool(missing_packages()), reason="a desktop's packages are missing: `flywheel doctor` names them")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[needs_desktop] if kind == "desktop" else []) for kind in NUM_EPISODES])
def test_no_sequence_of_actions_ends_as_crashed(kind: str) -> None:
    async def played() -> list[dict[str, Any]]:
        async with SessionPool(size=2) as pool:
            episodes = [fuzzed_episode(number, [kind]) for number in range(NUM_EPISODES[kind])]
            return await asyncio.gather(*(play(pool, task, seed, todo) for _, task, seed, todo in episodes))

    outcomes = asyncio.run(played())
    assert all(each["outcome"] in {"success", "failed"} for each in outcomes), outcomes
    assert sum(each["num_actions"] for each in outcomes) >= 10
