"""Reinforcement learning of the policy behind a harness: a program of one's own presses buttons, the policy that learns tells it which."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest

from agent.episode.collector import Collector
from agent.episode.runner import EpisodeRunner, RunnerSettings
from agent.grammars.registry import grammar_named
from agent.harness.harness import Assignment
from agent.policy.policy import Message
from agent.prompts.prompt import PromptBuilder
from models.gateway.harness_collector import HarnessCollector
from models.gateway.learner import served_learner
from sandbox import wire
from tests.agent.conftest import ReadingPolicy
from tests.models.test_ppo_trainer import ButtonPool, Weak, make_run, train, weak

__all__ = ["weak"]
BUILDER, GRAMMAR = PromptBuilder("compact"), grammar_named("compact")


async def presses(assignment: Assignment) -> None:
    """An agent program: shows the policy the screen, and presses what it says."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        observation = wire.OBSERVATION.from_json((await http.get(assignment.session_url)).content)
        asked = [spoken(message) for message in BUILDER.build(BUILDER.start(assignment.instruction), observation)]
        headers = {"authorization": f"Bearer {assignment.key}"}
        body = {"messages": asked, "max_tokens": 24, "seed": assignment.seed % 2**31}
        answer = await http.post(f"{assignment.openai_url}/chat/completions", headers=headers, json=body)
        said = answer.raise_for_status().json()["choices"][0]["message"]["content"]
        for action in GRAMMAR.parse(said, observation).actions:
            await http.post(f"{assignment.session_url}/step", content=wire.ACTION.to_json(action))


def spoken(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def collector(folder: Path) -> HarnessCollector:
    runner = EpisodeRunner(ButtonPool(), BUILDER, settings=RunnerSettings(max_retries=0))
    return HarnessCollector(runner, "presses", presses, folder=folder, num_at_once=8, temperature=1.0, max_tokens=24, timeout_s=60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_round_learns_from_what_the_program_was_sent(weak: Weak, tmp_path: Path) -> None:
    assert isinstance(collector(tmp_path), Collector)
    # 24 and not 8: where none of a round's presses is right, or all are, there is nothing to learn and no new version.
    result = train(make_run(weak, tmp_path, rounds=2, episodes_per_task=24, algorithm="reinforce"), collector(tmp_path))
    episodes = list(result.rollout_log.episodes())
    assert len(episodes) == 48 and {len(episode.steps) for episode in episodes} == {1}
    assert {version for episode in episodes for step in episode.steps for version in step.response_versions} == {0, 1}
    assert len({step.policy_id for episode in episodes for step in episode.steps}) == 2
    assert all(len(step.response_logprobs) == len(step.response_token_ids) > 0 for episode in episodes for step in episode.steps)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_learns_to_press_the_right_one(weak: Weak, tmp_path: Path) -> None:
    settings = {
        "algorithm": "reinforce",
        "rounds": 6,
        "episodes_per_task": 48,
        "minibatch_episodes": 16,
        "learning_rate": 5e-4,
        "max_kl": 0.1,
    }
    learned = train(make_run(weak, tmp_path, **settings), collector(tmp_path))
    assert np.mean([metrics["success"] for metrics in learned.metrics[:1]]) < 0.5
    assert np.mean([metrics["success"] for metrics in learned.metrics[-2:]]) > 0.6


def test_what_would_bend_the_sampling_is_refused() -> None:
    async def play() -> list[tuple[int, str]]:
        answers = []
        async with served_learner(ReadingPolicy(), temperature=1.0, max_tokens=8) as address:
            headers = {"authorization": f"Bearer {address.token}"}
            async with httpx.AsyncClient(base_url=address.url, headers=headers, trust_env=False) as http:
                for more in ({}, {"stop": ["x"]}, {"response_format": {"type": "json_object"}}, {"stream": True}):
                    response = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], **more})
                    answers.append((response.status_code, response.json().get("error", {}).get("param", "")))
        return answers

    assert asyncio.run(play()) == [(200, ""), (400, "stop"), (400, "response_format"), (400, "stream")]
