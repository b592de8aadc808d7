"""How often the release gate decides wrongly when it is looked at after every batch of episodes, and what it finds.

    python -m benchmarks.release_gate --json release_gate.json

Simulated: each instance has a success rate of its own, drawn from Beta(0.6, 0.4) (most are solved always or never, as greedy episodes
are; two runs of one policy differ on 24 % of them), and both policies play every instance once. The candidate is the incumbent again (A/A),
or its rates are moved on the logit scale until the mean is some points higher or lower. One table counts false decisions of the test of the
gate and of the exact McNemar test that it replaced, both looked at after every batch (and how often equals are refused by the tolerance,
which is not a test); the second their power; the third false promotions of the whole gate for a candidate that is truly worse. Seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.provenance import provenance
from warehouse.core.home import atomic_write
from warehouse.evaluation.statistics import Difference, Interval, PairedComparison, e_value, mcnemar_exact, release_gate

SHAPE = (0.6, 0.4)
"""Of the Beta distribution of an instance's success rate."""
POINTS = (3.0, 5.0, 10.0)
SIGNIFICANCE, TOLERANCE = 0.05, 0.03
"""As in every profile."""

exact, capital = cache(mcnemar_exact), cache(e_value)


def moved(rates: np.ndarray[Any, Any], points: float) -> np.ndarray[Any, Any]:
    """Rates whose mean over the distribution is `points` percentage points away: every logit is moved by the same amount."""
    sample = np.random.default_rng(1).beta(*SHAPE, size=100_000)
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        is_low = (_shifted(sample, middle) - sample).mean() < points / 100
        low, high = (middle, high) if is_low else (low, middle)
    return _shifted(rates, (low + high) / 2)


def _shifted(rates: np.ndarray[Any, Any], by: float) -> np.ndarray[Any, Any]:
    odds = np.exp(by)
    shifted: np.ndarray[Any, Any] = rates * odds / (1 - rates + rates * odds)
    return shifted


