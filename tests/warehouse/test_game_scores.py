"""Scores at games: how sure their means are, what they are normalised by, and which episodes are people's."""

from __future__ import annotations

from typing import Any

import pytest

from warehouse.evaluation.game_scores import GameReference, game_scores, people_scores
from warehouse.evaluation.statistics import Interval, mean_of_means, score_interval, student_value, wilson
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SNAKE = GameReference(game="snake", task="snake-8", random=2.0, oracle=80.0, people=None, best=80.0)
KEY = GameReference(game="key", task="key-medium", random=0.0, oracle=100.0, people=50.0, best=100.0)


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)]
)
def test_students_quantiles_are_those_of_the_tables(degrees: int, value: float) -> None:
    assert student_value(0.95, degrees) == pytest.approx(value, rel=2e-3)


def test_there_is_no_quantile_without_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="at least one"):
        student_value(0.95, 0)


def test_the_interval_of_scores_is_students_and_never_below_nothing() -> None:
    found = score_interval(50.0, 10.0, 10, best=80.0)
    assert (found.low, found.high) == (pytest.approx(42.85, abs=0.01), pytest.approx(57.15, abs=0.01))
    assert score_interval(1.0, 10.0, 3, best=80.0).low == 0.0


@pytest.mark.parametrize("deviation", [0.0, None])
def test_scores_that_are_all_alike_prove_little_when_they_are_few(deviation: float | None) -> None:
    share, found = wilson(2, 4), score_interval(40.0, deviation, 4, best=80.0)
    assert found == Interval(low=80 * share.low, high=80 * share.high) and found.low < 40 < found.high
    assert score_interval(80.0, deviation, 2, best=80.0).high == 80.0 and score_interval(0.0, deviation, 2, best=80.0).high > 40
    assert score_interval(0.0, deviation, 2, best=0.0) == Interval(low=0.0, high=0.0)


@pytest.mark.parametrize(("mean", "num"), [(5.0, 0), (-1.0, 3), (81.0, 3)])
def test_impossible_scores_are_refused(mean: float, num: int) -> None:
    with pytest.raises(ValueError, match="at least one score"):
        score_interval(mean, 1.0, num, best=80.0)


def test_a_mean_of_means_adds_its_margins_in_squares() -> None:
    mean, interval = mean_of_means([(10.0, Interval(low=4.0, high=13.0)), (20.0, Interval(low=12.0, high=24.0))])
    assert (mean, interval.low, interval.high) == (15.0, 10.0, 17.5)
    with pytest.raises(ValueError, match="nothing"):
        mean_of_means([])


def played(make: Any, role: str, task_id: str, mean: float | None, **rest: Any) -> dict[str, Any]:
    row = {"task_id": task_id, "task_name": task_id, "domain": "games", "mean_points": mean, "points_deviation": 8.0}
    return make.evaluation(f"c-{role}", role, **row | rest)  # type: ignore[no-any-return]


def test_policies_are_scored_by_game_and_normalised_by_who_has_played_all(tables_place: Any, warehouse: Warehouse, make: Any) -> None:
    references = {"task-snake": SNAKE, "task-snake-elements": SNAKE, "task-key": KEY}
    rows = [
        played(make, "merged_policy", "task-snake", 40.0),
        played(make, "merged_policy", "task-snake-elements", 8.0),
        played(make, "merged_policy", "task-key", 25.0),
        played(make, "sft_model", "task-key", 20.0),
        played(make, "sft_model", "task-key", 99.0, split="eval"),
        played(make, "sft_model", "task-snake", None),
        played(make, "sft_model", "task-other", 30.0),
        played(make, "ct_model", "task-other", 30.0),
    ]
    warehouse.replace_partition("evaluations", rows, iteration="0002", stage="evaluation")
    warehouse.replace_partition("evaluations", [played(make, "merged_policy", "task-key", 10.0)], iteration="0001", stage="evaluation")
    with connect(warehouse) as con:
        found = game_scores(con, references, "holdout")
        assert game_scores(con, references, "holdout", iteration="0002") == found[1:] and game_scores(con, {}, "holdout") == []
    assert [(one.iteration, one.role) for one in found] == [("0001", "merged_policy"), ("0002", "sft_model"), ("0002", "merged_policy")]
    _, sft, merged = found
    assert {game: score.mean for game, score in merged.games.items()} == {"key": 25.0, "snake": 40.0}, "the task without elements"
    assert (merged.normalised.name, merged.normalised.num_games) == ("oracle-normalised", 2)
    assert merged.normalised.mean == pytest.approx((25 + 50) / 2)
    half = student_value(0.95, 9) * 8 / 10**0.5
    assert merged.normalised.interval.high - merged.normalised.mean == pytest.approx(((half / 2) ** 2 + (half / 1.6) ** 2) ** 0.5)
    assert (sft.normalised.name, sft.normalised.mean) == ("human-normalised", pytest.approx(40.0)), "people have played its one game"
    with pytest.raises(ValueError, match="snake: there is no score of people"):
        merged.normalised_by("people")


def test_a_score_is_a_persons_where_they_decided_every_step(tables_place: Any, warehouse: Warehouse, make: Any) -> None:
    of = {"purpose": "annotation", "task_id": "task-snake", "points": 30.0, "num_steps": 2}
    episodes = [make.episode(name, **of) for name in ("own", "accepted", "oracle", "relabelled", "unfinished")]
    episodes += [make.episode("unscored", **of | {"points": None}), make.episode("rollout", **of | {"purpose": "rollout"})]
    decided = {"origin": "human", "mode": "intervene", "decision": "override"}
    rows = [
        make.annotation(f"{name}-{step}", name, **decided | {"step_index": step} | other.get(step, {}))
        for name, other in {
            "own": {1: {"decision": "edit"}},
            "accepted": {1: {"decision": "accept"}},
            "oracle": {step: {"origin": "scripted"} for step in (0, 1)},
            "relabelled": {step: {"mode": "relabel"} for step in (0, 1)},
            "unscored": {},
            "rollout": {},
        }.items()
        for step in (0, 1)
    ]
    rows.append(make.annotation("unfinished-0", "unfinished", **decided | {"step_index": 0}))
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="annotations")
    warehouse.replace_partition("annotations", rows, iteration="0001", stage="annotations")
    with connect(warehouse) as con:
        assert people_scores(con) == {"task-snake": [30.0]}
