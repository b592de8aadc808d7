"""A collector on a server's sessions: unchanged, and with the same episodes as on a local pool."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.pool_collector import PoolCollector
from agent.grammars.registry import grammar_named
from agent.policy.action_source import OracleActionSource
from agent.prompts.prompt import PromptBuilder
from sandbox.http.tokens import Tokens
from sandbox.pool.pool import SessionPool
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.tasks.sources import tasks_of

TOKEN = "token-of-a-collector"


@pytest.mark.slow
def test_episodes_are_the_same_at_the_other_end_of_a_connection() -> None:
    tasks = [task for task in tasks_of("miniwob:quickstart") if task.name in ("click-button", "login-user", "choose-list")]
    tasks.append(tasks_of("terminal")[0])
    requests = [EpisodeRequest(purpose="seed", task=task, seed=seed, policy_id="oracle") for task in tasks for seed in (0, 1)]

    async def play(*, remote: bool) -> dict[str, Episode]:
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(SessionPool(size=2, num_browsers=1))
            lender: SessionPool | SandboxClient = pool
            if remote:
                url = await stack.enter_async_context(serving(pool, Tokens({"ann": TOKEN}), ServerSettings(oracles=True)))
                lender = await stack.enter_async_context(SandboxClient(url, TOKEN))
            collector = PoolCollector(lender, PromptBuilder("compact"))
            return {e.episode_id: e async for e in collector.play(OracleActionSource(grammar_named("compact")), requests)}

    here, there = asyncio.run(play(remote=False)), asyncio.run(play(remote=True))
    assert here.keys() == there.keys() and len(here) == len(requests)
    for episode_id, episode in here.items():
        other = there[episode_id]
        assert episode.is_success and other.is_success and episode.environment == other.environment
        assert [step.screenshot_id for step in episode.steps] == [step.screenshot_id for step in other.steps]
        assert [step.action for step in episode.steps] == [step.action for step in other.steps]
        assert episode.screenshots == other.screenshots
