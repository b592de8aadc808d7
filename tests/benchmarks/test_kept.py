"""What a benchmark kept is taken again where its settings are the same, and refused where they are not."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import rl_beside_trl
from benchmarks.common.kept import claim, fingerprint, kept_row
from benchmarks.common.provenance import provenance


def test_a_row_is_measured_once_and_refused_under_other_settings(tmp_path: Path) -> None:
    target, measured = tmp_path / "0-ppo.json", []

    def figures() -> dict[str, float]:
        measured.append(1)
        return {"success": 0.5}

    recipe = fingerprint({"steps": 3}, ["ppo"])
    first = kept_row(target, recipe, {"seed": 0, "arm": "ppo"}, figures)
    assert first == {"seed": 0, "arm": "ppo", "recipe": recipe, "measured": provenance(), "success": 0.5} == json.loads(target.read_text())
    assert kept_row(target, fingerprint({"steps": 3}, ["ppo"]), {}, figures) == first
    assert len(measured) == 1
    with pytest.raises(SystemExit, match=r"of other settings.*remove .* to measure again"):
        kept_row(target, fingerprint({"steps": 4}, ["ppo"]), {"seed": 0, "arm": "ppo"}, figures)


def test_a_row_of_no_named_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "row.json").write_text(json.dumps({"seed": 0, "success": 1.0}))
    with pytest.raises(SystemExit, match="does not name"):
        kept_row(tmp_path / "row.json", "a", {}, dict)


def test_a_measurement_that_fails_leaves_no_row(tmp_path: Path) -> None:
    def figures() -> dict[str, float]:
        raise RuntimeError("a browser died")

    with pytest.raises(RuntimeError, match="browser"):
        kept_row(tmp_path / "row.json", "a", {}, figures)
    assert kept_row(tmp_path / "row.json", "b", {}, dict) == {"recipe": "b", "measured": provenance()}


def test_a_folder_is_gone_on_with_under_the_settings_it_was_begun_with(tmp_path: Path) -> None:
    start = tmp_path / "start-0"
    claim(start, "a")
    claim(start, "a")  # begun and cut off before anything was there
    start.mkdir()
    claim(start, "a")
    with pytest.raises(SystemExit, match="other settings"):
        claim(start, "b")
    (tmp_path / "start-1").mkdir()
    with pytest.raises(SystemExit, match="does not name"):
        claim(tmp_path / "start-1", "a")


def test_what_an_arm_is_given_is_in_its_fingerprint() -> None:
    reported = Namespace(episodes=672, rounds=8, per_task=40)
    arms: list[tuple[str, float | None]] = [("start", None), *((arm, rate) for arm in rl_beside_trl.ARMS for rate in rl_beside_trl.RATES)]
    recipes = {arm: rl_beside_trl.recipe_of(0, *arm, reported) for arm in arms}
    assert len(set(recipes.values())) == len(arms) == 1 + 3 * 5
    more = Namespace(episodes=1344, rounds=8, per_task=40)
    assert rl_beside_trl.recipe_of(0, "start", None, more) == recipes["start", None], "episodes of RL are nothing to the policy before it"
    assert all(rl_beside_trl.recipe_of(0, *arm, more) != recipes[arm] for arm in arms[1:])


def test_the_rate_of_an_arm_is_chosen_by_eval_alone_over_all_seeds() -> None:
    """At .1 seed 1 is the best of all; over both seeds .2 is."""
    solved = {(0, 0.1): 3, (0, 0.2): 6, (1, 0.1): 9, (1, 0.2): 8}
    rows = [
        {"arm": "TRL", "seed": seed, "rate": rate, "split": "eval", "counts": [{"task": "t", "num_success": num, "num_episodes": 10}]}
        for (seed, rate), num in solved.items()
    ]
    assert rl_beside_trl.best_rate(rows, "TRL") == 0.2
    with pytest.raises(ValueError, match="holdout"):
        rl_beside_trl.best_rate([{**rows[0], "split": "holdout"}], "TRL")
