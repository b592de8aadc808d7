"""What benchmarks of learning keep of an arm's greedy episodes, and how two arms are compared.

A row is a dictionary with `seed`, `outcomes` and `counts`, as it lies in an arm's file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from agent.episode.episode import Episode, Outcome
from benchmarks.common.provenance import distinct
from pipelines.stages.evaluate import task_counts
from warehouse.evaluation.statistics import CONFIDENCE, Difference, Interval, TaskCount, compare_paired, macro_average

Row = Mapping[str, Any]


def judged(episodes: Sequence[Episode]) -> dict[str, Any]:
    """`outcomes`: (task, seed, solved) of each episode that did not crash; `counts`: solved and counted, by task."""
    return {
        "outcomes": [
            (each.request.task.name, each.request.seed, each.is_success) for each in episodes if each.outcome is not Outcome.CRASHED
        ],
        "counts": [asdict(count) for count in task_counts(episodes)],
    }


def success(row: Row) -> str:
    """With its standard error; with its interval where every task is solved always or never, and the error would be 0."""
    estimate = macro_average([TaskCount(**count) for count in row["counts"]])
    interval = estimate.interval
    sure = f"± {estimate.standard_error:.3f}" if estimate.standard_error else f"({interval.low:.3f} to {interval.high:.3f})"
    return f"{estimate.mean:.3f} {sure}"


def gain(rows: Iterable[Row], before: Iterable[Row]) -> str:
    """Success of `rows` less that of `before` on the same instances, of all seeds together: instances are strata of their task and seed."""
    found = gained(rows, before)
    return f"{found.mean:+.3f} ({found.interval.low:+.3f} to {found.interval.high:+.3f})"


def gained(rows: Iterable[Row], before: Iterable[Row]) -> Difference:
    """The same as numbers."""
    return compare_paired(_by_instance(rows), _by_instance(before)).difference


def gains_by_seed(rows: Sequence[Row], before: Sequence[Row]) -> list[float]:
    """The same of each seed, mean over tasks. Rows are paired in order. Raises ValueError where two have no instance in common."""
    pairs = zip(rows, before, strict=True)
    return [float(np.mean([values.mean() for values in _gains_by_task(row, other)])) for row, other in pairs]


def over_seeds(values: Sequence[float]) -> tuple[float, Interval | None]:
    """Mean of one value a seed and its 95 % interval by Student's t, of which a single seed has none. A bootstrap over three seeds is too
    narrow: in simulations it called 10 to 22 % of equal arms different, not 5."""
    centre = float(np.mean(values))
    if len(values) < 2:
        return centre, None
    half = float(student_t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return centre, Interval(low=centre - half, high=centre + half)


def verdict(gains: Sequence[float], least: int) -> str:
    """`better` or `worse` where the interval over seeds leaves 0 out; `too few seeds` of fewer than `least`."""
    _, interval = over_seeds(gains)
    if interval is None or len(gains) < least:
        return "too few seeds"
    return "better" if interval.low > 0 else "worse" if interval.high < 0 else "no difference shown"


def summary(rows: Sequence[Row], before: Sequence[Row]) -> dict[str, Any]:
    """What is published of an arm: success of each seed before and after, and the gain in points with its 95 % interval."""
    found = gained(rows, before)
    points = {"gain": found.mean, "low": found.interval.low, "high": found.interval.high}
    return {
        "seeds": [row["seed"] for row in rows],
        "start": [round(mean_success(row), 3) for row in before],
        "after": [round(mean_success(row), 3) for row in rows],
        **{name: round(100 * value, 1) for name, value in points.items()},
        "measured": distinct([*before, *rows]),
    }


def mean_success(row: Row) -> float:
    """Mean over tasks."""
    return macro_average([TaskCount(**count) for count in row["counts"]]).mean


def _gains_by_task(row: Row, before: Row) -> list[Any]:
    """+1, 0 or -1 for each instance that both played, an array a task."""
    ours, theirs, gains = _by_instance([row]), _by_instance([before]), dict[str, list[int]]()
    for key in sorted(ours.keys() & theirs.keys(), key=repr):
        gains.setdefault(key[0], []).append(int(ours[key]) - int(theirs[key]))
    if not gains:
        raise ValueError(f"seed {row['seed']} and seed {before['seed']} have no instance in common: measure both on the same")
    return [np.array(values) for values in gains.values()]


def _by_instance(rows: Iterable[Row]) -> dict[tuple[str, Hashable], bool]:
    return {(f"{task} of seed {row['seed']}", seed): solved for row in rows for task, seed, solved in row["outcomes"]}
