"""What the tables say of a merge: retention with its verdicts, the mixtures of a search, their table and picture; the budget curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from warehouse.core.home import Home
from warehouse.evaluation.evaluations import success_by_domain
from warehouse.evaluation.merge_results import kept_by_search, mixtures, retentions
from warehouse.evaluation.statistics import TaskCount, macro_average
from warehouse.reporting.gain_charts import budget_chart
from warehouse.reporting.merge_report import mixtures_chart, mixtures_table, retention_table, successes_table
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ITERATION = "0001"


@pytest.fixture
def warehouse(tmp_path: Path, tables_place: str) -> Warehouse:
    return Warehouse(Home(tmp_path / "home"))


def evaluation(role: str, domain: str, num_success: int, split: str = "holdout") -> dict[str, Any]:
    return {
        "checkpoint_id": f"c-{role}",
        "checkpoint_role": role,
        "task_id": f"t-{domain}",
        "task_name": f"t-{domain}",
        "domain": domain,
        "split": split,
        "num_episodes": 100,
        "num_success": num_success,
        "num_crashed": 0,
    }


def candidate(
    place: int, weights: tuple[float, float], domain: str, num_success: int, *, method: str = "linear", chosen: bool = False
) -> dict[str, Any]:
    return {
        "candidate": place,
        "method": method,
        "weights": json.dumps(dict(zip(("rl_forms", "rl_pointing"), weights, strict=True))),
        "is_chosen": chosen,
        "task_id": f"t-{domain}",
        "task_name": f"t-{domain}",
        "domain": domain,
        "num_episodes": 20,
        "num_success": num_success,
        "num_crashed": 0,
    }


def test_retention_is_of_each_specialist_on_its_own_domain(warehouse: Warehouse) -> None:
    rows = [
        evaluation("rl_forms", "forms", 80),
        evaluation("rl_forms", "pointing", 10),
        evaluation("rl_pointing", "pointing", 90),
        evaluation("rl_joint_forms_pointing", "forms", 95),
        evaluation("merged_policy", "forms", 79),
        evaluation("merged_policy", "pointing", 40),
        evaluation("merged_policy", "forms", 1, split="eval"),
    ]
    warehouse.replace_partition("evaluations", rows, iteration=ITERATION, stage="evaluation")
    with connect(warehouse) as con:
        kept = {row.domain: row for row in retentions(con, ITERATION)}
        lines = successes_table(success_by_domain(con, ITERATION)).splitlines()
    assert kept.keys() == {"forms", "pointing"}
    assert kept["forms"].is_kept and kept["forms"].share == pytest.approx(79 / 80) and kept["forms"].verdict == "kept"
    assert not kept["pointing"].is_kept and kept["pointing"].verdict == "lost, proven"
    table = retention_table(list(kept.values()))
    assert "| forms | holdout | 0.800" in table and "99%" in table and "44%" in table
    assert retention_table([]).startswith("no specialist")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| rl_forms", "| rl_pointing", "| rl_joint_forms_pointing", "| merged_policy"]
    assert lines[0] == "| policy | forms | pointing |"
    assert lines[4].startswith("| rl_joint_forms_pointing | 0.950 [") and lines[4].endswith("– |")


def test_the_search_is_reported_mixture_by_mixture(warehouse: Warehouse) -> None:
    tried = [((1.0, 0.0), 18, 4, False), ((0.5, 0.5), 17, 16, True), ((0.0, 1.0), 5, 17, False)]
    rows = [
        candidate(place, weights, domain, num, chosen=chosen)
        for place, (weights, forms, pointing, chosen) in enumerate(tried)
        for domain, num in (("forms", forms), ("pointing", pointing))
    ]
    warehouse.replace_partition("merge_candidates", rows, iteration=ITERATION, stage="merged_policy")
    with connect(warehouse) as con:
        found = mixtures(con, ITERATION)
    assert [one.label for one in found] == ["1 / 0", "0.5 / 0.5", "0 / 1"]
    assert found[1].all_tasks.mean == pytest.approx(33 / 40) and found[1].domains["forms"].num_episodes == 20
    table = mixtures_table(found).splitlines()
    assert table[0] == "| method | rl_forms | rl_pointing | forms | pointing | all tasks |"
    assert table[3].startswith("| **linear** | **0.5**")
    svg = mixtures_chart(found)
    ElementTree.fromstring(svg)
    assert "▸ 0.5 / 0.5" in svg and mixtures_chart([]) == ""
    kept = {row.domain: row for row in kept_by_search(found)}
    assert kept["forms"].share == pytest.approx(17 / 18) and kept["forms"].verdict == "lost, within the interval"
    assert kept["pointing"].share == pytest.approx(16 / 17)


def test_where_corners_are_not_the_specialists_these_are_reported_beside(warehouse: Warehouse) -> None:
    rows = [
        candidate(0, (1.0, 0.0), "forms", 20, method="specialist"),
        candidate(1, (0.0, 1.0), "forms", 3, method="specialist"),
        candidate(2, (1.0, 0.0), "forms", 12, method="ties", chosen=True),
    ]
    warehouse.replace_partition("merge_candidates", rows, iteration=ITERATION, stage="merged_policy")
    with connect(warehouse) as con:
        (kept,) = kept_by_search(mixtures(con, ITERATION))
    assert kept.share == pytest.approx(0.6)


def test_the_budget_curve_has_a_line_a_domain() -> None:
    curves = {
        domain: [(f"{amount}x", macro_average([TaskCount(task="a", num_success=int(5 * amount), num_episodes=20)])) for amount in amounts]
        for domain, amounts in (("forms", (0.5, 1.0, 2.0)), ("pointing", (0.5, 2.0)))
    }
    svg = budget_chart(curves, "by budget", alone=True)
    ElementTree.fromstring(svg)
    assert svg.index("0.5x</text>") < svg.index("1.0x</text>") < svg.index("2.0x</text>") and budget_chart({}, "none") == ""
    assert svg.count("<circle") == 2 + 5 and "pointing, 2.0x: 0.500 [" in svg
