"""How sure we are of a success rate: intervals, macro-averages over tasks, differences, and the paired comparison behind the release gate.

Pure functions of counts and outcomes, no tables, no plotting. Success is always averaged over tasks first, so that a task with many
episodes does not outvote one with few; its uncertainty is stratified by task. All intervals are two-sided.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount:
    """Episodes with a reward, and how many of them were solved, on one task."""

    task: str
    num_success: int
    num_episodes: int

    @property
    def rate(self) -> float:
        return self.num_success / self.num_episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A macro-averaged success rate. `standard_error` is the plug-in error stratified by task, the ± that is printed beside it."""

    mean: float
    standard_error: float
    interval: Interval
    num_tasks: int
    num_episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Second minus first."""

    mean: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Candidate against incumbent on the same instances; `difference` is candidate minus incumbent, macro-averaged over tasks."""

    difference: Difference
    num_pairs: int
    candidate_only: int
    """instances that only the candidate solves."""
    incumbent_only: int

    @property
    def num_ties(self) -> int:
        return self.num_pairs - self.candidate_only - self.incumbent_only

    @property
    def p_worse(self) -> float:
        """Anytime-valid: were the candidate no worse, the chance that this ever falls below α, however often one looks, is at most α."""
        return 1 / max(1.0, e_value(self.incumbent_only, self.candidate_only, self.num_ties))

    def p_within(self, tolerance: float) -> float:
        """Anytime-valid, against a candidate that is worse by `tolerance` or more: small where it is proved to be no worse than that."""
        return 1 / max(1.0, e_value(self.candidate_only, self.incumbent_only, self.num_ties, tolerance))

    @property
    def p_two_sided(self) -> float:
        """Exact McNemar: chance of a result at least so far from even, either way. For one look, decided on before."""
        tails = mcnemar_exact(self.candidate_only, self.incumbent_only), mcnemar_exact(self.incumbent_only, self.candidate_only)
        return min(1.0, 2 * min(tails))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    released: bool
    reason: str


@cache
def z_value(confidence: float) -> float:
    """The normal quantile of a two-sided interval: 1.96 for 0.95. Raises ValueError outside (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie strictly between 0 and 1, e.g. 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def wilson(num_success: float, num_episodes: int, confidence: float = CONFIDENCE) -> Interval:
    """Score interval of a proportion (Wilson 1927). No episodes give [0, 1]. Raises ValueError for impossible counts."""
    if not 0 <= num_success <= num_episodes:
        raise ValueError(f"{num_success} successes of {num_episodes} episodes: successes must lie between 0 and the number of episodes")
    z = z_value(confidence)
    if num_episodes == 0:
        return Interval(low=0.0, high=1.0)
    rate, n = num_success / num_episodes, num_episodes
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if num_success == 0 else centre - half
    high = 1.0 if num_success == num_episodes else centre + half
    return Interval(low=low, high=high)


def macro_average(counts: Sequence[TaskCount], confidence: float = CONFIDENCE) -> Estimate:
    """Mean of the tasks' success rates. Tasks without an episode are left out; with no task at all the mean is NaN.

    The interval recovers the variance of the mean from each task's Wilson limits (MOVER: Zou & Donner 2008), so that it stays honest
    where a task is solved always or never and the plug-in standard error would be 0.
    """
    seen = [count for count in counts if count.num_episodes > 0]
    if not seen:
        return Estimate(mean=math.nan, standard_error=math.nan, interval=Interval(low=0.0, high=1.0), num_tasks=0, num_episodes=0)
    share = 1 / len(seen)
    mean = sum(count.rate for count in seen) * share
    variance = sum(count.rate * (1 - count.rate) / count.num_episodes for count in seen)
    limits = [wilson(count.num_success, count.num_episodes, confidence) for count in seen]
    below = math.sqrt(sum((count.rate - limit.low) ** 2 for count, limit in zip(seen, limits, strict=True)))
    above = math.sqrt(sum((limit.high - count.rate) ** 2 for count, limit in zip(seen, limits, strict=True)))
    return Estimate(
        mean=mean,
        standard_error=math.sqrt(variance) * share,
        interval=Interval(low=mean - share * below, high=mean + share * above),
        num_tasks=len(seen),
        num_episodes=sum(count.num_episodes for count in seen),
    )


@cache
def student_value(confidence: float, degrees: int) -> float:
    """As z_value, of Student's distribution: exact for one and two degrees of freedom, else by the expansion in their inverse (Abramowitz
    & Stegun 1964, 26.7.5), within 0.2 %. Raises ValueError for less than one."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom; there must be at least one, so at least two values")
    z = z_value(confidence)
    if degrees == 1:
        return math.tan(math.pi * confidence / 2)
    if degrees == 2:
        return confidence * math.sqrt(2 / (1 - confidence * confidence))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(degrees) ** power for power, term in enumerate(terms, start=1))


