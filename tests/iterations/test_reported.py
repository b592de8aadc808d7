"""What chooses, on a home of synthetic rows in which everything that is only reported is turned around, and rows are planted that no stage
writes: of the split that nothing plays, and of reported episodes in stages that store none. Real iterations: test_two_iterations.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assets.tasks.pool import make_task_pool
from benchmarks.common.history import Size, make_history
from pipelines import profiles
from tests.iterations.reported import plant, poison
from warehouse.core.home import Home
from warehouse.datasets.mixing import mixed
from warehouse.evaluation.choosing import connect_to_choose, outcomes_to_choose
from warehouse.evaluation.solve_rates import solve_rates
from warehouse.routing.routes import route
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ITERATIONS = ("0001", "0002")
RATES = "select task_id, purpose, avg(reward) from episodes group by all order by all"


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    home = Home(tmp_path / "home")
    list(make_history(home, Size(iterations=2, episodes=300)))
    return Warehouse(home)


def choices(warehouse: Warehouse) -> dict[str, Any]:
    settings = profiles.load("smoke", {"tasks.self_challenge.enabled": True})
    with connect(warehouse) as con:
        policies = [policy for (policy,) in con.execute("select distinct policy_id from episodes order by 1").fetchall()]
        mixtures = {"ct": settings.ct_mixture, "sft": settings.sft_mixture}
        datasets = {kind: mixed(con, kind, "0003", mixture).dataset_id for kind, mixture in mixtures.items()}  # type: ignore[arg-type]
    with connect_to_choose(warehouse) as con:
        rates = solve_rates(con, "0003", settings.tasks.self_challenge.memory)
        read = con.execute(RATES).fetchall()
    pool = [(choice.task.name, choice.num, choice.why) for choice in make_task_pool(warehouse, settings, "0003")[0]]
    return {
        "outcomes": {policy: outcomes_to_choose(warehouse, policy) for policy in policies},
        "pool": pool,
        "datasets": datasets,
        "rates": rates,
        "read": read,
    }


def everything(warehouse: Warehouse) -> dict[str, list[Any]]:
    """What one would choose by who reads all rows."""
    with connect(warehouse) as con:
        query = "select task_id, purpose, stage, avg(reward) from episodes where split = ? group by all order by all"
        return {split: con.execute(query, [split]).fetchall() for split in ("holdout", "report")}


def stages_of(rows: list[Any]) -> set[str]:
    return {stage for _, _, stage, _ in rows}


@pytest.mark.slow
def test_nothing_chooses_otherwise_when_what_is_reported_says_the_contrary(warehouse: Warehouse) -> None:
    before, seen = choices(warehouse), everything(warehouse)
    assert before["outcomes"] and before["pool"] and before["rates"] and seen["holdout"] and not seen["report"]
    for iteration in ITERATIONS:
        assert poison(warehouse, iteration) > 0
    turned = everything(warehouse)
    assert turned["holdout"] != seen["holdout"] and choices(warehouse) == before
    for iteration in ITERATIONS:
        assert plant(warehouse, iteration) > 0
    planted = everything(warehouse)
    assert planted["report"] and stages_of(planted["holdout"]) > stages_of(turned["holdout"])
    assert choices(warehouse) == before


@pytest.mark.slow
def test_routes_of_what_is_played_to_learn_from_stay(warehouse: Warehouse) -> None:
    rules = profiles.load("smoke").routing

    def routes() -> list[Any]:
        with connect(warehouse) as con:
            return list(route(con, rules).to_pylist())

    before = routes()
    for iteration in ITERATIONS:
        poison(warehouse, iteration)
        plant(warehouse, iteration)
    assert before and routes() == before
