"""`flywheel tasks`: all of them, with what each asks for; the options leave out what was not asked for, and say what there is."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines import cli
from pipelines.profiles import load
from sandbox.sources import SOURCES, all_tasks, tasks_in


def listed(*arguments: str) -> list[dict[str, Any]]:
    ran = CliRunner().invoke(cli.app, ["tasks", "--json", *arguments])
    assert ran.exit_code == 0, ran.output
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    return rows


def names(*arguments: str) -> list[str]:
    return [row["name"] for row in listed(*arguments)]


def test_every_task_of_every_source_is_listed_with_what_it_asks_for():
    rows = listed()
    assert [row["task_id"] for row in rows] == [task.task_id for task in all_tasks()]
    assert {row["source"] for row in rows} == set(SOURCES)
    assert [row["name"] for row in rows if not row["what"]] == ["button-delay"]  # which its package does not describe
    assert all("\n" not in row["what"] and not row["what"].startswith("[") for row in rows)


def test_what_a_task_is_comes_from_its_source():
    told = {row["name"]: row for row in listed()}
    assert told["click-button"]["what"] == "Click on a specific button in a generated form."
    assert told["snake-apples-2-elements"]["what"] == "snake, easy: apples 2, with elements"
    assert told["write-word"]["what"].startswith("Write the word ") and told["write-word"]["kind"] == "terminal"
    assert told["settle-accounts"]["held_out"] is True


def test_lists_are_those_of_a_profile():
    lists = load("sandbox").tasks.lists
    assert names(*(part for name in lists for part in ("--list", name))) == list(tasks_in(lists))


def test_group_domain_and_search_narrow_what_is_listed():
    small = listed("--group", "small")
    assert {row["source"] for row in small} == {"games", "terminal", "hybrid", "desktop"}
    assert names("--group", "small", "--domain", "hybrid") == names("--list", "hybrid:small")
    assert names("--domain", "terminal", "--search", "LINES Count drum") == ["count-lines"]
    assert {row["held_out"] for row in listed("--list", "miniwob", "--group", "unseen")} == {True}
    assert listed("--search", "no such words") == []


def test_the_table_counts_what_it_shows():
    ran = CliRunner().invoke(cli.app, ["tasks", "--list", "hybrid:small"], env={"COLUMNS": "140"})
    assert ran.exit_code == 0 and "note-code" in ran.stdout and ran.stdout.endswith("2 tasks\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--list", "mail"], "Sources are miniwob, games"),
        (["--group", "tiny"], "MiniWoB has no task group 'tiny'"),
        (["--domain", "mail"], "they are of pointing, forms, games"),
    ],
)
def test_what_there_is_not_is_named_with_what_there_is(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["flywheel", "tasks", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and words in " ".join(capsys.readouterr().err.split())
