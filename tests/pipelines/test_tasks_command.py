"""`flywheel tasks`: all of them, with what each asks for; the options leave out what was not asked for, and name the choices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli import app as cli
from pipelines.profiles import load
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import all_tasks, tasks_in


def listed(*arguments: str) -> list[dict[str, Any]]:
    ran = CliRunner().invoke(cli.app, ["tasks", "--json", *arguments])
    assert ran.exit_code == 0, ran.output
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    return rows


def names(*arguments: str) -> list[str]:
    return [row["name"] for row in listed(*arguments)]


@pytest.mark.slow
def test_every_task_of_every_source_is_listed_with_what_it_asks_for():
    rows = listed()
    assert [row["task_id"] for row in rows] == [task.task_id for task in all_tasks()]
    assert {row["source"] for row in rows} == set(SOURCES) - {"imported"}, "nothing is imported in this home"
    assert [row["name"] for row in rows if not row["what"]] == ["button-delay"]  # which its package does not describe
    assert all("\n" not in row["what"] and not row["what"].startswith("[") for row in rows)


@pytest.mark.slow
def test_what_a_task_is_comes_from_its_source():
    reported = {row["name"]: row for row in listed()}
    assert reported["click-button"]["what"] == "Click on a specific button in a generated form."
    assert reported["snake-apples-2-elements"]["what"] == "snake, easy: apples 2, with elements"
    assert reported["write-word"]["what"].startswith("Write the word ") and reported["write-word"]["kind"] == "terminal"
    assert reported["settle-accounts"]["held_out"] is True


def test_lists_are_those_of_a_profile():
    lists = load("sandbox").tasks.lists
    assert names(*(part for name in lists for part in ("--list", name))) == list(tasks_in(lists))


def test_group_domain_and_search_narrow_what_is_listed():
    small = listed("--group", "small")
    assert {row["source"] for row in small} == {"games", "terminal", "hybrid", "browsing", "web", "desktop"}
    assert names("--group", "small", "--domain", "hybrid") == names("--list", "hybrid:small")
    assert names("--domain", "terminal", "--search", "LINES Count drum") == ["count-lines"]
    assert {row["held_out"] for row in listed("--list", "miniwob", "--group", "unseen")} == {True}
    assert listed("--search", "no such words") == []


def test_the_list_counts_what_it_shows_and_cuts_nothing_at_eighty_columns():
    ran = CliRunner().invoke(cli.app, ["tasks", "--list", "hybrid:small"], env={"COLUMNS": "80"})
    assert ran.exit_code == 0 and "hybrid, domain hybrid: 2 tasks" in ran.stdout and "\n2 tasks; --json" in ran.stdout
    everything = CliRunner().invoke(cli.app, ["tasks"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, everything.splitlines())) <= 80
    together = " ".join(everything.split())
    rows = listed()
    assert [row["name"] for row in rows if f"{row['name']} {row['max_steps']} steps" not in together] == []
    assert sum(row["held_out"] for row in rows) == together.count("steps held out: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--list", "mail"], "Sources are android, browsing"),
        (["--group", "tiny"], "MiniWoB has no task group 'tiny'"),
        (["--domain", "mail"], "they are of android, browsing, desktop, games"),
    ],
)
def test_what_there_is_not_is_named_with_what_there_is(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["flywheel", "tasks", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and words in " ".join(capsys.readouterr().err.split())


def supplied(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["tasks", "supply", *arguments], env={"COLUMNS": "160"})


def test_a_supply_is_counted_and_written_for_a_person_and_for_a_machine(tmp_path: Path):
    page, figures = tmp_path / "generated" / "terminal.md", tmp_path / "terminal.json"
    ran = supplied("terminal:generated-small", "--num", "30", "--no-oracle", "--page", str(page), "--json", str(figures))
    assert ran.exit_code == 0, ran.output
    assert "30 of 5 families (10 train, 10 eval, 5 holdout, 5 report)" in ran.stdout and "0 within a split, 0 across splits" in ran.stdout
    assert "solved by the oracle" not in ran.stdout
    text, stored = page.read_text(), json.loads(figures.read_text())
    assert "`flywheel tasks supply terminal:generated-small --num 30 --no-oracle`" in text and text.count("\n### ") == 20
    assert stored["instances"] == len(stored["of"]) == 30 and stored["proved"] == 0 and stored["of_other_splits"] > 0


@pytest.mark.slow
def test_the_oracle_plays_what_was_generated():
    ran = supplied("terminal:generated-small", "--num", "5", "--workers", "1")
    assert ran.exit_code == 0, ran.output
    assert "5 of 5 (100.0%)" in ran.stdout and "s an episode of the oracle" in ran.stdout


def test_what_generates_nothing_has_no_supply(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for selection, words in (("miniwob:smoke", "does not say what its instances are"), ("terminal:tiny", "has no task group 'tiny'")):
        monkeypatch.setattr(sys, "argv", ["flywheel", "tasks", "supply", selection, "--no-oracle"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1 and words in " ".join(capsys.readouterr().err.split())
