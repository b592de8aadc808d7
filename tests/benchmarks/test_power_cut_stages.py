"""Cuts of a run come from each of its stages by turns."""

from __future__ import annotations

import random
from collections import Counter

from benchmarks.common.homes import STAGES, stage_of
from benchmarks.power_cut.__main__ import by_turns
from pipelines.orchestration.runs.process import JOBS


def test_every_stage_gets_its_share_of_the_cuts_however_little_it_writes() -> None:
    stages = {**dict.fromkeys(range(1000), "RL"), **dict.fromkeys(range(1000, 1010), "merge"), 1010: "release"}
    drawn = by_turns(stages, 11, random.Random(0))
    assert len(set(drawn)) == 11
    assert Counter(stages[moment] for moment in drawn) == {"RL": 5, "merge": 5, "release": 1}
    assert by_turns(stages, 11, random.Random(0)) == drawn != by_turns(stages, 11, random.Random(1))


def test_every_stage_has_steps_in_the_runs_of_iterations() -> None:
    steps = [node.name for job in JOBS.values() for node in job().graph.node_defs]
    found = Counter(stage_of(f"0001/{step}") for step in steps)
    assert set(found) == {*STAGES, "routing"}
    assert all(num < len(steps) / 2 for num in found.values())
    assert stage_of("0001/rl_model__forms") == "RL" and stage_of("0000/seed_gate") == "seed"
