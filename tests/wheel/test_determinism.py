"""The same seeds give the same episodes, to the token and the pixel, whatever runs beside them; on live Chromium, with a trained policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.episode import Episode
from assets.profile import SandboxSettings, TaskSettings
from models.engine import EmbeddedEngine
from pipelines.sandboxes import open_collector
from pipelines.workers.context import requests_for
from sandbox.task import Split
from warehouse import registry

pytestmark = pytest.mark.timeout(1800)

TASKS = TaskSettings(group="smoke", domains=("pointing", "forms"))


def play(turned: Any, **settings: Any) -> dict[str, tuple[Any, ...]]:
    """Two sampled episodes of each task: what was seen, said, done and earned, by episode id."""
    engine = EmbeddedEngine.from_checkpoint(registry.made_by(turned.warehouse, "0001", "released_policy").folder)
    requests = requests_for(
        TASKS, purpose="rollout", policy_id=engine.policy_id, split=Split.TRAIN, num=2, skip=5000, temperature=1.0
    )  # fmt: skip

    async def run() -> list[Episode]:
        async with open_collector(SandboxSettings(fixed_batch=True, **settings)) as collector:
            return [episode async for episode in collector.collect(engine, requests)]

    try:
        episodes = asyncio.run(run())
    finally:
        engine.close()
    assert len(episodes) == len(requests) == 10
    return {episode.episode_id: trace(episode) for episode in episodes}


def trace(episode: Episode) -> tuple[Any, ...]:
    steps = [
        (
            step.observation,
            step.screenshot_id,
            step.response,
            step.action,
            step.prompt_token_ids,
            step.response_token_ids,
            step.response_logprobs,
        )
        for step in episode.steps
    ]
    return episode.instruction, episode.outcome, episode.reward, episode.environment, steps


def test_the_same_seeds_give_the_same_episodes_whatever_runs_beside_them(turned_home):
    alone = play(turned_home, num_sessions=1)
    assert sum(len(steps) for *_, steps in alone.values()) > 10
    assert all(screenshot for *_, steps in alone.values() for _, screenshot, *_ in steps)
    assert play(turned_home, num_sessions=6) == alone
    assert play(turned_home, num_sessions=7, num_browsers=2) == alone


def test_the_rollouts_of_the_turn_are_the_same_when_collected_again(turned_home):
    """Ids are fixed by what was asked; pixels at the start of an episode are fixed by task and seed."""
    first_screens = turned_home.sql(
        """select count(*) from (
             select task_id, seed, count(distinct screenshot_id) as num from episodes join steps using (episode_id)
             where step_index = 0 and screenshot_id is not null group by all having num > 1)"""
    )
    assert first_screens == [(0,)]
