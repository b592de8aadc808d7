"""What benchmarks/iteration_curves.py reports: the reported split alone, and the last merged policy, whichever was the best. Its tables
begin with what a run starts from: tutorials only and seed SFT, on the tasks that are learned and on the unseen.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.common.homes import launches, note_launch
from benchmarks.iteration_curves import PAGE, Point, draw, gain, markdown, points_of, print_tables, published
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse


def point(iteration: str, role: str, mean: float) -> Point:
    return Point(
        variant="quickstart",
        seed=0,
        iteration=iteration,
        role=role,
        tasks="trained on",
        mean=mean,
        standard_error=0.0,
        low=mean,
        high=mean,
        num_episodes=10,
    )


def test_the_gain_is_that_of_the_last_merge_and_not_of_the_best() -> None:
    """The second of three merges is the best, the rows are in no order, and later SFT policies are not the seed's."""
    rows = [
        ("0003", "merged_policy", 0.6),
        ("0001", "merged_policy", 0.5),
        ("0002", "merged_policy", 0.9),
        ("0002", "sft_model", 0.1),
        ("0001", "sft_model", 0.4),
        ("0003", "released_policy", 0.9),
    ]
    found = gain([point(*row) for row in rows])
    assert found is not None
    assert (found["start"], found["last"], found["gain"]) == (0.4, 0.6, pytest.approx(0.2))
    assert gain([point("0001", "merged_policy", 0.5)]) is None and gain([point("0001", "sft_model", 0.5)]) is None


def evaluation(role: str, split: str, solved: int, **more: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": role,
        "checkpoint_role": role,
        "task_id": "task-a",
        "task_name": "click-button",
        "domain": "pointing",
        "split": split,
        "num_episodes": 10,
        "num_success": solved,
        "num_crashed": 0,
    } | more


def test_points_are_of_the_reported_split_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    rows = [
        evaluation("merged_policy", "eval", 9),
        evaluation("merged_policy", "holdout", 3),
        evaluation("sft_model", "eval", 8),
        evaluation("sft_model", "holdout", 2),
    ]
    Warehouse(home).replace_partition("evaluations", rows, iteration="0001", stage="evaluation")
    found = {(each.role, each.mean, each.num_episodes) for each in points_of("quickstart", 0, home)}
    assert found == {("merged_policy", 0.3, 10), ("sft_model", 0.2, 10)}


NUM = 12
WHEN = {"commit": "abc", "date": "2026-01-02", "machine": "a CPU, 2 cores, 4 GiB"}
SOLVED = {("0001", "ct_model"): 3, ("0001", "sft_model"): 6, ("0001", "merged_policy"): 8, ("0002", "merged_policy"): 10}


def evaluated(root: Path) -> Home:
    home = Home(root)
    for iteration in ("0001", "0002"):
        rows = [
            {
                "checkpoint_id": f"checkpoint-{role}-{iteration}",
                "checkpoint_role": role,
                "task_id": f"task-{task}",
                "task_name": task,
                "domain": "pointing",
                "split": "holdout",
                "num_episodes": NUM,
                "num_success": solved,
                "num_crashed": 0,
            }
            for (of, role), solved in SOLVED.items()
            for task in ("click-button", "click-tab")
            if of == iteration
        ]
        Warehouse(home).replace_partition("evaluations", rows, iteration=iteration, stage="evaluation")
    unseen = [
        {"iteration": of, "role": role, "checkpoint_id": role, "counts": [{"task": "click-test", "num_success": n, "num_episodes": 20}]}
        for of, role, n in (("0001", "ct_model", 10), ("0001", "sft_model", 12), ("0002", "released_policy", 18))
    ]
    (root / "unseen.json").write_text(json.dumps(unseen))
    return home


def test_both_starts_have_a_row_and_gains_are_over_each(tmp_path: Path) -> None:
    points = list(points_of("quickstart", 0, evaluated(tmp_path)))
    found = {(p.tasks, p.iteration, p.role): p.mean for p in points}
    assert found[("trained on", "0001", "ct_model")] == 3 / NUM and found[("unseen", "0001", "ct_model")] == 0.5
    assert found[("unseen", "0001", "sft_model")] == 0.6 and found[("unseen", "0002", "released_policy")] == 0.9
    page = markdown({"quickstart-0": {"measured": [WHEN], "points": [asdict(point) for point in points]}})
    assert "- quickstart-0: measured at commit abc on 2026-01-02; machine: a CPU, 2 cores, 4 GiB" in page
    assert "| `ct_model` | `sft_model` |" in page
    assert "| quickstart | 0 | trained on | 0.250 | 0.500 | 0.833 | +0.583 (" in page
    assert "| quickstart | 0 | unseen | 0.500 | 0.600 | 0.900 |" in page
    gains = print_tables(points, Console(quiet=True))
    assert {name: (round(each["start"], 3), round(each["last"], 3)) for name, each in gains.items()} == {
        "quickstart-0, trained on, from tutorials only": (0.25, 0.833),
        "quickstart-0, trained on, from seed SFT": (0.5, 0.833),
        "quickstart-0, unseen, from tutorials only": (0.5, 0.9),
        "quickstart-0, unseen, from seed SFT": (0.6, 0.9),
    }


def test_without_a_start_or_an_end_there_is_no_gain(tmp_path: Path) -> None:
    points = list(points_of("quickstart", 0, evaluated(tmp_path)))
    assert gain([p for p in points if p.role != "ct_model"], "ct_model") is None
    assert gain([p for p in points if p.iteration == "0001" and p.role != "merged_policy" and p.tasks == "unseen"]) is None


def test_the_page_is_what_its_figures_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(published())


def test_the_page_has_the_share_that_is_novel_by_task() -> None:
    task = {"task": "click-tab", "num_instances": 12, "num_novel": 9, "num_new_instruction": 3}
    home = {"measured": [WHEN], "points": [asdict(point("0003", "merged_policy", 0.5))], "novelty": [task]}
    page = markdown({"quickstart-0": home})
    assert "quickstart-0, iteration 0003: of 12 holdout instances of 1 tasks 9 (75%) are novel" in page
    assert "| click-tab | 12 | 9 | 3 |" in page


def test_a_launch_is_noted_once_without_the_name_of_the_machine(tmp_path: Path) -> None:
    home = Home(tmp_path)
    note_launch(home)
    note_launch(home)
    (found,) = launches(home)
    assert re.fullmatch(r"[0-9a-f]{10}( \+ changes)?", found["commit"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"[^/]+, \d+ cores, \d+ GiB", found["machine"]) and platform.node() not in found["machine"]


def test_a_start_that_was_not_measured_leaves_its_column_empty(tmp_path: Path) -> None:
    rows = [point("0001", "sft_model", 0.5), point("0001", "merged_policy", 0.6)]
    draw(rows, tmp_path / "a.svg")
    draw([point("0001", "ct_model", 0.5), *rows], tmp_path / "b.svg")
    lines = [re.findall(r'<polyline points="([^"]+)"', (tmp_path / name).read_text())[-1].split() for name in ("a.svg", "b.svg")]
    assert len(lines[0]) == 2 and lines[0] == lines[1][1:]
