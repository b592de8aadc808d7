"""Hundreds of episodes on a fleet whose browsers are killed at random: each is recorded once, and no process is left behind. The same
program plays thousands: benchmarks/soak.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.soak import SoakSettings, requests, soak


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_episode_is_lost_or_recorded_twice_while_browsers_are_killed(tmp_path: Path) -> None:
    found = asyncio.run(soak(SoakSettings(num_episodes=300, tasks="miniwob:quickstart"), tmp_path, print))
    assert (found.num_episodes, found.num_lost, found.num_duplicated, found.num_crashed, found.num_orphans) == (300, 0, 0, 0, 0)
    assert found.num_kills == 6 and found.num_retries >= 1
    assert found.outcomes == {"success": 300}


def test_an_interrupted_soak_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = SoakSettings(num_episodes=12, kill_every=0, num_workers=1, tasks="miniwob:quickstart")
    ids = [request.episode_id for request in requests(settings)]
    lines = [
        {"episode_id": episode_id, "task": "t", "seed": 0, "outcome": "success", "num_retries": 0, "num_steps": 1, "error": None}
        for episode_id in ids[:8]
    ]
    cut_off = '{"episode_id": "episo'
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut_off)
    found = asyncio.run(soak(settings, tmp_path, print))
    text = (tmp_path / "episodes.jsonl").read_text().splitlines()
    written = [json.loads(line)["episode_id"] for line in text if line not in ("", cut_off)]
    assert sorted(written) == sorted(ids)
    assert (found.num_lost, found.num_duplicated, found.num_kills, found.num_orphans) == (0, 0, 0, 0)
