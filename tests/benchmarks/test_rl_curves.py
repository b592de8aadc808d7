"""What benchmarks/rl_curves.py compares: each arm is what its name says, and beside a critic stands how much it did."""

from __future__ import annotations

from typing import Any

from benchmarks.rl_curves import ARMS, steering, table
from models.rl.config import PpoConfig


def test_each_arm_is_what_its_name_says() -> None:
    configs = {arm: PpoConfig.model_validate(settings) for arm, settings in ARMS.items()}
    grpo, paper = configs["grpo"], configs["paper"]
    assert (grpo.aggregation, grpo.group_normalise_std) == ("episode_mean", True), "a sum over tokens is Dr. GRPO, which does not divide"
    assert (paper.level, paper.aggregation, paper.lambda_floor, paper.lambda_policy) == ("token", "token", 0.0, None)
    assert (paper.pretraining_policy, paper.gate_policy) == ("frozen", "block")
    assert 0 < paper.pretraining_rounds < 8


def row(arm: str, seed: int, curve: list[dict[str, float]], **more: Any) -> dict[str, Any]:
    found = {"outcomes": [["t", 1, True]], "counts": [{"task": "t", "num_success": 1, "num_episodes": 1}], "env_steps": 3, "cpu_s": 2.0}
    return {"domain": "forms", "arm": arm, "seed": seed, "curve": curve, "split": "eval"} | found | more


def test_beside_a_critic_stands_in_how_many_rounds_it_steered_and_by_what_lambda() -> None:
    waiting = {"critic_steers": 0.0, "lambda_policy_min": 0.0, "lambda_policy_max": 0.6, "explained_variance": 0.0}
    steers = {"critic_steers": 1.0, "lambda_policy_min": 0.1, "lambda_policy_max": 0.925, "explained_variance": 0.3}
    rows = [row("paper", 0, [waiting, steers, steers]), row("paper", 1, [waiting], is_blocked=True)]
    assert steering(rows) == ("2 of 4 rounds, 1 of 2 blocked", "0.00 to 0.93", "0.15")
    assert steering([row("grpo", 0, [{"reward": 1.0}]), row("start", 1, [])]) == ("", "", "")
    drawn = table("forms", [row("start", 0, []), *rows[:1]])
    assert [list(column.cells)[1] for column in drawn.columns[-3:]] == ["2 of 3 rounds", "0.00 to 0.93", "0.20"]
