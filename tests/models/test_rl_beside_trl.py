"""What benchmarks/rl_beside_trl.py hands to TRL: attempts in whole groups, and a crash that is not a reward of 0."""

from __future__ import annotations

from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from benchmarks.rl_beside_trl import REPORTED, published, rows_of
from models.rl.config import PpoConfig
from sandbox.actions import Wait
from sandbox.tasks.task import Task

END = 2


def attempt(seed: int, index: int, outcome: Outcome) -> Episode:
    task = Task(source="t", name="t", domain="d", max_steps=1)
    step = Step(
        step_index=0,
        policy_id="p",
        observation="",
        screenshot_id=None,
        messages=(),
        response="x",
        thought=None,
        action=Wait(),
        prompt_token_ids=(3, seed),
        response_token_ids=(5, END),
        response_logprobs=(-0.5, -0.1),
    )
    is_crash = outcome is Outcome.CRASHED
    return Episode(
        request=EpisodeRequest(purpose="rl", task=task, seed=seed, attempt=index, policy_id="p"),
        instruction="",
        outcome=outcome,
        steps=() if is_crash else (step,),
        reward=None if is_crash else 0.0,
        duration_ms=1.0,
        environment="test",
    )


def test_what_trl_is_given_are_settings_of_ours() -> None:
    assert PpoConfig.model_fields.keys() >= REPORTED


def test_attempts_at_an_instance_stand_side_by_side_in_whatever_order_they_ended() -> None:
    ended = [(8, 1), (7, 0), (8, 0), (7, 1)]
    rows = rows_of([attempt(seed, index, Outcome.SUCCESS if index else Outcome.TRUNCATED) for seed, index in ended], END)
    assert [row["prompt_ids"] for row in rows] == [(3, 8), (3, 8), (3, 7), (3, 7)]
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.0, 1.0]
    assert all(len(row["completion_ids"]) == len(row["logprobs"]) for row in rows)


def test_a_crash_keeps_its_place_and_has_no_reward() -> None:
    rows = rows_of([attempt(7, 0, Outcome.SUCCESS), attempt(7, 1, Outcome.CRASHED)], END)
    assert [row["reward"] for row in rows] == [1.0, None]
    assert rows[1]["completion_ids"] == [END]


def test_what_is_published_says_split_rate_updates_and_when() -> None:
    when = {"commit": "abc", "date": "2026-01-02", "machine": "a CPU"}

    def row(arm: str, rate: float | None, solved: int, **more: int) -> dict[str, Any]:
        outcomes = [("t", instance, instance < solved) for instance in range(10)]
        counts = [{"task": "t", "num_success": solved, "num_episodes": 10}]
        return {"arm": arm, "rate": rate, "seed": 0, "split": "eval", "outcomes": outcomes, "counts": counts, "measured": when, **more}

    found = published([row("start", None, 4), row("TRL", 1e-3, 7, episodes=672, updates=72, cpu_s=64)])
    assert found.keys() == {"TRL 0.001 eval"}
    each = found["TRL 0.001 eval"]
    assert (each["rate"], each["updates"], each["measured"]) == (1e-3, 72, [when])
    assert (each["start"], each["after"], each["gain"]) == ([0.4], [0.7], 30.0)
    assert each["low"] < 30 < each["high"]
