"""What each algorithm makes of a round's rewards: bounds, skipped tasks, penalties. No model: episodes are lists of ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from models.ppo.buffer import Trajectory, TrajectoryStep
from models.ppo.config import PpoConfig
from models.ppo.weighting import Weighting, weigh_round


def item(number: int, task: str, reward: float, *, instance: str = "", widths: Sequence[int] = (2,)) -> Trajectory:
    """An episode of steps that are `widths` tokens long, rewarded at its end."""
    steps = [
        TrajectoryStep(
            prompt_ids=(3,), response_ids=(5,) * width, logprobs=(-0.5,) * width, reward=reward if index == len(widths) - 1 else 0.0
        )
        for index, width in enumerate(widths)
    ]
    return Trajectory(
        episode_id=f"episode-{number}", task_name=task, steps=tuple(steps), reward=reward, is_truncated=False, instance=instance,
        is_success=reward > 0,
    )  # fmt: skip


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


def test_the_critics_and_the_baselines_are_bounded_unless_told_otherwise() -> None:
    assert max(of_episodes(weighed(rare(), algorithm="reinforce", baseline_std_floor=1e-6))) == 2.0
    assert max(of_episodes(weighed(rare(), algorithm="reinforce", baseline_std_floor=1e-6, advantage_clip=None))) > 2.5
    assert (PpoConfig().highest_advantage, PpoConfig(advantage_clip=None).highest_advantage) == (2.0, math.inf)