def score_interval(mean: float, deviation: float | None, num: int, best: float, confidence: float = CONFIDENCE) -> Interval:
    """Of the mean of `num` scores that are never negative, from their sample standard deviation: Student's, cut off at 0. Where all are
    alike, or there is one, it would be sure of anything: there it is the score interval of a share of `best`, the most that is scored.
    Raises ValueError where there is no score, or the mean is not in [0, best]."""
    if num < 1 or not 0 <= mean <= best:
        raise ValueError(f"a mean of {mean} over {num} scores between 0 and {best}: give at least one score, none of them outside")
    if not deviation:
        share = wilson(mean / best * num, num, confidence) if best else Interval(low=0.0, high=0.0)
        return Interval(low=share.low * best, high=share.high * best)
    half = student_value(confidence, num - 1) * deviation / math.sqrt(num)
    return Interval(low=max(0.0, mean - half), high=mean + half)


def mean_of_means(each: Sequence[tuple[float, Interval]]) -> tuple[float, Interval]:
    """The mean of independent means, and its interval, whose variance is recovered from theirs as in macro_average. Raises ValueError for
    none."""
    if not each:
        raise ValueError("there is nothing to take the mean of")
    share = 1 / len(each)
    mean = share * sum(one for one, _ in each)
    below = share * math.hypot(*(one - interval.low for one, interval in each))
    above = share * math.hypot(*(interval.high - one for one, interval in each))
    return mean, Interval(low=mean - below, high=mean + above)


def difference(first: Estimate, second: Estimate) -> Difference:
    """`second - first` for two independent sets of episodes, by the same recovery of variance (Newcombe 1998, method 10)."""
    mean = second.mean - first.mean
    below = math.hypot(second.mean - second.interval.low, first.interval.high - first.mean)
    above = math.hypot(second.interval.high - second.mean, first.mean - first.interval.low)
    return Difference(mean=mean, interval=Interval(low=mean - below, high=mean + above))


def paired_difference(
    candidate: Mapping[tuple[str, Hashable], bool], incumbent: Mapping[tuple[str, Hashable], bool], confidence: float = CONFIDENCE
) -> Difference:
    """`candidate - incumbent` on the instances that both have, macro-averaged over tasks: the score interval of paired proportions in each
    task (Newcombe 1998, Improved confidence intervals for the difference between binomial proportions based on paired data, method 10),
    and the variance of their mean recovered from the limits, as in macro_average. Keys are (task, instance)."""
    counts: dict[str, Counter[tuple[bool, bool]]] = {}
    for key in candidate.keys() & incumbent.keys():
        counts.setdefault(key[0], Counter())[bool(candidate[key]), bool(incumbent[key])] += 1
    each = [_paired_limits(of, confidence) for of in counts.values()]
    share = 1 / len(each)
    mean = share * sum(gain for gain, _, _ in each)
    below, above = (share * math.hypot(*(limits[side] for limits in each)) for side in (1, 2))
    return Difference(mean=mean, interval=Interval(low=mean - below, high=mean + above))


def _paired_limits(of: Counter[tuple[bool, bool]], confidence: float) -> tuple[float, float, float]:
    """One task's gain, and how far its interval goes below and above it."""
    num = of.total()
    both, ours, theirs, neither = of[True, True], of[True, False], of[False, True], of[False, False]
    first, second = wilson(both + ours, num, confidence), wilson(both + theirs, num, confidence)
    rate, other = (both + ours) / num, (both + theirs) / num
    margins = math.sqrt((both + ours) * (theirs + neither) * (both + theirs) * (ours + neither))
    product = both * neither - ours * theirs
    corrected = max(min(product, 0), product - num / 2)
    together = corrected / margins if margins else 0.0
    return (rate - other, _apart(rate - first.low, second.high - other, together), _apart(first.high - rate, other - second.low, together))


def _apart(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))


def mcnemar_exact(wins: int, losses: int) -> float:
    """One-sided exact test on the discordant pairs, in integers: P(X <= wins) for X ~ Binomial(wins + losses, ½)."""
    num = wins + losses
    return sum(math.comb(num, k) for k in range(wins + 1)) / (1 << num)


_BETS = 0.75 * (np.arange(1000) + 0.5) / 1000
"""Shares of the capital that are staked, mixed evenly: best for winners of 50 to 87.5 % of the discordant pairs."""


