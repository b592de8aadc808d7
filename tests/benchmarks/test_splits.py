"""A script that measures a policy plays what may be chosen by, `eval`, unless it is asked for `holdout`; published are figures of `holdout`
only."""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import analyses, memory, streaming
from benchmarks.common import small_policy
from benchmarks.common.splits import add_split
from sandbox.tasks.task import Split

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
REPORT = {
    "common/splits.py": "offers the choice",
    "analyses.py": "publishes figures of that split only",
    "orm.py": "reports the judge on both splits, and chooses its threshold on eval",
    "rl_beside_trl.py": "reports the arms that were chosen on eval",
    "iteration_curves.py": "draws the curves of iterations, which are on holdout",
    "quantised.py": "reports a checkpoint at each precision; none is chosen by it",
    "pixels.py": "plays the controls of what iterations report",
    "reserved.py": "counts the instances of each split",
    "ct_objectives.py": "reports what each arm learned; none is chosen by it",
}
"""Module → why it names the split that is only reported."""


def test_the_split_is_eval_unless_another_is_asked_for() -> None:
    parser = argparse.ArgumentParser()
    add_split(parser)
    assert parser.parse_args([]).split is Split.EVAL and parser.parse_args(["--split", "holdout"]).split is Split.HOLDOUT
    for refused in ("report", "train"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--split", refused])
    assert inspect.signature(small_policy.evaluation).parameters["split"].default is Split.EVAL
    assert "split" in streaming.REPORTED


def test_only_scripts_that_report_name_holdout() -> None:
    found = {
        path.relative_to(BENCHMARKS).as_posix()
        for path in BENCHMARKS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "HOLDOUT"
    }
    assert found == REPORT.keys()


@pytest.mark.parametrize("main", [memory.main, analyses.main, streaming.main])
def test_each_of_these_scripts_takes_the_split(
    main: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "--split {eval,holdout}" in capsys.readouterr().out


def test_figures_of_eval_are_not_published(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["analyses", "--publish"])
    with pytest.raises(SystemExit):
        analyses.main()
    assert "add --split holdout" in capsys.readouterr().err


def test_figures_of_two_splits_are_kept_apart() -> None:
    reported = {split: argparse.Namespace(episodes=8, per_task=2, split=split) for split in (Split.EVAL, Split.HOLDOUT)}
    assert len({analyses.recipe_of("forms", 0, "ppo", each) for each in reported.values()}) == 2
    assert [analyses.name_of("forms", 0, "ppo", each) for each in reported.values()] == ["forms-0-ppo-eval", "forms-0-ppo-holdout"]
