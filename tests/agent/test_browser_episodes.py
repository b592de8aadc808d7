"""Episodes on live Chromium: oracles solve MiniWoB tasks through the whole loop, and the same seeds give the same episodes to the pixel,
whatever the concurrency and the session."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.episode.rows import rows
from agent.policy.action_source import OracleActionSource, StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool import SessionPool
from sandbox.tasks.games.source import entry_of
from sandbox.tasks.games.source import load_tasks as games
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split
from warehouse.core.identity import stable_fraction

BUILDER = PromptBuilder("compact")
TASKS = ("click-button", "click-option", "enter-text", "login-user", "click-dialog")


def requests(num_seeds: int, *, screenshots: bool = True) -> list[EpisodeRequest]:
    tasks = load_tasks("quickstart")
    return [
        EpisodeRequest(purpose="seed", task=tasks[name], seed=seed, policy_id="oracle", temperature=1.0, screenshots=screenshots)
        for name in TASKS
        for seed in tasks[name].seeds(Split.TRAIN, num_seeds)
    ]


class Unsteady:
    """The oracle, which errs at every fourth step or so: which ones is fixed by the episode's own sampling seeds."""

    def __init__(self) -> None:
        self.oracle = OracleActionSource(BUILDER.grammar)

    async def respond(self, context: StepContext) -> Response | None:
        response = await self.oracle.respond(context)
        chance = stable_fraction(context.request.sampling_seed(context.step_index))
        if response is None or chance > 0.25:
            return response
        index = 1 + int(chance * 4 * len(context.observation.elements))
        text = f"Thought click Action click [{index}]"
        return Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id="unsteady")


def test_a_games_score_comes_with_its_episode() -> None:
    """Also where the goal is not reached; pages that count no points have none."""
    task = games("small-elements")["merge-tile-16-elements"]
    short = task.model_copy(update={"max_steps": 4})
    asked = [
        EpisodeRequest(purpose="seed", task=one, seed=task.seeds(Split.TRAIN, 1)[0], policy_id="oracle", screenshots=False)
        for one in (task, short, load_tasks("quickstart")["click-button"])
    ]
    episodes = {episode.request.task: episode for episode in play(OracleActionSource(BUILDER.grammar), asked, size=1, num_browsers=1)}
    whole, cut, page = (episodes[request.task] for request in asked)
    assert whole.outcome is Outcome.SUCCESS and whole.points is not None and whole.points >= 40
    assert cut.outcome is Outcome.TRUNCATED and cut.points is not None and 0 < cut.points < whole.points
    assert cut.reward == pytest.approx(min(0.9, cut.points / entry_of(task).reference))
    assert page.points is None
    assert [row["points"] for row in rows([whole, page])["episodes"]] == [whole.points, None]


def play(source: Any, wanted: Sequence[EpisodeRequest], *, size: int, num_browsers: int) -> list[Episode]:
    async def main() -> list[Episode]:
        async with SessionPool(size=size, num_browsers=num_browsers) as pool:
            collector = PoolCollector(pool, BUILDER, settings=CollectorSettings(concurrency=size))
            return [episode async for episode in collector.play(source, wanted)]

    return asyncio.run(main())


def essence(episodes: Sequence[Episode]) -> dict[str, Any]:
    return {
        episode.episode_id: (
            episode.model_dump(exclude={"duration_ms", "num_retries", "steps"}),
            [step.model_dump(exclude={"latency_ms"}) for step in episode.steps],
            sorted(episode.screenshots),
        )
        for episode in episodes
    }


def test_oracles_solve_their_tasks_through_the_loop() -> None:
    episodes = play(OracleActionSource(BUILDER.grammar), requests(2), size=2, num_browsers=1)
    assert [e.request.task.name for e in episodes if not e.is_success] == []
    assert all(episode.environment != "unknown" and episode.instruction for episode in episodes)
    assert all(step.screenshot_id in episode.screenshots for episode in episodes for step in episode.steps)
    assert len(rows(episodes)["episodes"]) == len(TASKS) * 2


@pytest.mark.slow
def test_the_same_seeds_give_the_same_episodes_to_the_pixel() -> None:
    wanted = requests(3)
    alone = play(Unsteady(), wanted, size=1, num_browsers=1)
    together = play(Unsteady(), wanted[::-1], size=4, num_browsers=2)
    assert {episode.outcome for episode in alone} >= {Outcome.SUCCESS, Outcome.FAILURE}
    assert essence(alone) == essence(together)


def test_a_killed_browser_costs_a_retry_and_nothing_else() -> None:
    async def main() -> list[Episode]:
        async with SessionPool(size=2, num_browsers=1) as pool:
            oracle = OracleActionSource(BUILDER.grammar)
            kills = iter([True])

            class Killer:
                async def respond(self, context: StepContext) -> Response | None:
                    if context.step_index == 1 and next(kills, False):
                        for pid in pool.browser_pids():
                            os.kill(pid, signal.SIGKILL)
                    return await oracle.respond(context)

            collector = PoolCollector(pool, BUILDER, settings=CollectorSettings(concurrency=2, max_retries=3))
            return [episode async for episode in collector.play(Killer(), requests(1, screenshots=False))]

    episodes = asyncio.run(main())
    assert len(episodes) == len(TASKS) and all(episode.is_success for episode in episodes)
    assert sum(episode.num_retries for episode in episodes) >= 1
    assert all(not episode.screenshots for episode in episodes)
