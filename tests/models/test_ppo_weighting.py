"""What each algorithm makes of a round's rewards: bounds, skipped tasks, penalties. No model: episodes are lists of ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError

from models.rl.config import PpoConfig
from models.rl.updates.buffer import Trajectory, TrajectoryStep
from models.rl.updates.weighting import Weighting, weigh_round


def item(number: int, task: str, reward: float, *, instance: str = "", widths: Sequence[int] = (2,)) -> Trajectory:
    """An episode of steps that are `widths` tokens long, rewarded at its end."""
    steps = [
        TrajectoryStep(
            prompt_ids=(3,), response_ids=(5,) * width, logprobs=(-0.5,) * width, reward=reward if index == len(widths) - 1 else 0.0
        )
        for index, width in enumerate(widths)
    ]
    return Trajectory(
        episode_id=f"episode-{number}",
        task_name=task,
        steps=tuple(steps),
        reward=reward,
        is_truncated=False,
        instance=instance,
        is_success=reward > 0,
    )


def weighed(items: Sequence[Trajectory], **settings: object) -> Weighting:
    return weigh_round(items, PpoConfig.model_validate(settings), None, 1, np.random.default_rng(0))


def of_episodes(weighting: Weighting) -> list[float]:
    assert weighting.advantages is not None
    return [float(values[0]) for values in weighting.advantages]


def rare() -> list[Trajectory]:
    """Nine attempts at one instance, of which one succeeds: about 2.7 standard deviations above the mean."""
    return [item(number, "one", float(number == 0), instance="one/1") for number in range(9)]


@pytest.mark.parametrize("settings", [{"algorithm": "grpo", "group_size": 9}, {"algorithm": "reinforce++"}])
def test_advantages_of_published_algorithms_are_as_published_unless_a_bound_is_asked_for(settings: dict[str, object]) -> None:
    rewards = np.array([each.reward for each in rare()])
    spread = rewards.std(ddof=1 if settings["algorithm"] == "grpo" else 0)
    assert of_episodes(weighed(rare(), **settings)) == pytest.approx((rewards - rewards.mean()) / spread)
    assert max(of_episodes(weighed(rare(), **settings, advantage_clip=1.5))) == 1.5


def test_the_critics_and_the_baselines_are_bounded_by_default() -> None:
    assert max(of_episodes(weighed(rare(), algorithm="reinforce", baseline_std_floor=1e-6))) == 2.0
    assert max(of_episodes(weighed(rare(), algorithm="reinforce", baseline_std_floor=1e-6, advantage_clip=None))) > 2.5
    assert (PpoConfig().highest_advantage, PpoConfig(advantage_clip=None).highest_advantage) == (2.0, math.inf)


def two_tasks() -> list[Trajectory]:
    """One task that is always solved and one whose outcome is open, each instance met once."""
    rewards = [("easy", 1.0)] * 2 + [("open", 1.0), ("open", 0.0)]
    return [item(number, task, reward, instance=f"{task}/{number}") for number, (task, reward) in enumerate(rewards)]


def test_reinforce_plus_plus_skips_tasks_that_were_rewarded_alike_unless_it_is_not_to() -> None:
    skipping, published = (weighed(two_tasks(), algorithm="reinforce++", skip_uniform_tasks=skip) for skip in (True, False))
    assert of_episodes(skipping) == pytest.approx([0.0, 0.0, 1.0, -1.0])
    rewards = np.array([1.0, 1.0, 1.0, 0.0])
    assert of_episodes(published) == pytest.approx((rewards - rewards.mean()) / rewards.std())
    assert skipping.metrics["uniform_fraction"] == skipping.metrics["group_zero_std"] == 0.5


def test_where_attempts_are_compared_a_group_is_skipped_and_rejection_skips_nothing() -> None:
    rewards = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    items = [item(number, "one", reward, instance=f"one/{number // 2}") for number, reward in enumerate(rewards)]
    weighting = weighed(items, algorithm="reinforce++", group_baseline=True, group_size=2)
    assert of_episodes(weighting) == pytest.approx([0.0, 0.0, 0.0, 0.0, -1.0, 1.0])
    assert weighting.metrics["group_zero_std"] == weighting.metrics["uniform_fraction"] == pytest.approx(2 / 3)
    assert of_episodes(weighed(two_tasks(), algorithm="rejection")) == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(ValidationError, match="compares attempts at one instance, but group_size is 1"):
        PpoConfig(algorithm="reinforce++", group_baseline=True)
