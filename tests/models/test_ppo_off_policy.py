"""Weights of off-policy tokens, by hand. That on-policy tokens are not touched is in test_rl_conformance.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models.rl.config import PpoConfig
from models.rl.updates.buffer import Trajectory, TrajectoryStep
from models.rl.updates.off_policy import episode_correction, loglinear_proximal, sequence_kept, staleness, token_correction

WEIGHTS = [0.1, 0.6, 1.0, 3.0, 9.0]


@pytest.mark.parametrize(
    ("off_policy", "expected"),
    [
        ("none", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("tis", [0.1, 0.6, 1.0, 2.0, 2.0]),
        ("decoupled", [0.1, 0.6, 1.0, 3.0, 0.0]),
        ("icepop", [0.0, 0.6, 1.0, 3.0, 0.0]),
        ("sequence_mask", [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_each_correction_of_a_token(off_policy: str, expected: list[float]) -> None:
    config = PpoConfig.model_validate({"off_policy": off_policy})
    behaviour = torch.full((5,), -1.0, dtype=torch.float64)
    found = token_correction(behaviour + torch.tensor(WEIGHTS).log(), behaviour, config)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_what_is_exactly_on_a_bound_is_kept() -> None:
    behaviour = torch.full((2,), -1.0, dtype=torch.float64)
    weights = torch.exp(torch.tensor([-0.75, 0.5], dtype=torch.float64))
    bounds = {"icepop_low": float(weights[0]), "icepop_high": float(weights[1]), "decoupled_cap": float(weights[1])}
    for off_policy in ("icepop", "decoupled"):
        config = PpoConfig.model_validate({"off_policy": off_policy} | bounds)
        assert torch.equal(token_correction(torch.tensor([-1.75, -0.5], dtype=torch.float64), behaviour, config), weights)
    free = PpoConfig(off_policy="decoupled", decoupled_cap=None)
    assert token_correction(behaviour + math.log(900.0), behaviour, free).tolist() == pytest.approx([900.0] * 2)


def test_loglinear_lies_between_sampler_and_learner_by_age() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    found = loglinear_proximal(logprobs, torch.full((3,), -3.0), torch.tensor([0.0, 1.0, 3.0]))
    assert found.tolist() == pytest.approx([-3.0, -2.0, -1.5])
    assert not found.requires_grad


def item(logprobs: list[float], versions: tuple[int, ...] = ()) -> Trajectory:
    step = TrajectoryStep(prompt_ids=(1,), response_ids=(2,) * len(logprobs), logprobs=tuple(logprobs), reward=1.0, versions=versions)
    return Trajectory(episode_id="e", task_name="t", steps=(step,), reward=1.0, is_truncated=False)


def test_an_episode_is_masked_whole_for_its_mean_or_for_one_absurd_token() -> None:
    config = PpoConfig(off_policy="sequence_mask")
    behaviour = np.full(10, -1.0)
    assert sequence_kept(behaviour + 0.005, behaviour, config)
    assert not sequence_kept(behaviour + 0.02, behaviour, config)
    absurd = behaviour.copy()
    absurd[0], absurd[1] = absurd[0] + math.log(200), absurd[1] - math.log(200)
    assert not sequence_kept(absurd, behaviour, config)
    assert episode_correction(item([-1.0] * 10), behaviour + 0.02, 0, config).tolist() == [0.0] * 10
    assert episode_correction(item([-1.0] * 10), behaviour + 0.005, 0, config).tolist() == [1.0] * 10
    with np.errstate(all="raise"):
        assert not sequence_kept(behaviour + 1000.0, behaviour, config) and not sequence_kept(behaviour - 1000.0, behaviour, config)


def test_an_episode_exactly_on_the_bounds_is_kept() -> None:
    behaviour = np.zeros(3)
    wide = PpoConfig(off_policy="sequence_mask", sequence_mask_low=0.5, sequence_mask_high=2.0)
    outermost = np.array([math.log(1e-4), math.log(100.0), math.log(100.0)])
    assert sequence_kept(outermost, behaviour, wide)
    for beyond in ([-0.01, 0.0, 0.0], [0.0, 0.01, 0.0]):
        assert not sequence_kept(outermost + np.array(beyond), behaviour, wide)
    for mean, kept in ((math.log(2.0), True), (math.log(2.01), False), (math.log(0.5), True), (math.log(0.49), False)):
        assert sequence_kept(np.array([mean]), np.zeros(1), wide) == kept


def test_a_token_keeps_its_weight_up_to_the_largest_lag_and_none_beyond() -> None:
    """Sampled by versions 1, 3 and 5 of a learner at 5, with the weights 0.5, 1.5 and 3."""
    lagging = item([-1.0, -2.0, -3.0], (1, 3, 5))
    proximal = np.array([-1.0, -2.0, -3.0]) + np.log([0.5, 1.5, 3.0])
    tis = PpoConfig(off_policy="tis")
    assert episode_correction(lagging, proximal, 5, tis).tolist() == pytest.approx([0.5, 1.5, 2.0])
    for bound, expected in ((4, [0.5, 1.5, 2.0]), (3, [0.0, 1.5, 2.0]), (2, [0.0, 1.5, 2.0]), (0, [0.0, 0.0, 2.0])):
        bounded = tis.model_copy(update={"max_staleness": bound})
        assert episode_correction(lagging, proximal, 5, bounded).tolist() == pytest.approx(expected)
    assert episode_correction(lagging, None, 5, PpoConfig(max_staleness=2)).tolist() == [0.0, 1.0, 1.0]
    assert episode_correction(lagging, None, 5, tis).tolist() == [1.0] * 3


def test_tokens_of_newer_weights_than_asked_for_are_not_stale() -> None:
    assert staleness(item([-1.0] * 3, (2, 5, 7)), 5).tolist() == [3, 0, 0]
    assert staleness(item([-1.0] * 3), 5).tolist() == [0, 0, 0] and staleness(item([]), 5).dtype == np.int64
