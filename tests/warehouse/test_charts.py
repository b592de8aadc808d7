"""Charts: well-formed SVG that stands alone, shows the tables' figures, and survives empty tables and hostile names."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest

from warehouse.evaluation.evaluations import evaluations
from warehouse.reporting import charts, run_charts
from warehouse.reporting.iteration_summaries import summaries
from warehouse.reporting.steering import steered_rounds, steering_table
from warehouse.reporting.svg import Axis, Drawing, as_markdown, short
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

HOSTILE = '<script>alert("&")</script>'


def texts(svg: str) -> list[str]:
    """The visible texts; raises where the SVG is not XML, and fails where it needs anything from elsewhere."""
    root = ElementTree.fromstring(svg)
    addresses = set(re.findall(r"https?://[^\"'\s)]+", svg)) - {"http://www.w3.org/2000/svg"}
    assert not addresses and "<script" not in svg
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


PICTURES: dict[str, Callable[[duckdb.DuckDBPyConnection], str]] = {
    "success": lambda con: charts.success_by_stage(evaluations(con)),
    "flow": lambda _: charts.routing_flow("0001", ()),
    "annotations": lambda _: charts.annotation_bars({}),
    "mixture": lambda _: charts.mixture_bars({}, "sft"),
    "run": lambda con: run_charts.training_curves(con, "0001", "sft_model"),
    "iterations": lambda con: run_charts.iteration_curves(con, "rl_forms"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_an_empty_warehouse_gives_a_picture_that_says_so_or_none(warehouse: Warehouse, name: str) -> None:
    with connect(warehouse) as con:
        svg = PICTURES[name](con)
    assert svg == "" or any("nothing was" in text for text in texts(svg))


def test_success_shows_every_policy_with_its_mean(planted: Warehouse) -> None:
    with connect(planted) as con:
        shown = texts(charts.success_by_stage(evaluations(con)))
        assert charts.success_by_stage(evaluations(con)) == charts.success_by_stage(evaluations(con))
    assert [text for text in shown if text.startswith(".")] == [".500", ".700", ".900"]
    assert shown.count("SFT") == 2 and "merged" in shown and "iteration 2" in shown


def test_success_marks_the_second_split(warehouse: Warehouse, make: Any) -> None:
    rows = [make.evaluation("c", "merged_policy", split=split, num_success=n) for split, n in (("holdout", 8), ("eval", 6))]
    warehouse.replace_partition("evaluations", rows, iteration="0001", stage="evaluation")
    with connect(warehouse) as con:
        svg = charts.success_by_stage(evaluations(con))
    assert "hollow: eval split" in " ".join(texts(svg)) and 'class="hollow line teal"' in svg


def test_the_flow_counts_every_episode_once(warehouse: Warehouse, make: Any) -> None:
    reasons = [
        "V=1: verifier 1 >= 0.999, 9 filters passed",
        "V=0: verifier 0 < 0.999",
        "V=1 (verifier 1 >= 0.999), demoted by loop 0.2 < 0.7: x",
        "duplicate 0 < 0.1: 1.00 like e",
        "crashed: gone",
        HOSTILE,
    ]
    routes = ["sft", "ct", "ct", "withheld", "withheld", "withheld"]
    episodes = [make.episode(f"e{i}", purpose="annotation" if i % 2 else "rollout") for i in range(60)]
    rows = [{"episode_id": f"e{i}", "route": routes[i % 6], "reason": reasons[i % 6]} for i in range(60)]
    warehouse.replace_partition("episodes", episodes, iteration="0001", stage="rollouts")
    warehouse.replace_partition("routes", rows, iteration="0001", stage="routing")
    svg = charts.routing_flow("0001", summaries(warehouse)["0001"].flows)
    shown = texts(svg)
    assert {"sft  10 (17%)", "ct  20 (33%)", "withheld  30 (50%)"} <= set(shown)
    assert {"solved  10 (17%)", "loop  10 (17%)", "duplicate  10 (17%)", "crashed  10 (17%)"} <= set(shown)
    left = [int(hint) for hint in re.findall(r'class="flow \w+"><title>(\d+)</title>', svg)]
    assert sum(left) == 2 * 60, "each episode flows twice: into its route, and out to its reason"


def test_curves_of_one_run_and_of_all_iterations(warehouse: Warehouse) -> None:
    for iteration in ("0001", "0002"):
        rows = [
            {"run": "rl_forms", "step": step, "metric": metric, "value": value, "checkpoint_id": "c"}
            for step in (1, 2, 3)
            for metric, value in (("reward", 0.1 * step), ("kl", 1e-4 * step), ("updates", 7.0), ("entropy", 0.5))
        ]
        warehouse.replace_partition("training_metrics", rows, iteration=iteration, stage="rl_forms")
    with connect(warehouse) as con:
        one, both = texts(run_charts.training_curves(con, "0001", "rl_forms")), texts(run_charts.iteration_curves(con, "rl_forms"))
    assert one[0] == "RL forms, iteration 1" and {"reward", "KL"} <= set(one)
    assert "entropy" not in one and "updates" not in one, "flat lines and unknown metrics take no panel"
    assert {"iteration 1", "iteration 2"} <= set(both)


def test_bars_of_mixtures_annotations_and_time(planted: Warehouse) -> None:
    reported = summaries(planted)
    assert {"SFT samples an epoch", "iteration 1", "iteration 2", "4"} <= set(texts(charts.mixture_bars(reported, "sft")))
    assert {"Annotated steps", "override", "1"} <= set(texts(charts.annotation_bars(reported)))
    shown = texts(charts.time_bars({"seed": {"seed_policy": 2.0}, "iteration 1": {"ct_model": 61.0, "rl_forms": 9.4, HOSTILE: 1.0}}))
    assert {"seed", "iteration 1", "CT", "RL forms", "2 s", "71 s", HOSTILE} <= set(shown)
    assert charts.time_bars({}) == charts.time_bars({"seed": {}}) == ""


def test_a_picture_travels_as_markdown(planted: Warehouse) -> None:
    with connect(planted) as con:
        svg = charts.success_by_stage(evaluations(con))
    markdown = as_markdown(svg, "success")
    assert markdown.startswith("![success](data:image/svg+xml;base64,") and markdown.endswith(")")
    assert base64.b64decode(markdown.split(",")[1][:-1]).decode() == svg


def test_drawing_escapes_and_axes_have_round_ticks() -> None:
    drawing = Drawing(100, 50, HOSTILE)
    drawing.text(1, 2, HOSTILE)
    drawing.circle(1, 2, 3, "blue", HOSTILE)
    assert texts(drawing.render()) == [HOSTILE]
    assert Axis(0.42, 1.0, 0, 100).ticks() == pytest.approx([0.6, 0.8, 1.0])
    assert Axis(3.0, 3.0, 0, 100).px(3.0) == 50
    assert [short(value) for value in (0, 0.8544, 12, 3.2e-5, 16_000, 950.4)] == ["0", "0.854", "12", "3e-5", "16k", "950"]


def test_each_round_says_who_steered_and_by_what_lambda() -> None:
    names = ("critic_steers", "baseline_steers", "lambda_policy_min", "lambda_policy_max", "explained_variance")
    rounds = ((0, 0, 0.5, 0.9, 0.0), (0, 1, 0.5, 0.9, 0.05), (1, 0, 0.25, 0.93, 0.4))
    curves = {name: [(number, float(of[place])) for number, of in enumerate(rounds, start=1)] for place, name in enumerate(names)}
    found = steered_rounds(curves)
    assert [(each.who, each.lambdas, each.explained) for each in found] == [
        ("nobody", "", 0.0),
        ("baseline", "", 0.05),
        ("critic", "0.25 to 0.93", 0.4),
    ]
    assert steering_table(found).splitlines()[-1] == "| 3 | critic | 0.25 to 0.93 | 0.40 |"
    assert steered_rounds({"reward": [(1, 1.0)]}) == []
