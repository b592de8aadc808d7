"""Each component of reward shaping by hand. That they never reorder success and failure is in test_rl_conformance.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from models.rl.config import PpoConfig
from models.rl.metrics import episode_metrics, think_tokens, trajectory_metrics
from models.rl.updates.buffer import trajectory
from models.rl.updates.shaping import overlong, shaped_steps
from sandbox.actions import Action, Click, InvalidAction
from sandbox.tasks.task import Task

TASK = Task(source="t", name="t", domain="d", max_steps=5)
PRESS = Click(x=1, y=1)


def step(index: int, *, action: Action = PRESS, tokens: int = 2, reward: float = 0.0, observation: str = "same") -> Step:
    return Step(
        step_index=index,
        policy_id="p",
        observation=observation,
        screenshot_id=None,
        messages=(),
        response="think act",
        thought="think",
        action=action,
        prompt_token_ids=(3,),
        response_token_ids=(5,) * tokens,
        response_logprobs=(-0.1,) * tokens,
        reward=reward,
    )


def episode(steps: Sequence[Step], outcome: Outcome = Outcome.FAILURE) -> Episode:
    request = EpisodeRequest(purpose="rl", task=TASK, seed=1, policy_id="p")
    return Episode(request=request, instruction="", steps=tuple(steps), outcome=outcome, reward=0.0, duration_ms=1.0, environment="test")


def added(taken: Sequence[Step], outcome: Outcome = Outcome.FAILURE, /, **weights: Any) -> dict[str, list[float]]:
    return shaped_steps(episode(taken, outcome), taken, PpoConfig.model_validate({f"shaping_{k}": v for k, v in weights.items()}))


def test_overlong_answers_cost_in_part_then_in_full() -> None:
    assert [overlong(n, soft=10, longest=20) for n in (0, 10, 15, 20, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_each_penalty_is_a_share_of_the_steps_a_task_allows() -> None:
    steps = [step(0), step(1, action=InvalidAction(text="", reason="?")), step(2, tokens=48)]
    assert added(steps, format=0.5) == {"format": [0.0, -0.1, 0.0]}
    assert added(steps, steps=0.5) == {"steps": pytest.approx([-0.1] * 3)}
    assert added(steps, length=0.5, length_soft=32, length_max=64) == {"length": pytest.approx([0.0, 0.0, -0.05])}


def test_repeating_an_action_costs_where_it_had_changed_nothing() -> None:
    steps = [step(0), step(1), step(2, observation="moved"), step(3, observation="moved", action=Click(x=2, y=1))]
    assert added(steps, repeat=0.5) == {"repeat": [0.0, -0.1, 0.0, 0.0]}


def test_progress_is_paid_when_reached_and_taken_back_at_the_end() -> None:
    steps = [step(0, reward=0.5), step(1, reward=0.25), step(2)]
    assert added(steps, progress=0.4) == {"progress": pytest.approx([0.2, 0.1, -0.3])}
    assert added(steps, Outcome.TRUNCATED, progress=0.4) == {"progress": pytest.approx([0.2, 0.1, 0.0])}


def test_shaping_is_logged_apart_and_the_verified_reward_stays() -> None:
    steps = [step(0), step(1)]
    shaped = trajectory(episode(steps), shaping=PpoConfig(shaping_repeat=0.5, shaping_steps=0.25))
    assert shaped is not None
    assert trajectory_metrics([shaped]) == {"shaping/repeat": pytest.approx(-0.1), "shaping/steps": pytest.approx(-0.1)}
    metrics = episode_metrics([episode(steps)])
    assert (metrics["reward"], metrics["reward/t"], metrics["steps_per_episode"]) == (0.0, 0.0, 2.0)


def test_think_length_is_the_thoughts_share_of_the_tokens() -> None:
    assert think_tokens(step(0, tokens=18)) == pytest.approx(10.0)
    assert think_tokens(step(0).model_copy(update={"thought": None})) == 0.0
    assert episode_metrics([episode([step(0, tokens=18)])])["think_tokens_per_step"] == pytest.approx(10.0)
