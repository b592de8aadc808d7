"""What benchmarks/analyses.py compares: each arm is what its name says, an ablation leaves out one part, intervals are over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.analyses import ARMS, PAGE, config_of, num_stored, profile_of, published_rows
from benchmarks.common.gains import gains_by_seed, over_seeds, verdict
from benchmarks.common.page import between
from benchmarks.common.provenance import MEASURED
from benchmarks.common.rl_arms import CLAIMS, LEAST_SEEDS, TRENDS, by_arm, compared, curve_of, page, published, sections, steering
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
    gigpo, forks = (config_of(profile, arm, episodes=112, seed=0) for arm in ("gigpo", "forks"))
    assert (gigpo.gamma, gigpo.step_group_weight, gigpo.skip_uniform_tasks) == (0.95, 1.0, False), "as published"
    assert (forks.fork_siblings, forks.fork_points, forks.fork_pixels) == (3, 1, True)
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
        ("gigpo", "grpo", {"algorithm", "gamma", "skip_uniform_tasks"}),
        ("forks", "reinforce", {"fork_siblings", "rounds"}),
    ],
)
def test_an_ablation_leaves_out_one_part(arm: str, other: str, settings: set[str]) -> None:
    ours, theirs = CONFIGS[arm].model_dump(), CONFIGS[other].model_dump()
    assert {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)} == settings


def test_every_arm_has_as_many_episodes_stored_ones_counted_in() -> None:
    profile, total = profile_of("pointing", 0), 112
    for arm in ARMS:
        config = config_of(profile, arm, episodes=total, seed=0)
        stored = num_stored(config, total)
        assert config.episodes_per_task % config.group_size == 0, "a round would round it up"
        assert (stored > 0) == (config.algorithm == "ppo" and config.offline_episodes > 0)
        played = config.rounds * config.episodes_per_task * config.with_forks
        assert total - config.rounds < stored + played <= total, "a fork replays its parent's steps, so it counts as an episode"


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
    assert steering(rows) == ("2 of 4 rounds, 1 of 2 blocked", "0.10 to 0.93", "0.15, 0.10"), "λ of rounds that it steered"
    assert steering(rows[1:]) == ("0 of 1 rounds, 1 of 1 blocked", "", "0.00, 0.00")
    assert steering([row("grpo", 0, [{"reward": 1.0}]), row("start", 1, [])]) == ("", "", "")


def test_two_arms_are_compared_on_what_both_have_and_up_to_as_many_steps() -> None:
    short = row("grpo", 0, [metrics(0.2), metrics(0.4)], "0011")
    long = row("ppo", 0, [metrics(0.2), metrics(0.6), metrics(1.0)], "1111", env_steps=60, env_steps_stored=5, success_stored=0.1)
    rows = by_arm([short, long, row("ppo", 1, [metrics(0.5)])])
    claim = next(claim for claim in CLAIMS if (claim.arm, claim.other) == ("ppo", "grpo"))
    found = compared(claim, rows)
    assert found is not None and (found["seeds"], found["preliminary"], found["greedy"]["mean"]) == ([0], True, 50.0)
    wanted = (5 * 0.1 + 20 * 0.2 + 15 * 0.6) / 40 - 0.3
    assert found["learning"]["by_seed"] == [round(100 * wanted, 1)], (
        "stored episodes count in, and of the longer one, up to the shorter's end"
    )
    assert found["greedy"]["low"] is None and found["found"] == "too few seeds", "of one seed no more can be said"
    assert found["steps"] == 1.5
    assert compared(CLAIMS[0], rows) is None


def test_forks_and_what_they_replay_are_environment_steps_and_no_successes() -> None:
    forks = row("forks", 0, [metrics(0.2, fork_steps=6.0, replayed_steps=4.0), metrics(0.4, fork_steps=6.0, replayed_steps=4.0)])
    assert curve_of(forks) == ([30.0, 60.0], [0.2, 0.4])
    found = published("forms", [row("start", 0, []), {**forks, "replayed_steps": 8, "env_steps": 60}])
    assert sections("forms", found)[0].lines[0][5] == "60, 8 of them replayed"


def test_a_claim_is_judged_by_what_it_is_about() -> None:
    """Entropy stays higher in every seed of the first, and greedy success is alike: clip-higher is about entropy."""
    rows = [row("ppo", seed, [metrics(0.2, entropy=0.5 + 0.01 * seed)] * 4) for seed in range(3)]
    rows += [row("symmetric_clip", seed, [metrics(0.2, entropy=0.3)] * 4) for seed in range(3)]
    found = published("forms", [*rows, *(row("start", seed, []) for seed in range(3))])
    clip = found["forms: clip-higher"]
    assert (clip["by"], clip["found"], clip["entropy"]["by_seed"]) == ("entropy", "holds", [0.2, 0.21, 0.22])
    assert clip["greedy"] == {"by_seed": [0.0] * 3, "mean": 0.0, "low": 0.0, "high": 0.0}
    assert found["forms: entropy over training"]["found"] == "not shown", "it stayed as it was"


def test_what_the_paper_saw_over_training_is_asked_of_its_arm_on_gui_tasks() -> None:
    def seed_of(domain: str, seed: int) -> dict[str, Any]:
        falling = [metrics(0.2, think_tokens_per_step=8.0 - index - 0.1 * seed * index, entropy=0.5 - 0.1 * index) for index in range(4)]
        return {**row("ppo", seed, falling), "domain": domain}

    found = {domain: published(domain, [seed_of(domain, seed) for seed in range(3)]) for domain in ("forms", "catch")}
    thought, entropy = (found["forms"][f"forms: {name} over training"] for name in ("thought tokens a step", "entropy"))
    assert thought["change"]["by_seed"] == [-2.0, -2.2, -2.4] and thought["found"] == "holds"
    assert entropy["change"]["mean"] == -0.2 and entropy["found"] == "does not hold: the opposite"
    assert not found["catch"], "of games the paper does not say it"


def test_what_is_published_says_how_many_seeds_it_has() -> None:
    curve = [metrics(0.2), metrics(0.4)]
    rows = [row(arm, seed, [] if arm == "start" else curve, "1100") for seed in range(3) for arm in ("start", "ppo")]
    rows.append(row("grpo", 0, curve, "1110"))
    found = published("forms", rows)
    trends = {f"forms: {trend.about}" for trend in TRENDS}
    assert found.keys() == {"forms ppo", "forms grpo", "forms: PPO against GRPO"} | trends
    assert [found[name]["preliminary"] for name in found] == [False, True, True, False, False, False]
    assert found["forms ppo"]["by_seed"][2]["curve"]["success"] == [0.2, 0.4]
    arms, claims = sections("forms", found)
    assert arms.lines == [
        ("`ppo`", "3", "0.500", "0.500", "+0.0 (+0.0 to +0.0)", "40", "", "", "0.20 → 0.20", "7.00 → 7.00"),
        ("`grpo`", "1, preliminary", "0.500", "0.750", "+25.0", "40", "", "", "0.20 → 0.20", "7.00 → 7.00"),
    ]
    assert claims.lines[0] == (
        "PPO against GRPO",
        "`ppo` − `grpo`",
        "1, preliminary",
        "-25.0",
        "+0.0",
        "+0.00",
        "1.00",
        "higher reward in training",
        "learning: too few seeds",
    )
    assert claims.lines[1][-2:] == ("rises on GUI tasks", "+0.00 (+0.00 to +0.00): not shown")
    assert all(len(line) == len(section.columns) for section in (arms, claims) for line in section.lines)
    assert len(arms.drawn().columns) == len(arms.columns)
    assert page(found).count("| `ppo` |") == 1 + len(trends)
    assert len(sections("forms", {"forms ppo": found["forms ppo"]})) == 1, "no claim, no table of claims"


def test_a_round_in_which_all_episodes_crashed_is_left_out_of_curves_and_null_in_what_is_published() -> None:
    lost = {"episodes": 0.0, "crashed": 10.0, "fruitless": 1.0}
    rows = [row("start", 0, []), row("grpo", 0, [metrics(0.2), metrics(0.4)]), row("ppo", 0, [metrics(0.2), lost, metrics(0.4)])]
    found = published("forms", rows)
    assert found["forms: PPO against GRPO"]["learning"]["by_seed"] == [0.0]
    assert found["forms ppo"]["by_seed"][0]["curve"]["success"] == [0.2, None, 0.4]
    assert sections("forms", found)[0].lines[0][8] == "0.20 → 0.20", "the ends are of the rounds that have one"


@pytest.mark.parametrize(
    ("gains", "found"),
    [
        ([0.15, 0.22, 0.27], "better"),  # mean .2133, standard error .0348, times 4.303: .150
        ([-0.15, -0.22, -0.27], "worse"),
        ([0.02, 0.09, 0.30], "no difference shown"),  # all above 0, but .1367 is within 4.303 times .0841
        ([0.3, 0.3], "too few seeds"),
        ([0.5], "too few seeds"),
        ([0.0, 0.0, 0.0], "no difference shown"),
    ],
)
def test_arms_are_distinguished_by_students_t_over_seeds(gains: list[float], found: str) -> None:
    assert verdict(gains, LEAST_SEEDS) == found


def test_an_interval_is_students_t_over_seeds() -> None:
    centre, interval = over_seeds([0.15, 0.22, 0.27])
    assert interval is not None and centre == pytest.approx(0.21333, abs=1e-5)
    assert [interval.low, interval.high] == pytest.approx([0.0636, 0.3631], abs=1e-4)
    assert over_seeds([0.5]) == (0.5, None)


def test_a_gain_is_of_the_instances_that_both_played() -> None:
    assert gains_by_seed([row("ppo", 0, [], "110")], [row("start", 0, [], "01")]) == [0.5]
    with pytest.raises(ValueError, match="no instance in common"):
        gains_by_seed([row("ppo", 0, [])], [row("start", 1, [])])


def test_the_page_says_what_is_published() -> None:
    assert between(ROOT / PAGE, "analyses") == page(published_rows(ROOT / MEASURED))
