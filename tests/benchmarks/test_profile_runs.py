"""What benchmarks/profile_runs.py tells of a home: holdout alone, by domain, and what the merge keeps of each specialist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from assets.settings.profile import Profile
from benchmarks.profile_runs import RUNS, policies_of, result_of, show
from pipelines import profiles
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

SOLVED = {"sft_model": (4, 2), "rl_pointing": (8, 2), "rl_forms": (4, 6), "merged_policy": (6, 6)}


def row(role: str, task: str, domain: str, solved: int, split: str = "holdout") -> dict[str, Any]:
    return {
        "checkpoint_id": role,
        "checkpoint_role": role,
        "task_id": task,
        "task_name": task,
        "domain": domain,
        "split": split,
        "num_episodes": 10,
        "num_success": solved,
        "num_crashed": 0,
    }


def evaluated(root: Path) -> Home:
    home, rows = Home(root), []
    for role, (pointing, forms) in SOLVED.items():
        rows += [row(role, "click-button", "pointing", pointing), row(role, "login-user", "forms", forms)]
        rows.append(row(role, "click-button", "pointing", 10, split="eval"))
    Warehouse(home).replace_partition("evaluations", rows, iteration="0001", stage="evaluation")
    return home


def test_domains_are_counted_apart_on_holdout_alone(tmp_path: Path) -> None:
    found = policies_of(evaluated(tmp_path))["0001"]
    domains = {"pointing": {"solved": 8, "episodes": 10}, "forms": {"solved": 2, "episodes": 10}}
    assert found["rl_pointing"]["domains"] == domains and found["rl_pointing"]["mean"] == 0.5


def test_what_a_merge_keeps_is_of_each_specialist_on_its_own_domain(tmp_path: Path) -> None:
    result = result_of(evaluated(tmp_path))
    assert result["kept_by_merge"] == {"0001": {"pointing": 0.75, "forms": 1.0}}
    assert "minutes" not in result, "nobody saw how long it took"
    console = Console(record=True, width=200)
    show("a home", result, console)
    text = console.export_text()
    assert "keeps 100.0% of rl_forms, 75.0% of rl_pointing" in text or "keeps 75.0% of rl_pointing, 100.0% of rl_forms" in text


def test_the_settings_of_every_run_are_those_of_a_profile() -> None:
    for options, settings in RUNS.values():
        assert isinstance(profiles.load(options[options.index("--profile") + 1], settings), Profile)
