"""The same seeds give the same episodes, to the token and the pixel, whatever runs beside them; on live Chromium, with a trained policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.episode.episode import Episode
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from assets.tasks.instances import first_instance
from models.engine.embedded import EmbeddedEngine
from pipelines import profiles
from pipelines.stages.context import requests_for
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.lineage import registry

pytestmark = pytest.mark.timeout(1800)

TASKS = TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms"))


def play(finished: Any, *, num: int = 2, skip: int = 5000, **settings: Any) -> dict[str, tuple[Any, ...]]:
    """Sampled episodes of each task, `num` of them: what was seen, said, done and earned, by episode id."""
    engine = EmbeddedEngine.from_checkpoint(registry.made_by(finished.warehouse, "0001", "released_policy").folder)
    requests = requests_for(TASKS, purpose="rollout", policy_id=engine.policy_id, split=Split.TRAIN, num=num, skip=skip, temperature=1.0)

    async def run() -> list[Episode]:
        async with open_collector(ActingSettings(tasks=TASKS, sandbox=SandboxSettings(fixed_batch=True, **settings))) as collector:
            return [episode async for episode in collector.collect(engine, requests)]

    try:
        episodes = asyncio.run(run())
    finally:
        engine.close()
    assert len(episodes) == len(requests) == 5 * num
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


@pytest.mark.long
def test_the_same_seeds_give_the_same_episodes_whatever_runs_beside_them(finished_home):
    alone = play(finished_home, num_sessions=1)
    assert sum(len(steps) for *_, steps in alone.values()) > 10
    assert all(screenshot for *_, steps in alone.values() for _, screenshot, *_ in steps)
    assert play(finished_home, num_sessions=6) == alone
    assert play(finished_home, num_sessions=7, num_browsers=2) == alone


@pytest.mark.slow
def test_the_rollouts_of_the_iteration_begin_alike_when_they_are_collected_again(finished_home):
    """They were sampled in whatever batches came together, so their answers need not repeat; their instances do, to the pixel."""
    begun = finished_home.sql(
        """select episode_id, instruction, observation, screenshot_id from episodes join steps using (episode_id)
           where purpose = 'rollout' and step_index = 0"""
    )
    num = profiles.load("smoke").collection.instances_per_task
    again = play(finished_home, num=num, skip=first_instance("rollout", "0001"), num_sessions=3)
    assert {episode_id: tuple(page) for episode_id, *page in begun} == {
        episode_id: (instruction, *steps[0][:2]) for episode_id, (instruction, *_, steps) in again.items()
    }
