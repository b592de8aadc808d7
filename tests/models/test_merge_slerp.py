"""Spherical interpolation against Shoemake's formula, and against the mean on the sphere computed with the vectors themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.merging import io, slerp
from models.merging.config import MethodConfig
from models.merging.merge import merge
from tests.models.merge_helpers import read_all, write_parent

Array = NDArray[np.float64]


def units_of(vectors: Any) -> Array:
    rows = np.asarray(vectors, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def mean_on_the_sphere(units: Array, weights: Sequence[float], num_rounds: int) -> Array:
    """From the direction of the weighted sum so many steps along the weighted mean of what points at each unit vector, as coefficients of
    the unit vectors, which must be linearly independent."""
    mean = np.asarray(weights) @ units
    mean /= np.linalg.norm(mean)
    for _ in range(num_rounds):
        away = units - np.outer(units @ mean, mean)
        angles = np.arctan2(np.linalg.norm(away, axis=1), units @ mean)
        tangent = sum(w * angle * a / np.linalg.norm(a) for w, angle, a in zip(weights, angles, away, strict=True))
        step = np.linalg.norm(tangent)
        mean = math.cos(step) * mean + math.sin(step) * tangent / step
    return np.linalg.lstsq(units.T, mean, rcond=None)[0]


@pytest.mark.parametrize("weights", [(0.3, 0.7), (0.5, 0.2, 0.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merge_is_shoemakes_formula_or_the_mean_on_the_sphere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: tuple[float, ...], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(io, "PIECE_BYTES", 1024)
    generator = torch.Generator().manual_seed(3)
    moved = [{"w": torch.randn(40, 50, generator=generator).to(dtype)} for _ in weights]
    parents = [write_parent(tmp_path / f"p{i}", tensors) for i, tensors in enumerate(moved)]
    merge(parents, weights, tmp_path / "merged", MethodConfig(method="slerp"))
    merged = read_all(tmp_path / "merged")["w"].double().reshape(-1).numpy()
    vectors = np.stack([tensors["w"].double().reshape(-1).numpy() for tensors in moved])
    units = units_of(vectors)
    if len(weights) == 2:
        angle = math.acos(float(units[0] @ units[1]))
        factors = np.array([math.sin(weight * angle) for weight in weights]) / math.sin(angle)
    else:
        factors = mean_on_the_sphere(units, weights, 20)
    assert np.allclose(merged, factors @ vectors, atol=1e-6, rtol=2**-8 if dtype is torch.bfloat16 else 0)


@pytest.mark.parametrize("num_rounds", [0, 1, 2, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_step_is_the_one_along_the_sphere(monkeypatch: pytest.MonkeyPatch, num_rounds: int, seed: int) -> None:
    monkeypatch.setattr(slerp, "MAX_ROUNDS", num_rounds)
    generator = np.random.default_rng(seed)
    vectors, weights = generator.normal(size=(4, 6)) + 0.5, (0.1, 0.2, 0.3, 0.4)
    found = slerp.coefficients(vectors @ vectors.T, weights)
    assert np.allclose(found, mean_on_the_sphere(units_of(vectors), weights, num_rounds), atol=1e-11, rtol=0)


def test_a_mean_of_directions_far_apart_is_found_and_has_length_one() -> None:
    """It takes nearly all rounds there are."""
    units, weights = units_of([[1, 0, 0.02], [-0.5, 0.866, 0.02], [-0.5, -0.866, 0.03]]), (0.27, 0.34, 0.39)
    found = np.asarray(slerp.coefficients(units @ units.T, weights))
    assert float(np.linalg.norm(found @ units)) == pytest.approx(1, abs=1e-12)
    assert np.allclose(found, mean_on_the_sphere(units, weights, 60), atol=1e-10, rtol=0)


def test_directions_that_are_the_mean_or_its_opposite_but_for_rounding_count() -> None:
    """The cosine with the mean comes out beyond 1, or below -1."""
    units = units_of(np.random.default_rng(2).normal(size=(3, 4)))
    assert slerp.coefficients(units @ units.T, (1.0, 0.0, 0.0)) == pytest.approx((1.0, 0.0, 0.0), abs=1e-12)
    angle = math.radians(91)
    fan = np.array([[math.cos(angle), math.sin(angle)], [math.cos(angle), -math.sin(angle)], [1.0, 0.0]])
    found = np.asarray(slerp.coefficients(fan @ fan.T, (0.5, 0.5, 0.0)))
    assert (found @ fan).tolist() == pytest.approx([-1, 0])


@pytest.mark.parametrize("sign", [1, -1])
def test_parallel_is_beyond_the_bound(sign: int) -> None:
    """At the bound itself the way is along the sphere; a little beyond it, and for opposite directions, it is straight."""
    at = sign * slerp.PARALLEL
    angle = math.acos(at)
    expected = (math.sin(0.25 * angle) / math.sin(angle), math.sin(0.75 * angle) / math.sin(angle))
    assert slerp.coefficients(np.array([[1.0, at], [at, 1.0]]), (0.25, 0.75)) == pytest.approx(expected, abs=1e-12)
    assert abs(expected[0] - 0.25) > 1e-5
    beyond = math.nextafter(at, 2 * sign)
    assert slerp.coefficients(np.array([[1.0, beyond], [beyond, 1.0]]), (0.25, 0.75)) == (0.25, 0.75)


def test_parallel_and_empty_vectors_are_interpolated_linearly() -> None:
    assert slerp.coefficients(np.array([[1.0, 1.0], [1.0, 1.0]]), (0.25, 0.75)) == (0.25, 0.75)
    assert slerp.coefficients(np.array([[0.0, 0.0], [0.0, 1.0]]), (0.25, 0.75)) == (0.25, 0.75)


def test_inner_products_are_summed_in_double_precision() -> None:
    values = [np.array([4096, 1], dtype=np.float32), np.array([4096, 3], dtype=np.float32)]
    assert slerp.inner_products(values).tolist() == [[2**24 + 1, 2**24 + 3], [2**24 + 3, 2**24 + 9]]
