"""Episodes from a run's rollout log into the warehouse, pictures and all, without all of them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.episode import log as episode_log
from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.episode.log import EpisodeLog
from agent.episode.runner import crashed_episode
from models.rl.rollouts.log import RolloutLog
from pipelines.stages import storing
from pipelines.stages.context import WorkerContext
from pipelines.stages.kept_episodes import KeptEpisodes
from sandbox.actions import Wait
from sandbox.tasks.task import Task
from warehouse.core.errors import BrowserCrashed
from warehouse.core.home import Home
from warehouse.storage.log.writing import RowsAside
from warehouse.storage.tables import Warehouse

PNG = b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IHDR" + (1).to_bytes(4) + (1).to_bytes(4)


def episode(seed: int, screenshot_id: str | None) -> Episode:
    step = Step(
        step_index=0,
        policy_id="p",
        observation="",
        screenshot_id=screenshot_id,
        messages=(),
        response="",
        thought=None,
        action=Wait(),
        latency_ms=1.0,
    )
    request = EpisodeRequest(purpose="rl", task=Task(source="buttons", name="one", domain="forms", max_steps=1), seed=seed, policy_id="p")
    return Episode(
        request=request,
        instruction="",
        steps=(step,),
        outcome=Outcome.SUCCESS,
        reward=1.0,
        duration_ms=1.0,
        environment="e",
        screenshots={} if screenshot_id is None else {screenshot_id: PNG + bytes(100)},
    )


def test_screenshots_are_stored_in_parts_and_then_no_longer_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "CHUNK_BYTES", 200)
    rollout_log = RolloutLog(tmp_path / "run" / "episodes")
    for seed in range(5):
        rollout_log.append(episode(seed, f"shot-{seed}"))
    stored_before: list[int] = []

    def logged_episodes() -> Iterator[Episode]:
        for one in rollout_log.episodes():
            stored_before.append(len(warehouse.read("screenshots")))
            yield one

    home = Home(tmp_path / "home")
    warehouse = Warehouse(home)
    context = WorkerContext(folder=tmp_path, home=home, iteration="0001", stage="rl_forms", log=print)
    found = storing.store_episodes(context, logged_episodes())
    assert stored_before == [0, 0, 2, 2, 4], "two pictures are a part"
    assert found.counts == {"episodes": 5, "steps": 5, "outcome/success": 5}
    assert found.versions.keys() == {"screenshots", "steps", "episodes"}
    assert len(warehouse.read("screenshots")) == len(warehouse.read("steps")) == 5
    rollout_log.drop_screenshots()
    assert not list((tmp_path / "run").iterdir()) and not list(RolloutLog(tmp_path / "run" / "episodes").episodes())


def test_steps_are_put_aside_in_parts_and_committed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "CHUNK_STEPS", 2)
    sizes: list[int] = []
    add = RowsAside.add

    def counted(aside: RowsAside, part: list[dict[str, Any]]) -> pa.Table:
        assert not len(warehouse.read("steps")), "nothing is committed before all is there"
        sizes.append(len(part))
        return add(aside, part)

    monkeypatch.setattr(RowsAside, "add", counted)
    home = Home(tmp_path / "home")
    warehouse = Warehouse(home)
    context = WorkerContext(folder=tmp_path, home=home, iteration="0001", stage="rl_forms", log=print)
    found = storing.store_episodes(context, (episode(seed, None) for seed in range(5)))
    assert sizes == [2, 2, 1] and found.counts == {"episodes": 5, "steps": 5, "outcome/success": 5}
    assert found.versions.keys() == {"steps", "episodes"}
    of_steps, of_episodes = (sorted(warehouse.read(table)["episode_id"].to_pylist()) for table in ("steps", "episodes"))
    assert of_steps == of_episodes and len(set(of_episodes)) == 5

    monkeypatch.setattr(RowsAside, "add", add)
    assert storing.store_episodes(context, ()).counts == {"episodes": 0, "steps": 0}
    assert not len(warehouse.read("steps")) and not len(warehouse.read("episodes")), "none is what the stage made now"


@pytest.mark.parametrize("block", [1, 7, 1024**2])
def test_what_a_kill_cut_off_is_dropped_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(episode_log, "BLOCK_BYTES", block)
    log, path = EpisodeLog(tmp_path), tmp_path / "episodes.jsonl"
    for seed in range(2):
        log.append(episode(seed, None))
    whole = path.read_bytes()
    for rest in (b"", b'{"request": {', b"x" * 20):
        path.write_bytes(whole + rest)
        log.repair()
        assert path.read_bytes() == whole
        assert [one.request.seed for one in log.episodes()] == [0, 1]
    for torn in (b"", b'{"request": {'):
        path.write_bytes(torn)
        log.repair()
        assert path.read_bytes() == b"" and not list(log.episodes())


def test_an_episode_that_was_written_twice_is_read_once(tmp_path: Path) -> None:
    """A worker that was killed between writing and acknowledging writes it again."""
    log = EpisodeLog(tmp_path)
    for seed in (0, 1, 0, 2):
        log.append(episode(seed, None))
    assert len((tmp_path / "episodes.jsonl").read_bytes().splitlines()) == 4, "all lines are there"
    assert [one.request.seed for one in log.episodes()] == [0, 1, 2]
    home = Home(tmp_path / "home")
    context = WorkerContext(folder=tmp_path, home=home, iteration="0001", stage="rl_forms", log=print)
    assert storing.store_episodes(context, log.episodes()).counts == {"episodes": 3, "steps": 3, "outcome/success": 3}


def test_a_stage_that_goes_on_plays_again_what_crashed_and_nothing_else(tmp_path: Path) -> None:
    context = WorkerContext(folder=tmp_path, home=Home(tmp_path / "home"), iteration="0001", stage="evaluation", log=print)
    requests = [episode(seed, None).request for seed in range(3)]
    first = KeptEpisodes(context, whole=True)
    first.append(episode(0, "shot-0"))
    first.append(crashed_episode(requests[1], BrowserCrashed("the page went away"), num_retries=2, duration_ms=1.0))
    assert first.missing(requests) == [requests[2]], "in the start in which its retries ran out it counts"
    again = KeptEpisodes(context, whole=True)
    assert again.missing(requests) == requests[1:]
    again.append(episode(1, None))
    assert [(one.request.seed, one.outcome) for one in again.episodes()] == [(0, "success"), (1, "success")]
    assert next(again.episodes()).screenshots == episode(0, "shot-0").screenshots
    assert KeptEpisodes(context, whole=True).missing(requests) == requests[2:]


def test_steps_of_an_episode_that_is_under_way_are_there_until_it_has_ended(tmp_path: Path) -> None:
    log, one = EpisodeLog(tmp_path), episode(0, None)
    (step,) = one.steps
    steps = [step, step.model_copy(update={"step_index": 1})]
    for each in steps:
        log.append_step(one.request, each)
    (path,) = (tmp_path / "under_way").iterdir()
    whole = path.read_bytes()
    for torn in (b"", b'{"step_index": 2, "pol'):
        path.write_bytes(whole + torn)
        assert EpisodeLog(tmp_path).steps(one.request) == steps
    path.write_bytes(whole[: len(whole) // 3])
    assert log.steps(one.request) == [], "the line of the request was cut off"
    for unreadable in (whole.replace(b'"thought"', b'"thinking"'), whole[:-200] + bytes(199) + b"\n"):
        path.write_bytes(unreadable)
        assert log.steps(one.request) == []
    path.write_bytes(whole)
    assert log.steps(one.request.model_copy(update={"temperature": 1.0})) == [], "the same id, asked for otherwise"
    log.append(one)
    assert log.steps(one.request) == [] and not list((tmp_path / "under_way").iterdir())
    path.write_bytes(whole)  # as a kill between the two leaves it
    log.repair()
    assert not list((tmp_path / "under_way").iterdir())


def test_a_line_that_a_full_disk_cut_off_is_taken_back(small_disk: Path) -> None:
    log = EpisodeLog(small_disk / "log")
    log.append(episode(0, None))
    whole = (small_disk / "log" / "episodes.jsonl").read_bytes()
    huge = episode(1, None)
    huge = huge.model_copy(update={"steps": tuple(step.model_copy(update={"response": "x" * 2**27}) for step in huge.steps)})
    with pytest.raises(OSError, match="No space left"):
        log.append(huge)
    assert (small_disk / "log" / "episodes.jsonl").read_bytes() == whole
    log.append(episode(2, None))
    assert [one.request.seed for one in log.episodes()] == [0, 2]


def test_episodes_of_an_earlier_version_are_read_too(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    for seed in range(2):
        log.append(episode(seed, None))
    (tmp_path / "episodes.jsonl").rename(tmp_path / "round-0001.jsonl")
    log.append(episode(2, None))
    assert [one.request.seed for one in log.episodes()] == [0, 1, 2]


def test_a_rollout_log_without_pictures_stays(tmp_path: Path) -> None:
    rollout_log = RolloutLog(tmp_path)
    rollout_log.append(episode(0, None))
    rollout_log.drop_screenshots()
    assert [one.request.seed for one in rollout_log.episodes()] == [0]
