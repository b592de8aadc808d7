"""The proof of the oracles: what they solve of their tasks, as a table in a terminal and in a document."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandbox.fleet.settings import FleetSettings
from sandbox.tasks.games.source import entry_of
from sandbox.tasks.prove import MARKERS, Attempt, Proof, chosen_tasks, main, prove, table_row, write_markdown
from sandbox.tasks.sources import tasks_in
from warehouse.core.errors import ConfigError


@pytest.mark.slow
def test_several_sources_are_proved_on_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = "click-dialog,shapes-6,write-word"
    assert main(["miniwob", "games:all", "terminal", "--tasks", tasks, "--seeds", "2", "--sessions", "1", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in tasks.split(",")) and "6 of 6" in printed
    assert f" {entry_of(tasks_in(['games:all'])['shapes-6']).reference:.0f} " in printed


def test_what_a_disturbed_oracle_still_solves_is_counted() -> None:
    (task,) = chosen_tasks(["miniwob"], "click-checkboxes")
    (proof,) = asyncio.run(prove([task], 4, disturb=0.3, settings=FleetSettings(max_workers=1, sessions_per_worker=1)))
    assert proof.num_solved == 4 and proof.tested and all(attempt.num_random for attempt in proof.tested)
    recovered = sum(attempt.is_success for attempt in proof.tested)
    assert recovered and table_row(proof)[-1] == f"{recovered}/{len(proof.tested)}"


def test_unknown_tasks_and_sources_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["miniwob", "--tasks", "no-such-task"]) == 2
    assert main(["no-such-source"]) == 2
    printed = capsys.readouterr().err
    assert "no-such-task" in printed and "no-such-source" in printed
    assert [task.name for task in chosen_tasks(["miniwob:unseen"])] == list(tasks_in(["miniwob:unseen"]))


def test_the_table_keeps_the_rows_of_other_tasks(tmp_path: Path) -> None:
    tasks = tasks_in(["miniwob"])
    page = tmp_path / "page.md"
    page.write_text("\n".join(["before", *MARKERS, "after"]))
    won, lost = Attempt(seed=1, is_success=True, num_steps=2), Attempt(seed=2, is_success=False, num_steps=4)
    write_markdown([Proof(task=tasks["click-tab"], plain=(won, lost))], page)
    write_markdown([Proof(task=tasks["click-link"], plain=(won,))], page)
    write_markdown([Proof(task=tasks["click-tab"], plain=(won, won))], page)
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    expected = {"click-tab": "2/2", "click-link": "1/1"}
    assert lines[-4:-2] == [f"| {name} | pointing | train | 3 | {won} | 2.0 |  |  |" for name, won in expected.items()]


def test_a_file_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(ConfigError, match="no place for the table"):
        write_markdown([], page)
