"""The tables of means that benchmarks/critic_fit.py puts beside a critic, and what it fits and holds out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.critic_fit import ROUND, SHRINK, fitted_to, returns_of, table_estimates
from models.rl.updates.buffer import Trajectory, TrajectoryStep

STEP = TrajectoryStep(prompt_ids=(3,), response_ids=(4, 5), logprobs=(0.0, 0.0), reward=0.0)


def played(number: int, *, task: str, steps: int, won: bool) -> Trajectory:
    last = replace(STEP, reward=float(won))
    name = f"{task}/{number}"
    return Trajectory(
        episode_id=name, task_name=task, steps=(*[STEP] * (steps - 1), last), reward=float(won), is_truncated=False, instance=name
    )


def test_a_return_is_known_at_each_step_or_at_each_token() -> None:
    item = played(0, task="a", steps=2, won=True)
    assert returns_of(item, "step").tolist() == [1.0, 1.0] and returns_of(item, "token").tolist() == [1.0] * 4


def test_a_table_tells_the_mean_of_the_task_or_of_its_steps() -> None:
    fitted = [played(i, task="a", steps=1 + i % 2, won=i % 2 == 0) for i in range(40)]  # whoever needs a second step fails
    items = [*fitted, played(40, task="a", steps=2, won=False), played(41, task="b", steps=1, won=True)]
    overall = 20 / 60
    task = (20 + SHRINK * overall) / (60 + SHRINK)
    assert table_estimates(items, range(40), [40, 41], "step", "task") == pytest.approx([task, task, overall])
    first, second = (20 + SHRINK * task) / (40 + SHRINK), SHRINK * task / (20 + SHRINK)
    assert table_estimates(items, range(40), [40], "step", "step") == pytest.approx([first, second])
    assert len(table_estimates(items, range(40), [40], "token", "step")) == 4


def test_a_round_has_as_many_episodes_as_it_has_and_the_same_are_held_out() -> None:
    items = [played(i, task=f"t{i % 5}", steps=1, won=True) for i in range(400)]
    of_round, checked = fitted_to(items, "round")
    stored, again = fitted_to(items, "stored")
    assert len(of_round) == ROUND < len(stored) and checked == again
    assert set(of_round) < set(stored) and not set(stored) & set(checked)
