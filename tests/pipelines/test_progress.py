"""Progress files: what a worker says, what a display reads, and that neither waits for the other."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from dataclasses import asdict
from pathlib import Path

import dagster as dg
import pytest
from rich.console import Console

from pipelines.cli.runs.live import Display
from pipelines.orchestration.runs.executor import LAUNCH_TAG
from pipelines.orchestration.work import progress
from pipelines.orchestration.work.progress import Progress, Snapshot, read


def worker(folder: Path, said: list[str] | None = None) -> Progress:
    folder.mkdir(parents=True, exist_ok=True)
    return Progress(folder, iteration="0001", stage="rollouts", log=(said if said is not None else []).append)


def test_what_is_said_can_be_read(tmp_path: Path):
    worker(tmp_path).update(3, 12, "episodes", {"success": 0.5})
    snapshot = read(tmp_path)
    assert snapshot is not None
    assert (snapshot.stage, snapshot.done, snapshot.total, snapshot.unit, snapshot.metrics) == (
        "rollouts",
        3,
        12,
        "episodes",
        {"success": 0.5},
    )


def test_the_file_is_written_seldom_but_the_last_word_always(tmp_path: Path):
    said: list[str] = []
    speaker = worker(tmp_path, said)
    for done in range(1, 101):
        speaker.update(done, 100, "steps", {"loss": 1 / done})
        if done == 50:
            assert read(tmp_path).done < 50
    assert read(tmp_path).done == 100
    assert said[-1] == "rollouts: 100/100 steps loss=0.01"
    assert len(said) <= 3


def test_time_left_is_extrapolated_and_unknown_at_first():
    def at(done: int, total: int) -> float | None:
        return Snapshot(
            stage="s", iteration="0001", unit="steps", done=done, total=total, first_done=0, started_at=100.0, updated_at=110.0
        ).seconds_left

    assert at(5, 20) == 30.0
    assert at(20, 20) == 0.0
    assert at(0, 20) is None and at(5, 0) is None


def test_counting_of_time_restarts_for_another_unit_of_work(tmp_path: Path):
    speaker = worker(tmp_path)
    speaker.update(1, 1, "samples encoded")
    read_at = read(tmp_path).started_at
    speaker.update(0, 8, "steps")
    speaker.update(8, 8, "steps")
    trained = read(tmp_path)
    assert (trained.done, trained.unit) == (8, "steps") and trained.started_at > read_at
    speaker.update(8, 8, "steps")
    assert read(tmp_path).started_at == trained.started_at


def test_a_resumed_stage_is_extrapolated_from_what_it_did_itself(tmp_path: Path, monkeypatch):
    speaker, now = worker(tmp_path), time.time()
    for second, done in ((30, 1000), (40, 1005), (50, 1010)):
        monkeypatch.setattr(time, "time", lambda at=now + second: at)
        speaker.update(done, 2000, "steps")
    snapshot = read(tmp_path)
    assert snapshot is not None and snapshot.seconds_left == pytest.approx(990 * 2), "neither loading nor another's steps count"


def test_nothing_and_half_a_file_read_as_nothing(tmp_path: Path):
    assert read(tmp_path) is None
    (tmp_path / "progress.json").write_text('{"stage": "rollo')
    assert read(tmp_path) is None


def test_a_reader_never_sees_half_a_snapshot(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(progress, "FILE_INTERVAL_S", 0.0)
    speaker, stop = worker(tmp_path), threading.Event()
    speaker.update(0, 0, "steps")

    def speak() -> None:
        while not stop.is_set():
            speaker.update(1, 0, "steps", {f"metric {number}": 1.0 for number in range(50)})

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        assert all(read(tmp_path) is not None for _ in range(300))
    finally:
        stop.set()
        speaking.join()


def test_a_log_gets_a_line_when_a_stage_has_ended(place):
    @dg.op
    def rollouts() -> None: ...

    @dg.op(ins={"after": dg.In(dg.Nothing)})
    def routing() -> None:
        raise ValueError("nothing to route")

    @dg.job
    def job() -> None:
        routing(after=rollouts())

    display = Display(place.home, "0001", "iteration 0001 (1 of 1)", place.instance, "tag")
    assert display.news() == []
    job.execute_in_process(instance=place.instance, tags={LAUNCH_TAG: "tag"}, raise_on_error=False)
    assert [line.split()[:2] for line in display.news()] == [["[green]✓[/]", "rollouts"], ["[red]✗[/]", "routing"]]
    assert display.news() == []


def test_the_display_fits_the_terminal_and_keeps_what_works(place):
    @dg.job
    def job() -> None:
        for number in range(30):
            dg.op(name=f"rl_model__{number}" if number > 27 else f"a_stage_{number}")(lambda: None)()

    job.execute_in_process(instance=place.instance, tags={LAUNCH_TAG: "tag"})
    display = Display(place.home, "0001", "iteration 0001 (1 of 1)", place.instance, "tag")
    worker(place.home.work / "0001" / "rollouts").update(1, 12, "episodes", {"loss": 0.512, "success rate of all episodes": 0.5})
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(display.render(*console.size))
    lines = console.export_text().splitlines()
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    assert "before" in lines[1] and "rollouts" in lines[-1] and "1/12 episodes" in lines[-1] and "left" in lines[-1]
    assert lines[-1].endswith("loss 0.512"), "what is left of a figure that does not fit is a wrong one"
    assert any("rl_28" in line for line in lines), "stages are named as other commands name them"


def shown(display: Display) -> str:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(display.render(*console.size))
    return console.export_text()


def test_the_display_says_that_it_starts_and_how_long_a_stage_has_worked(place):
    display, seen = Display(place.home, "0001", "iteration 0001 (1 of 1)", place.instance, "tag"), []

    @dg.op
    def rollouts() -> None:
        time.sleep(0.6)
        seen.append(shown(display))

    @dg.op(ins={"after": dg.In(dg.Nothing)})
    def routing() -> None: ...

    @dg.job
    def job() -> None:
        routing(after=rollouts())

    assert "starting" in shown(display)
    job.execute_in_process(instance=place.instance, tags={LAUNCH_TAG: "tag"})
    assert re.search(r"▸ rollouts +[1-9]\d* s", seen[0]) and "starting" not in seen[0]
    assert "0 of 2 stages" in seen[0]
    assert re.search(r"✓ rollouts +[1-9]\d* s", shown(display)) and "2 of 2 stages" in shown(display)


@pytest.mark.parametrize(("elapsed_s", "expected"), [(15.0, "45 s left"), (400.0, "20 min left"), (4000.0, "3.3 h left")])
def test_time_left_is_reported_in_a_unit_that_is_read_at_a_glance(place, elapsed_s, expected):
    folder = place.home.work / "0001" / "sft_model"
    folder.mkdir(parents=True)
    display, now = Display(place.home, "0001", "iteration 0001 (1 of 1)", place.instance, "tag"), time.time()
    reported = Snapshot(
        stage="sft_model", iteration="0001", unit="steps", done=25, total=100, first_done=0, started_at=now - elapsed_s, updated_at=now
    )
    (folder / "progress.json").write_text(json.dumps(asdict(reported)))
    assert expected in shown(display)


def test_the_display_shows_how_far_the_working_stage_is(place):
    run = place.add_run(dg.DagsterRunStatus.STARTED, **{LAUNCH_TAG: "tag"})
    folder = place.home.work / "0001" / "rollouts"
    worker(folder).update(2, 12, "episodes", {"success": 0.25})
    display = Display(place.home, "0001", "iteration 0001 (1 of 1)", place.instance, "tag")
    assert "episodes" not in shown(display), "that was said by a process that is no more"
    worker(folder).update(3, 12, "episodes", {"success": 0.5})
    assert display.run().run_id == run.run_id
    console = Console(width=120, height=24, record=True, file=io.StringIO())
    console.print(display.render(*console.size))
    wide = console.export_text()
    assert "iteration 0001 (1 of 1)" in wide and "rollouts" in wide and "3/12 episodes" in wide and "success 0.5" in wide
    (folder / "result.json").write_text("{}")
    console.print(display.render(*console.size))
    assert "3/12" not in console.export_text(), "a finished stage is not shown as working"
