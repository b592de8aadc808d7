"""What benchmarks/analyses.py compares: each arm is what its name says, an ablation leaves out one part, intervals draw seeds too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import analyses
from benchmarks.analyses import (
    ARMS,
    CLAIMS,
    LEAST_SEEDS,
    MARKS,
    PAGE,
    compared,
    config_of,
    num_stored,
    page,
    profile_of,
    published,
    published_rows,
    sections,
    steering,
)
from benchmarks.common.gains import gained_over_seeds, verdict
from benchmarks.common.provenance import MEASURED
from models.rl.config import PpoConfig

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = {arm: PpoConfig.model_validate(settings) for arm, settings in ARMS.items()}


def test_each_arm_is_what_its_name_says() -> None:
    profile = profile_of("pointing", 0)
    paper, grpo = (config_of(profile, arm, episodes=112, seed=0) for arm in ("ppo", "grpo"))
    assert (paper.level, paper.lambda_floor, paper.lambda_policy, paper.lambda_alpha, paper.lambda_critic) == (
        "token",
        0.0,
        None,
        0.5,  # the paper's is 0.05: docs/rl.md says so
        1.0,
    )
    assert paper.aggregation == "episode", "the paper's is token: docs/rl.md says so"
    assert (paper.gate_policy, paper.pretraining_rounds) == ("open", 0), "the critic steers from the first round on"
    assert paper.clip_high > paper.clip_low
    assert (grpo.aggregation, grpo.group_normalise_std) == ("episode_mean", True), "a sum over tokens is Dr. GRPO, which does not divide"
    for claim in CLAIMS:
        assert {claim.arm, claim.other} <= ARMS.keys() and claim.arm != claim.other


@pytest.mark.parametrize(
    ("arm", "other", "settings"),
    [
        ("ppo", "no_pretraining", {"offline_episodes"}),
        ("ppo", "fixed_lambda", {"lambda_policy"}),
        ("fixed_lambda", "coupled", {"lambda_critic"}),
        ("ppo", "symmetric_clip", {"clip_high"}),
        ("ppo", "step", {"level"}),
        ("gate_task", "gate", {"gate_baseline"}),
        ("quickstart_task", "quickstart", {"gate_baseline"}),
    ],
)
def test_an_ablation_leaves_out_one_part(arm: str, other: str, settings: set[str]) -> None:
    ours, theirs = CONFIGS[arm].model_dump(), CONFIGS[other].model_dump()
    assert {name for name in ours if ours[name] != theirs[name]} == settings


def test_every_arm_has_as_many_episodes_stored_ones_counted_in() -> None:
    profile, total = profile_of("pointing", 0), 112
    for arm in ARMS:
        config = config_of(profile, arm, episodes=total, seed=0)
        stored = num_stored(config, total)
        assert config.episodes_per_task % config.group_size == 0, "a round would round it up"
        assert (stored > 0) == (config.algorithm == "ppo" and config.offline_episodes > 0)
        assert total - config.rounds < stored + config.rounds * config.episodes_per_task <= total


def metrics(success: float, **more: float) -> dict[str, float]:
    trend = {"entropy": 0.2, "think_tokens_per_step": 7.0, "steps_per_episode": 2.0}
    return {"success": success, "episodes": 10.0, **trend, **more}


def row(arm: str, seed: int, curve: list[dict[str, float]], solved: str = "10", **more: Any) -> dict[str, Any]:
    found = {
        "outcomes": [["t", index, mark == "1"] for index, mark in enumerate(solved)],
        "counts": [{"task": "t", "num_success": solved.count("1"), "num_episodes": len(solved)}],
        "measured": {"commit": "0123456789", "date": "2026-11-27", "machine": "a CPU"},
    }
    costs = {"episodes": 20, "env_steps": 40, "env_steps_stored": 0, "cpu_s": 2.0, "wall_s": 3.0}
    return {"domain": "forms", "arm": arm, "seed": seed, "split": "eval", **found, **({"curve": curve, **costs} if curve else {}), **more}


def test_beside_a_critic_stands_in_how_many_rounds_it_steered_and_by_what_lambda() -> None:
    waiting = {"critic_steers": 0.0, "lambda_policy_min": 0.0, "lambda_policy_max": 0.6, "explained_variance": 0.0}
    steers = {
        "critic_steers": 1.0,
        "lambda_policy_min": 0.1,
        "lambda_policy_max": 0.925,
        "explained_variance": 0.3,
        "explained_by_task": 0.2,
    }
    rows = [row("gate", 0, [waiting, steers, steers]), row("gate", 1, [waiting], is_blocked=True)]
    assert steering(rows) == ("2 of 4 rounds, 1 of 2 blocked", "0.00 to 0.93", "0.15, 0.10")
    assert steering([row("grpo", 0, [{"reward": 1.0}]), row("start", 1, [])]) == ("", "", "")


def test_two_arms_are_compared_on_what_both_have_and_up_to_as_many_steps() -> None:
    short = row("grpo", 0, [metrics(0.2), metrics(0.4)], "0011")
    long = row("ppo", 0, [metrics(0.2), metrics(0.6), metrics(1.0)], "1111", env_steps_stored=5, success_stored=0.1)
    rows = analyses.by_arm([short, long, row("ppo", 1, [metrics(0.5)])])
    claim = next(claim for claim in CLAIMS if (claim.arm, claim.other) == ("ppo", "grpo"))
    found = compared(claim, rows)
    assert found is not None and (found["seeds"], found["preliminary"], found["gain"]) == ([0], True, 50.0)
    wanted = (5 * 0.1 + 20 * 0.2 + 15 * 0.6) / 40 - 0.3
    assert found["curve"] == [round(100 * wanted, 1)], "stored episodes count in, and of the longer one, up to where the shorter ends"
    assert found["found"] == "preliminary", "of one seed no more can be said"
    assert compared(CLAIMS[0], rows) is None


def test_what_is_published_says_how_many_seeds_it_has() -> None:
    curve = [metrics(0.2), metrics(0.4)]
    rows = [row(arm, seed, [] if arm == "start" else curve, "1100") for seed in range(3) for arm in ("start", "ppo")]
    rows.append(row("grpo", 0, curve, "1110"))
    found = published("forms", rows)
    assert found.keys() == {"forms ppo", "forms grpo", "forms: PPO against GRPO"}
    assert [found[name]["preliminary"] for name in found] == [False, True, True]
    assert found["forms ppo"]["by_seed"][2]["curve"]["success"] == [0.2, 0.4]
    arms, claims, trends = sections("forms", found)
    assert [line[:2] for line in arms.lines] == [("`ppo`", "0 1 2"), ("`grpo`", "0, preliminary")]
    assert [line[1:3] for line in claims.lines] == [("`ppo` − `grpo`", "0, preliminary")]
    assert trends.lines[0] == ("`ppo`", *[f"{each} → {each}, {each} → {each}, {each} → {each}" for each in ("0.20", "7.00", "2.00")])
    assert len(arms.drawn().columns) == len(arms.columns)
    assert page(found).count("| `ppo` |") == 2
    assert len(sections("forms", {"forms ppo": found["forms ppo"]})) == 2, "no claim, no table of claims"


def test_a_round_in_which_all_episodes_crashed_is_left_out_of_curves_and_null_in_what_is_published() -> None:
    lost = {"episodes": 0.0, "crashed": 10.0, "fruitless": 1.0}
    rows = [row("start", 0, []), row("grpo", 0, [metrics(0.2), metrics(0.4)]), row("ppo", 0, [metrics(0.2), lost, metrics(0.4)])]
    found = published("forms", rows)
    assert found["forms: PPO against GRPO"]["curve"] == [0.0]
    assert found["forms ppo"]["by_seed"][0]["curve"]["success"] == [0.2, None, 0.4]
    assert sections("forms", found)[2].lines[0][1] == "0.20 → 0.20", "trends are of the rounds that have one"


@pytest.mark.parametrize(
    ("gains", "found"),
    [
        ([0.15, 0.22, 0.27], "better"),  # mean .2133, standard error .0348, times 4.303: .150
        ([-0.15, -0.22, -0.27], "worse"),
        ([0.02, 0.09, 0.30], "no difference shown"),  # all above 0, but .1367 is within 4.303 times .0841
        ([0.3, 0.3], "preliminary"),
        ([0.5], "preliminary"),
        ([0.0, 0.0, 0.0], "no difference shown"),
    ],
)
def test_arms_are_told_apart_by_students_t_over_seeds(gains: list[float], found: str) -> None:
    assert verdict(gains, LEAST_SEEDS) == found


def test_the_page_says_what_is_published() -> None:
    found = published_rows(ROOT / MEASURED)
    said = (ROOT / PAGE).read_text(encoding="utf-8").partition(f"{MARKS[0]}\n")[2].partition(MARKS[1])[0]
    assert said == page(found)


def test_an_interval_over_seeds_is_as_wide_as_they_differ() -> None:
    def pair(*solved: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return [row("ppo", seed, [], marks) for seed, marks in enumerate(solved)], [
            row("start", seed, [], "0" * 40) for seed in range(len(solved))
        ]

    apart = gained_over_seeds(*pair("1" * 40, "0" * 40, "0" * 40))
    alike = gained_over_seeds(*pair(*["1" * 13 + "0" * 27] * 3))
    assert apart.mean == pytest.approx(1 / 3) and alike.mean == pytest.approx(13 / 40)
    assert (apart.interval.low, apart.interval.high) == (0.0, 1.0)
    assert 0.2 < alike.interval.low < alike.mean < alike.interval.high < 0.45
    assert gained_over_seeds(*pair("1" * 4)).interval.low == 1.0, "of one seed whose instances are alike nothing else can be drawn"
    with pytest.raises(ValueError, match="no instance in common"):
        gained_over_seeds([row("ppo", 0, [])], [row("start", 1, [])])
