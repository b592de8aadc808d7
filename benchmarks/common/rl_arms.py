"""What the arms of benchmarks/analyses.py come to: each arm's figures, one arm less another with intervals over seeds, the paper's claims
beside what was found, and the tables of that. Nothing is played here.

A row is what analyses.py keeps of an arm and seed: `curve`, the metrics of each round, `env_steps` and, for gains, `outcomes` and `counts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any, Literal

import numpy as np

from benchmarks.common.gains import gains_by_seed, mean_success, over_seeds, verdict
from benchmarks.common.kept import Row
from benchmarks.common.page import Section, page_text
from benchmarks.common.provenance import distinct

LEAST_SEEDS = 3
"""With fewer a figure is preliminary."""
By = Literal["greedy", "learning", "entropy"]
"""What two arms are compared by: greedy success after as many episodes; success of the episodes of learning, up to as many environment
steps; entropy in the last two rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`arm` beside `other`; `paper` is what UI-TARS-2 (arXiv 2509.02544) or the method's own paper says of the first, measured `by`; empty
    where the question is ours."""

    about: str
    arm: str
    other: str
    paper: str = ""
    by: By = "greedy"


CLAIMS = (
    Claim(about="value pretraining", arm="ppo", other="no_pretraining", paper="higher reward in training", by="learning"),
    Claim(about="decoupled λ", arm="fixed_lambda", other="coupled", paper="better (VC-PPO)"),
    Claim(about="length-adaptive λ", arm="ppo", other="fixed_lambda", paper="better (VAPO)"),
    Claim(about="clip-higher", arm="ppo", other="symmetric_clip", paper="keeps exploring: higher entropy (DAPO)", by="entropy"),
    Claim(about="token against step level", arm="ppo", other="step"),
    Claim(about="PPO against GRPO", arm="ppo", other="grpo", paper="higher reward in training", by="learning"),
    Claim(about="PPO against GiGPO", arm="ppo", other="gigpo"),
    Claim(about="PPO against REINFORCE++", arm="ppo", other="reinforce++"),
    Claim(about="PPO against REINFORCE", arm="ppo", other="reinforce"),
    Claim(about="steps compared at states met again, against GRPO", arm="gigpo", other="grpo", paper="better (GiGPO)"),
    Claim(about="credit by forks against REINFORCE", arm="forks", other="reinforce"),
    Claim(about="credit by forks against PPO", arm="forks", other="ppo"),
    Claim(about="credit by forks against GRPO", arm="forks", other="grpo"),
    Claim(about="credit by forks against GiGPO", arm="forks", other="gigpo"),
    Claim(about="mean over tokens against sum over an episode", arm="token_mean", other="ppo"),
    Claim(about="values shifted by the task's mean", arm="offset", other="ppo"),
    Claim(about="shifted values against REINFORCE", arm="offset", other="reinforce"),
    Claim(about="gate against the task's mean, or a constant", arm="gate_task", other="gate"),
    Claim(about="gate against the task's mean, in the quickstart", arm="quickstart_task", other="quickstart"),
    Claim(about="streaming against rounds, in the quickstart", arm="streaming", other="quickstart"),
    Claim(about="the paper's parts against the quickstart's settings", arm="ppo", other="quickstart"),
    Claim(about="RL against replayed samples alone", arm="ppo", other="replay_only"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What the paper saw over the training of its PPO on GUI tasks, of the metric `name`."""

    name: str
    about: str
    paper: Literal["rises", "falls"]


TRENDS = (
    Trend(name="entropy", about="entropy over training", paper="rises"),
    Trend(name="think_tokens_per_step", about="thought tokens a step over training", paper="falls"),
    Trend(name="steps_per_episode", about="steps an episode over training", paper="falls"),
)
TREND_ARM, GUI_DOMAINS = "ppo", ("pointing", "forms")
ENDS = 2
"""Rounds at each end of training whose mean is shown."""
LOSSES = ("loss_of_critic", "loss_by_task")
KEPT = (
    "success",
    *(trend.name for trend in TRENDS),
    "explained_variance",
    "explained_by_task",
    "explained_shifted",
    *LOSSES,
    "critic_steers",
    "kl",
    "clip_fraction_high",
)
"""Of each round, in what is published."""