def trials(num: int, batches: int, batch: int, points: float, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pairs that the candidate has won and lost by each look, both `(num, batches)`."""
    rng = np.random.default_rng(seed)
    rates = rng.beta(*SHAPE, size=(num, batches * batch))
    then, now = (rng.random(rates.shape) < each for each in (rates, moved(rates, points) if points else rates))
    looks = slice(batch - 1, None, batch)
    return np.cumsum(now & ~then, axis=1)[:, looks], np.cumsum(then & ~now, axis=1)[:, looks]


def worse(won: int, lost: int) -> dict[str, bool]:
    """Whether each test says that the candidate is worse."""
    return {"exact": exact(won, lost) < SIGNIFICANCE, "anytime": 1 / max(1.0, capital(lost, won, 0)) < SIGNIFICANCE}


def false_decisions(num: int, batches: int, batch: int, seed: int) -> list[dict[str, Any]]:
    """Of A/A trials those in which a test says at any look that the candidate is worse; and that it is better."""
    won, lost = trials(num, batches, batch, 0.0, seed)
    rows = []
    for test in ("exact", "anytime"):
        ever = [_ever(first, second, test).mean() for first, second in ((won, lost), (lost, won))]
        rows.append({"by": test, "worse, last look": _at(won, lost, -1, test), "worse, any look": ever[0], "better, any look": ever[1]})
    beyond = (won - lost) / (batch * np.arange(1, batches + 1)) < -TOLERANCE
    last, any_look = beyond[:, -1].mean(), beyond.any(axis=1).mean()
    return [*rows, {"by": "tolerance", "worse, last look": last, "worse, any look": any_look, "better, any look": "-"}]


def _at(won: np.ndarray[Any, Any], lost: np.ndarray[Any, Any], look: int, test: str) -> float:
    return float(np.mean([worse(w, n)[test] for w, n in zip(won[:, look].tolist(), lost[:, look].tolist(), strict=True)]))


def _ever(won: np.ndarray[Any, Any], lost: np.ndarray[Any, Any], test: str) -> np.ndarray[Any, Any]:
    return np.array([any(worse(w, n)[test] for w, n in zip(*row, strict=True)) for row in zip(won.tolist(), lost.tolist(), strict=True)])


def power(num: int, batches: int, batch: int, seed: int, at: Sequence[int]) -> list[dict[str, Any]]:
    """Share of trials in which the policy that is truly better by so many points is found: by the exact test at its one look after `at`
    pairs, by the anytime-valid one at any look until then."""
    rows = []
    for points in POINTS:
        won, lost = trials(num, batches, batch, points, seed)
        for pairs in at:
            looks = pairs // batch
            found = _ever(lost[:, :looks], won[:, :looks], "anytime").mean()
            rows.append({"points": points, "pairs": pairs, "exact, one look": _at(lost, won, looks - 1, "exact"), "anytime": found})
    return rows


def promotions(num: int, batches: int, batch: int, seed: int) -> list[dict[str, Any]]:
    """Of candidates that are truly so many points worse, those which the whole gate releases: at the first look, and at any look when it is
    looked at until it does. `as before`: the exact test, and nothing kept of earlier looks."""
    rows = []
    for points in POINTS:
        won, lost = trials(num, batches, batch, -points, seed)
        found = {"as before": [0, 0], "now": [0, 0]}
        for row in zip(won.tolist(), lost.tolist(), strict=True):
            pairs = [(w, n, batch * (look + 1)) for look, (w, n) in enumerate(zip(*row, strict=True))]
            for gate, (first, ever) in {"as before": _before(pairs), "now": _now(pairs)}.items():
                found[gate][0] += first
                found[gate][1] += ever
        rows += [{"points": -points, "gate": gate, "first look": a / num, "any look": b / num} for gate, (a, b) in found.items()]
    return rows


def _before(looks: Sequence[tuple[int, int, int]]) -> tuple[bool, bool]:
    released = [not ((w < n and exact(w, n) < SIGNIFICANCE) or (w - n) / pairs < -TOLERANCE) for w, n, pairs in looks]
    return released[0], any(released)


def _now(looks: Sequence[tuple[int, int, int]]) -> tuple[bool, bool]:
    released: list[bool] = []
    for won, lost, pairs in looks:
        gain = (won - lost) / pairs
        comparison = PairedComparison(
            difference=Difference(mean=gain, interval=Interval(low=gain, high=gain)),
            num_pairs=pairs,
            candidate_only=won,
            incumbent_only=lost,
        )
        released.append(release_gate(comparison, significance=SIGNIFICANCE, tolerance=TOLERANCE, was_refused=not all(released)).released)
        if released[-1]:
            break  # it is released: nobody looks again
    return released[0], any(released)


def show(title: str, rows: Sequence[dict[str, Any]], console: Console) -> None:
    drawn = Table(title=title, title_justify="left")
    for column in rows[0]:
        drawn.add_column(column)
    for row in rows:
        drawn.add_row(*(f"{value:.3f}" if isinstance(value, float) and abs(value) <= 1 else str(value) for value in row.values()))
    console.print(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=40, help="looks, one after each batch")
    parser.add_argument("--batch", type=int, default=25, help="pairs of a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = given.trials, given.batches, given.batch, given.seed
    total = given.batches * given.batch
    found = {
        "false decisions": false_decisions(*sizes),
        "power": power(*sizes, at=[pairs for pairs in (100, 250, 500, 1000) if pairs <= total]),
        "false promotions": promotions(*sizes),
    }
    console = Console()
    for title, rows in found.items():
        show(f"{title}: {given.trials} trials, {given.batches} looks at {given.batch} pairs more each", rows, console)
    if given.json is not None:
        plain = json.dumps({"provenance": provenance(), **found}, indent=2, default=float)
        atomic_write(given.json, f"{plain}\n".encode())


if __name__ == "__main__":
    main()
