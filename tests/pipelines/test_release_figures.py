"""The report split: it is looked at for a release that is named, and every look is written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from pipelines import profiles
from pipelines.stages.evaluate_checkpoint import evaluate_checkpoint, unreported
from pipelines.stages.release_figures import FILE, check_split, looks, record
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse


def test_the_report_split_needs_a_release_and_no_other_has_one() -> None:
    assert check_split("report", "v1") is Split.REPORT and check_split("eval", None) is Split.EVAL
    for split, release, words in (
        ("report", None, "--for-release"),
        ("report", "", "--for-release"),
        ("holdout", "v1", "goes with"),
        ("train", None, "never reported"),
        ("all", None, "never reported"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_split(split, release)


def test_it_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(ConfigError, match="--for-release"):
        evaluate_checkpoint(Warehouse(home), "nothing", "report", 1, "smoke", {}, Console(quiet=True))
    assert not (tmp_path / FILE).exists()


def test_every_look_is_written_down(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert record(home, release="v1", policy_id="a") == 0 and record(home, release="v1", policy_id="b") == 1
    assert [(look["release"], look["policy_id"]) for look in looks(home)] == [("v1", "a"), ("v1", "b")]
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConfigError, match=FILE):
        record(home, release="v2", policy_id="c")


def test_tasks_without_different_instances_are_named() -> None:
    assert unreported(profiles.load("quickstart"), Split.REPORT) == ["click-button-sequence", "click-test-2", "focus-text-2"]
