"""What games are scored beside: every game has it at its version of today, and episodes inside the page score what a session gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import game_references
from benchmarks.game_references import INPUTS, MARKERS, PAGE, PLAYERS, check, markdown, open_browser, play, task_for, with_people
from sandbox.tasks.games.references import GROUPS, references
from sandbox.tasks.games.source import ELEMENTS_SUFFIX, entry_of, load_tasks, score_references
from sandbox.tasks.games.versions import game_names
from sandbox.tasks.task import Split
from tests.warehouse.conftest import Make
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

QUICK = ("shapes-10", "key-medium", "catch-15")
"""By drags and clicks, by drags, and by keys against the clock."""


@pytest.mark.parametrize("group", GROUPS)
def test_every_game_has_one_task_and_its_references(group: str) -> None:
    tasks = load_tasks(group)
    assert sorted(entry_of(task).game for task in tasks.values()) == sorted(game_names()) == sorted(INPUTS)
    found = score_references()[group]
    ids = {task.task_id for suffix in ("", ELEMENTS_SUFFIX) for task in load_tasks(group + suffix).values()}
    assert set(found) == ids, "a game changed: python -m benchmarks.game_references --publish"
    for name, task in tasks.items():
        of = found[task.task_id]
        assert (of.task, of.game) == (name, entry_of(task).game) and 0 <= of.random < of.oracle <= of.best
        assert references()[name].oracle.split == references()[name].random.split == Split.TRAIN.value


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.split(MARKERS[0])[1].split(MARKERS[1])[0].strip() == markdown(references()).strip()


@pytest.mark.parametrize("name", [name if name in QUICK[:1] else pytest.param(name, marks=pytest.mark.slow) for name in QUICK])
def test_episodes_in_the_page_score_what_a_session_gives(name: str) -> None:
    assert check([name], 1) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in load_tasks("scored") if name not in QUICK])
def test_so_do_those_of_the_other_games(name: str) -> None:
    assert check([name], 1) == []


def test_the_same_seed_plays_the_same_and_what_is_kept_was_played_so() -> None:
    seeds = load_tasks()["shapes-10"].seeds(Split.TRAIN, 3)
    with open_browser() as browser:
        played = {player: [play(browser, task_for("shapes-10", player), player, seeds) for _ in range(2)] for player in PLAYERS}
    for player, (first, second) in played.items():
        kept = getattr(references()["shapes-10"], player)
        assert first == second and tuple(episode["score"] for episode in first) == kept.scores[:3]


def test_what_people_scored_in_a_home_comes_beside_and_other_tasks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_references, "provenance", lambda: {"commit": "0123456789"})
    home, task = Home(tmp_path), load_tasks()["pairs-6" + ELEMENTS_SUFFIX]
    of: dict[str, Any] = {"purpose": "annotation", "task_id": task.task_id, "num_steps": 1}
    episodes = [Make.episode(f"e-{points:g}", points=points, **of) for points in (40.0, 60.0)]
    decided = {"origin": "human", "mode": "intervene", "decision": "override", "step_index": 0}
    rows = [Make.annotation(f"a-{row['episode_id']}", row["episode_id"], **decided) for row in episodes]
    Warehouse(home).replace_partition("episodes", episodes, iteration="0001", stage="annotations")
    Warehouse(home).replace_partition("annotations", rows, iteration="0001", stage="annotations")
    before = {"pairs-6": {"game": "pairs", "people": None}, "catch-4": {"game": "catch", "people": {"scores": [40.0]}}}
    found = with_people(before, home)
    assert found["catch-4"] == before["catch-4"]
    assert found["pairs-6"]["people"] == {"scores": [40.0, 60.0], "split": "any", "measured": {"commit": "0123456789"}}
