"""Replaying stored episodes: oracles' episodes in a small real warehouse, done again on live Chromium; what was tampered with is found."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent.episode.episode import EpisodeRequest
from agent.episode.pool_collector import PoolCollector
from agent.episode.replay import RecordedEpisode, Replay, load_episode, picture_size, pixel_difference, replay
from agent.episode.rows import rows
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from sandbox.actions import Click
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.sources import tasks_of
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.core.home import Home
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TASKS = ("login-user", "click-checkboxes")
OTHER_SOURCES = ("games", "terminal", "hybrid")


async def fill(warehouse: Warehouse) -> list[str]:
    """Oracles' episodes, with screenshots but for the last; their ids."""
    tasks = [load_tasks()[name] for name in TASKS]
    requests = [
        EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle", screenshots=seed == 0) for task in tasks for seed in (0, 3)
    ]
    others = [tasks_of(source)[0] for source in OTHER_SOURCES]
    requests += [EpisodeRequest(purpose="seed", task=task, seed=1, policy_id="oracle") for task in others]
    tasks += others
    async with SessionPool(size=1) as pool:
        collector = PoolCollector(pool, PromptBuilder("compact"))
        episodes = [episode async for episode in collector.play(OracleActionSource(grammar_named("compact")), requests)]
    made = rows(episodes)
    task_rows = [{**task.model_dump(mode="json"), "task_id": task.task_id} for task in tasks]
    warehouse.replace_partition("tasks", task_rows, iteration="0000", stage="tasks")
    warehouse.add_screenshots(made["screenshots"])
    for table in ("steps", "episodes"):
        warehouse.replace_partition(table, made[table], iteration="0000", stage="seed_demonstrations")
    return [request.episode_id for request in requests]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Warehouse, list[str]]]:
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("home")))
    yield warehouse, asyncio.run(fill(warehouse))


@pytest.fixture(scope="module")
def episodes(stored: tuple[Warehouse, list[str]]) -> list[RecordedEpisode]:
    warehouse, ids = stored
    with connect(warehouse) as con:
        return [load_episode(con, identity) for identity in ids]


def replay_all(*episodes: RecordedEpisode) -> list[Replay]:
    async def main() -> list[Replay]:
        async with SessionPool(size=1) as pool:
            replays = []
            for episode in episodes:
                async with pool.lease(episode.task) as session:
                    replays.append(await replay(episode, session))
            return replays

    return asyncio.run(main())


def was_seen(episode: RecordedEpisode) -> bool:
    return any(step.screenshot_id is not None for step in episode.steps)


@pytest.mark.slow
def test_an_episode_is_the_same_again_to_the_pixel(episodes: list[RecordedEpisode]) -> None:
    for episode, replayed in zip(episodes, replay_all(*episodes), strict=True):
        assert episode.outcome.value == "success" and episode.reward == replayed.reward == 1.0
        assert replayed.is_whole and replayed.same_reward and replayed.same_text and replayed.same_environment
        assert replayed.same_pixels is (True if was_seen(episode) else None)
        assert replayed.first_difference is None and replayed.verdict.success
        if replayed.same_pixels is not None:
            assert replayed.last_screenshot and replayed.steps[0].screenshot
            assert picture_size(replayed.last_screenshot) == picture_size(replayed.steps[0].screenshot)
    assert {episode.task.source for episode in episodes if was_seen(episode)} == {"miniwob", "games", "hybrid"}


def test_what_was_tampered_with_is_found(episodes: list[RecordedEpisode]) -> None:
    whole = episodes[0]
    middle = len(whole.steps) - 1

    def changed(**values: Any) -> RecordedEpisode:
        steps = list(whole.steps)
        steps[middle] = replace(steps[middle], **values)
        return replace(whole, steps=tuple(steps))

    with Image.open(io.BytesIO(whole.steps[middle].screenshot or b"")) as image:
        image.putpixel((5, 7), (1, 2, 3))
        image.putpixel((9, 8), (1, 2, 3))
        file = io.BytesIO()
        image.save(file, "PNG")
    other_pixels = changed(screenshot_id="screen-other", screenshot=file.getvalue())
    other_action = changed(actions=(Click(x=1, y=1),))
    early_end = replace(whole, steps=(whole.steps[0], *whole.steps))
    pixels, action, reward, more = replay_all(other_pixels, other_action, replace(whole, reward=0.0), early_end)
    assert pixels.same_pixels is False and pixels.same_reward and pixels.first_difference is not None
    assert pixels.first_difference.step_index == middle and pixels.first_difference.difference is not None
    assert (pixels.first_difference.difference.num_pixels, pixels.first_difference.difference.box_px) == (2, (5, 7, 10, 9))
    assert not action.same_reward and not action.verdict.success and action.reward == 0.0
    assert not reward.same_reward and reward.same_pixels
    assert more.first_difference is not None and more.first_difference.step_index == whole.steps[1].step_index - 1


def test_episodes_are_found_by_the_beginning_of_their_id(stored: tuple[Warehouse, list[str]]) -> None:
    warehouse, ids = stored
    with connect(warehouse) as con:
        assert load_episode(con, ids[0][:-2]).episode_id == ids[0]
        for wrong, said in (("episode-", "matches 7 episodes"), ("episode-ffffffffffffffff0", "no episode"), ("", "no episode")):
            with pytest.raises(UnknownId, match=said):
                load_episode(con, wrong)


def test_what_cannot_be_replayed_is_reported(stored: tuple[Warehouse, list[str]], tmp_path: Path) -> None:
    warehouse, ids = stored
    other = Warehouse(Home(tmp_path / "other"))
    for table in ("episodes", "steps"):
        other.replace_partition(table, warehouse.read(table), iteration="0000", stage="seed_demonstrations")
    with connect(other) as con, pytest.raises(ConfigError, match="not in the table `tasks`"):
        load_episode(con, ids[0])
    other.replace_partition("tasks", warehouse.read("tasks"), iteration="0000", stage="tasks")
    other.replace_partition("steps", [], iteration="0000", stage="seed_demonstrations")
    with connect(other) as con, pytest.raises(ConfigError, match="0 are stored"):
        load_episode(con, ids[0])


def test_pictures_are_compared_as_pixels() -> None:
    def png(size: tuple[int, int], **options: Any) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", size, (9, 9, 9)).save(file, "PNG", **options)
        return file.getvalue()

    assert pixel_difference(png((8, 8), compress_level=0), png((8, 8), compress_level=9)).num_pixels == 0
    assert pixel_difference(png((8, 8)), png((8, 9))).num_pixels == 8
    assert json.dumps(pixel_difference(png((8, 8)), png((9, 8))).box_px) == "[8, 0, 9, 8]"