Rows = Mapping[tuple[str, int], Row]
"""By arm and seed."""


def by_arm(rows: Sequence[Row]) -> dict[tuple[str, int], Row]:
    return {(row["arm"], row["seed"]): row for row in rows}


def paired(arm: str, other: str, rows: Rows) -> tuple[list[Row], list[Row]]:
    """The rows of both for the seeds that both have."""
    seeds = sorted(seed for name, seed in rows if name == arm and (other, seed) in rows)
    return [rows[arm, seed] for seed in seeds], [rows[other, seed] for seed in seeds]


def curve_of(row: Row) -> tuple[list[float], list[float]]:
    """Environment steps so far, and the success at temperature 1 of the episodes of each part: the stored ones, where there are any, then
    each round's, which is played before anything is learned from it. Forks, their replayed steps included, count as steps; whether they
    succeed does not, since they did not begin where the others did. Rounds in which all episodes crashed are left out."""
    rounds = [metrics for metrics in row["curve"] if "success" in metrics]
    parts = [(_env_steps(metrics), metrics["success"]) for metrics in rounds]
    if row["env_steps_stored"]:
        parts.insert(0, (row["env_steps_stored"], row["success_stored"]))
    return np.cumsum([steps for steps, _ in parts]).tolist(), [rate for _, rate in parts]


def _env_steps(metrics: Mapping[str, float]) -> float:
    whole = metrics["steps_per_episode"] * metrics["episodes"]
    return whole + metrics.get("fork_steps", 0.0) + metrics.get("replayed_steps", 0.0)


def success_by_steps(row: Row, up_to: float) -> float:
    """Mean success over the environment steps of learning, up to so many of them."""
    steps, rates = curve_of(row)
    widths = [max(0.0, min(end, up_to) - begin) for begin, end in pairwise([0.0, *steps])]
    return float(np.average(rates, weights=widths))