def e_value(wins: int, losses: int, ties: int, margin: float = 0.0) -> float:
    """Evidence that pairs gain more than `-margin` on average: the capital of a player who starts with 1 and stakes the share λ of it on
    each pair's gain g ∈ {1, 0, -1}, so that a pair multiplies it by 1 + λ (g + margin), averaged over λ in (0, 3/4).

    Where the mean gain is at most `-margin`, this is a nonnegative supermartingale, and the chance that it ever reaches 1/α is at most α
    (Ville 1939): it may be looked at after every pair. The test by betting of Waudby-Smith & Ramdas 2024 (Estimating means of bounded
    random variables by betting, section 4); with margin 0 the mixture SPRT on discordant pairs (Robbins 1970), whose mixture over
    the share of wins is uniform on (1/2, 7/8). Depends on the counts alone, not on the order of the pairs. Infinite where it overflows.
    """
    logs = wins * np.log1p(_BETS * (1 + margin)) + ties * np.log1p(_BETS * margin) + losses * np.log1p(_BETS * (margin - 1))
    highest = float(logs.max())
    total = highest + math.log(float(np.exp(logs - highest).mean()))
    return math.exp(total) if total < math.log(sys.float_info.max) else math.inf


def compare_paired(
    candidate: Mapping[tuple[str, Hashable], bool],
    incumbent: Mapping[tuple[str, Hashable], bool],
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = 2000,
    seed: int = 0,
) -> PairedComparison:
    """Compare two policies on the instances both have a verdict for; keys are (task, instance), values whether it was solved.

    The interval is a percentile bootstrap over instances within each task, with a generator seeded by `seed`. Where the pairs of every
    task are all alike, each resample is too, and a bootstrap would be sure of anything after two episodes: there it is the score interval
    of paired_difference. Raises ValueError when there is no common instance.
    """
    common = sorted(candidate.keys() & incumbent.keys(), key=repr)
    if not common:
        raise ValueError("the two policies have no instance in common: evaluate both on the same tasks and seeds")
    gains: dict[str, list[int]] = {}
    for key in common:
        gains.setdefault(key[0], []).append(int(candidate[key]) - int(incumbent[key]))
    is_alike = all(len(set(values)) == 1 for values in gains.values())
    wins = sum(gain > 0 for values in gains.values() for gain in values)
    losses = sum(gain < 0 for values in gains.values() for gain in values)
    return PairedComparison(
        difference=Difference(
            mean=sum(sum(values) / len(values) for values in gains.values()) / len(gains),
            interval=paired_difference(candidate, incumbent, confidence).interval
            if is_alike
            else _bootstrap(list(gains.values()), confidence, num_resamples, seed),
        ),
        num_pairs=len(common),
        candidate_only=wins,
        incumbent_only=losses,
    )


def release_gate(comparison: PairedComparison, *, significance: float, tolerance: float, was_refused: bool = False) -> GateDecision:
    """Released if it does not lose. The candidate loses when it is worse on average and either the anytime-valid test says so at
    `significance` (one-sided), or it is worse by more than `tolerance`, whatever the test can prove with so few episodes.

    Looking again with more episodes promotes nothing by luck: a candidate that an earlier look refused (`was_refused`) is released only
    when it is proved at `significance` not to be worse by `tolerance`.
    """
    gain = comparison.difference
    facts = (
        f"{gain.mean:+.3f} [{gain.interval.low:+.3f}, {gain.interval.high:+.3f}] on {comparison.num_pairs} pairs "
        f"({comparison.candidate_only} won, {comparison.incumbent_only} lost; anytime-valid p of being worse {comparison.p_worse:.3f})"
    )
    if gain.mean < 0 and comparison.p_worse < significance:
        return GateDecision(released=False, reason=f"the candidate loses: {facts}, which is below {significance:g}")
    if gain.mean < -tolerance:
        return GateDecision(released=False, reason=f"the candidate loses: {facts}, worse by more than {tolerance:g}")
    if was_refused and not (within := comparison.p_within(tolerance)) < significance:
        words = f"and that it is not worse by {tolerance:g} is not proved (p {within:.3f}, needed: below {significance:g})"
        return GateDecision(released=False, reason=f"an earlier look refused the candidate, {words}: {facts}")
    return GateDecision(released=True, reason=f"the candidate does not lose: {facts}")


def _bootstrap(strata: Sequence[Sequence[int]], confidence: float, num_resamples: int, seed: int) -> Interval:
    rng = np.random.default_rng(seed)
    means = np.zeros(num_resamples)
    for values in strata:
        array = np.asarray(values)
        means += array[rng.integers(len(array), size=(num_resamples, len(array)))].mean(axis=1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means / len(strata), [tail, 100 - tail])
    return Interval(low=float(low), high=float(high))