def ends(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Means of the first and of the last rounds that have a value; None where none has."""
    there = [value for value in values if value is not None]
    return (mean(there[:ENDS]), mean(there[-ENDS:])) if there else None


def ends_of(row: Row, name: str) -> tuple[float, float] | None:
    return ends([metrics.get(name) for metrics in row["curve"]])


def figure(values: Sequence[float], *, scale: float = 1.0, digits: int = 3) -> dict[str, Any]:
    """One value a seed, their mean and its interval; null for a single seed."""
    centre, interval = over_seeds(values)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    said = {"mean": centre, "low": low, "high": high}
    return {"by_seed": [round(scale * value, digits) for value in values]} | {
        name: None if value is None else round(scale * value, digits) for name, value in said.items()
    }


def compared(claim: Claim, rows: Rows) -> dict[str, Any] | None:
    """One arm less the other, by seed and with intervals: greedy success and, up to as many environment steps, success while learning (in
    points), entropy at the end; None where no seed has both. `steps` is the quotient of their environment steps."""
    ours, theirs = paired(claim.arm, claim.other, rows)
    if not ours:
        return None
    pairs = list(zip(ours, theirs, strict=True))
    upto = [min(curve_of(one)[0][-1], curve_of(other)[0][-1]) for one, other in pairs]
    entropies = [(ends_of(one, "entropy"), ends_of(other, "entropy")) for one, other in pairs]
    by: dict[By, list[float]] = {
        "greedy": gains_by_seed(ours, theirs),
        "learning": [success_by_steps(one, end) - success_by_steps(other, end) for (one, other), end in zip(pairs, upto, strict=True)],
        "entropy": [one[1] - other[1] for one, other in entropies if one is not None and other is not None],
    }
    points = {"greedy": (100.0, 1), "learning": (100.0, 1), "entropy": (1.0, 3)}
    found = verdict(by[claim.by], LEAST_SEEDS) if by[claim.by] else "not measured"
    return {
        "domain": ours[0]["domain"],
        "about": claim.about,
        "arm": claim.arm,
        "other": claim.other,
        "paper": claim.paper,
        "by": claim.by,
        "seeds": [row["seed"] for row in ours],
        "preliminary": len(ours) < LEAST_SEEDS,
        **{name: figure(values, scale=points[name][0], digits=points[name][1]) for name, values in by.items() if values},
        "steps": round(sum(row["env_steps"] for row in ours) / sum(row["env_steps"] for row in theirs), 2),
        "found": _of_claim(found) if claim.paper else found,
        "measured": distinct([*ours, *theirs]),
    }


def trended(trend: Trend, rows: Rows) -> dict[str, Any] | None:
    """How the paper's arm changed over training, by seed and with its interval; None where no seed has it, and of games, of which the
    paper does not say it."""
    found = [(row, ends_of(row, trend.name)) for (arm, _), row in sorted(rows.items()) if arm == TREND_ARM]
    changes = [pair[1] - pair[0] for _, pair in found if pair is not None]
    mine = [row for row, pair in found if pair is not None]
    if not mine or mine[0]["domain"] not in GUI_DOMAINS:
        return None
    sign = 1 if trend.paper == "rises" else -1
    return {
        "domain": mine[0]["domain"],
        "about": trend.about,
        "arm": TREND_ARM,
        "paper": f"{trend.paper} on GUI tasks",
        "seeds": [row["seed"] for row in mine],
        "preliminary": len(mine) < LEAST_SEEDS,
        "change": figure(changes),
        "found": _of_claim(verdict([sign * change for change in changes], LEAST_SEEDS)),
        "measured": distinct(mine),
    }


def _of_claim(found: str) -> str:
    """Of a claim that the first of two is better. A difference that does not show may still exist."""
    return {"better": "holds", "worse": "does not hold: the opposite", "no difference shown": "not shown"}.get(found, found)


def published(domain: str, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What goes into docs/measured: a row an arm, with its curves by seed, and a row a claim."""
    by, found = by_arm(rows), dict[str, dict[str, Any]]()
    for arm in dict.fromkeys(row["arm"] for row in rows if row["arm"] != "start"):
        mine, before = paired(arm, "start", by)
        if not mine:
            continue
        gain = figure(gains_by_seed(mine, before), scale=100, digits=1)
        steers, lambdas, explained = steering(mine)
        found[f"{domain} {arm}"] = {
            "domain": domain,
            "arm": arm,
            "seeds": [row["seed"] for row in mine],
            "preliminary": len(mine) < LEAST_SEEDS,
            "start": [round(mean_success(row), 3) for row in before],
            "after": [round(mean_success(row), 3) for row in mine],
            "instances": sum(count["num_episodes"] for count in mine[0]["counts"]),
            "gain": gain["mean"],
            "low": gain["low"],
            "high": gain["high"],
            "critic": {"steers": steers, "lambda": lambdas, "explained": explained},
            "by_seed": [_of_seed(row) for row in mine],
            "measured": distinct([*before, *mine]),
        }
    claims = [(claim.about, compared(claim, by)) for claim in CLAIMS] + [(trend.about, trended(trend, by)) for trend in TRENDS]
    return found | {f"{domain}: {about}": row for about, row in claims if row}


def _of_seed(row: Row) -> dict[str, Any]:
    """Null where a round does not have a figure, since all of its episodes crashed."""
    costs = {name: round(row.get(name, 0)) for name in ("episodes", "env_steps", "replayed_steps", "wall_s", "cpu_s")}
    kept = [name for name in KEPT if any(name in metrics for metrics in row["curve"])]
    curve = {name: [round(metrics[name], 3) if name in metrics else None for metrics in row["curve"]] for name in kept}
    return {"seed": row["seed"], **costs, "curve": curve}


def steering(rows: Sequence[Row]) -> tuple[str, str, str]:
    """In how many of the rounds of all seeds the critic steered, how many runs its gate blocked, the least and the greatest lambda of any
    episode that it steered by, and the means of what it explained of a round's returns before it was fitted to them and of what the mean
    return of a task's other episodes did; empty for what has no critic."""
    rounds = [metrics for row in rows for metrics in row.get("curve", []) if "critic_steers" in metrics]
    if not rounds:
        return "", "", ""
    num_blocked = sum(row.get("is_blocked", False) for row in rows)
    steered = [metrics for metrics in rounds if metrics["critic_steers"]]
    share = f"{len(steered)} of {len(rounds)} rounds" + (f", {num_blocked} of {len(rows)} blocked" if num_blocked else "")
    low = min((metrics["lambda_policy_min"] for metrics in steered), default=None)
    high = max((metrics["lambda_policy_max"] for metrics in steered), default=None)
    explained = [mean(metrics.get(name, 0.0) for metrics in rounds) for name in ("explained_variance", "explained_by_task")]
    return share, "" if low is None or high is None else f"{low:.2f} to {high:.2f}", f"{explained[0]:.2f}, {explained[1]:.2f}"


def sections(domain: str, found: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """A domain's arms and claims, of published rows; the existing ones."""
    of_domain = [row for row in found.values() if row["domain"] == domain]
    arms, claims = [row for row in of_domain if "about" not in row], [row for row in of_domain if "about" in row]
    all_of_them = [
        Section(
            title=f"{domain}, means over seeds: greedy success on holdout instances before and after, mean over tasks, gains in points "
            f"(95 %); entropy and thought length in the first {ENDS} rounds → in the last {ENDS}",
            columns=("arm", "seeds", "start", "end", "gain", "environment steps", "critic steers", "λ", "entropy", "thought tokens a step"),
            lines=[
                (
                    f"`{row['arm']}`",
                    _seeds(row),
                    f"{mean(row['start']):.3f}",
                    f"{mean(row['after']):.3f}",
                    _interval(row["gain"], row["low"], row["high"], "+.1f"),
                    _steps(row),
                    row["critic"]["steers"],
                    row["critic"]["lambda"],
                    _ends(row, "entropy"),
                    _ends(row, "think_tokens_per_step"),
                )
                for row in arms
            ],
        ),
        Section(
            title=f"{domain}, one arm less another (95 %): greedy success in points; success of the episodes of learning up to as many "
            f"environment steps, in points; entropy in the last {ENDS} rounds; and of `{TREND_ARM}`, its last rounds less its first",
            columns=("", "arms", "seeds", "greedy", "learning", "entropy", "steps, quotient", "the paper", "here"),
            lines=[_claim(row) for row in claims],
        ),
    ]
    return [section for section in all_of_them if section.lines]


def _claim(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the second table. Of what was seen over training the change stands in the last column, before what it comes to."""
    if "change" in row:
        change = _figure(row, "change", "+.2f")
        return row["about"], f"`{row['arm']}`", _seeds(row), "", "", "", "", row["paper"], f"{change}: {row['found']}"
    figures = (_figure(row, "greedy", "+.1f"), _figure(row, "learning", "+.1f"), _figure(row, "entropy", "+.2f"))
    arms = f"`{row['arm']}` − `{row['other']}`"
    return row["about"], arms, _seeds(row), *figures, f"{row['steps']:.2f}", row["paper"], f"{row['by']}: {row['found']}"


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What docs/rl.md says of published rows, between its marks."""
    if not found:
        return "No arm has been measured to its end yet.\n"
    domains = dict.fromkeys(row["domain"] for row in found.values())
    return page_text([section for domain in domains for section in sections(domain, found)], found)


def _seeds(row: Mapping[str, Any]) -> str:
    return str(len(row["seeds"])) + (", preliminary" if row["preliminary"] else "")


def _figure(row: Mapping[str, Any], name: str, form: str) -> str:
    return _interval(row[name]["mean"], row[name]["low"], row[name]["high"], form) if name in row else ""


def _interval(centre: float, low: float | None, high: float | None, form: str) -> str:
    return f"{centre:{form}}" + (f" ({low:{form}} to {high:{form}})" if low is not None and high is not None else "")


def _steps(row: Mapping[str, Any]) -> str:
    steps, replayed = (round(mean(each.get(name, 0) for each in row["by_seed"])) for name in ("env_steps", "replayed_steps"))
    return f"{steps:,}" + (f", {replayed:,} of them replayed" if replayed else "")


def _ends(row: Mapping[str, Any], name: str) -> str:
    pairs = [pair for each in row["by_seed"] if (pair := ends(each["curve"].get(name, []))) is not None]
    return f"{mean(first for first, _ in pairs):.2f} → {mean(last for _, last in pairs):.2f}" if pairs else ""
