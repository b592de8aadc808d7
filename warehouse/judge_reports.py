"""How far a judge that may err agrees with one that does not: thresholds from a target precision, precision, recall, F1 and calibration.
Pure functions of scores and truths; who is measured on what is assets/judging.py's business, pictures are judge_charts.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from warehouse.statistics import Interval, wilson

ALL_DOMAINS = "all"
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Reported beside the chosen one."""
NOTHING_PASSES = 1.0
"""The threshold of a judge that cannot be trusted: no judge that may err gives a score of 1."""
NUM_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A judge's score of one episode, and the truth."""

    domain: str
    split: str
    score: float
    truth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """A threshold's counts."""

    threshold: float
    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    @property
    def num_passed(self) -> int:
        return self.true_positive + self.false_positive

    @property
    def precision(self) -> float | None:
        return self.true_positive / self.num_passed if self.num_passed else None

    @property
    def recall(self) -> float | None:
        num = self.true_positive + self.false_negative
        return self.true_positive / num if num else None

    @property
    def f1(self) -> float | None:
        wrong = self.false_positive + self.false_negative
        return 2 * self.true_positive / (2 * self.true_positive + wrong) if self.true_positive + wrong else None

    @property
    def precision_interval(self) -> Interval:
        return wilson(self.true_positive, self.num_passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The threshold that routing uses, and why it is that."""

    threshold: float
    reason: str


def confusion(words: Iterable[Word], threshold: float) -> Confusion:
    counts = {(passed, truth): 0 for passed in (True, False) for truth in (True, False)}
    for word in words:
        counts[word.score >= threshold, word.truth] += 1
    return Confusion(
        threshold=threshold, true_positive=counts[True, True], false_positive=counts[True, False], false_negative=counts[False, True],
        true_negative=counts[False, False],
    )


def choose_threshold(words: Sequence[Word], target: float, min_passed: int) -> Choice:
    """The lowest score from which on the judge is right about at least `target` of what passes, with at least `min_passed` of these: false
    positives poison SFT, so whoever was not measured on enough, or never gets there, passes nothing."""
    if sum(word.truth for word in words) < min_passed:
        return Choice(
            threshold=NOTHING_PASSES, reason=f"nothing passes: measured on {sum(word.truth for word in words)} good episodes, of which "
            f"{min_passed} are needed",
        )  # fmt: skip
    ordered = sorted(words, key=lambda word: -word.score)
    best: Confusion | None = None
    num_good = 0
    for place, word in enumerate(ordered, start=1):
        num_good += word.truth
        is_edge = place == len(ordered) or ordered[place].score < word.score
        if is_edge and place >= min_passed and num_good / place >= target:
            best = confusion(words, word.score)
    if best is None or best.precision is None:
        return Choice(
            threshold=NOTHING_PASSES,
            reason=f"nothing passes: no threshold gives a precision of {target:g} to {min_passed} of {len(words)} measured episodes",
        )
    return Choice(
        threshold=best.threshold,
        reason=f"the lowest that gives a precision of {target:g}: {best.precision:.3f} of {best.num_passed} that pass, of "
        f"{len(words)} measured; recall {best.recall or 0.0:.3f}",
    )


def brier(words: Sequence[Word]) -> float:
    """Mean squared distance of score and truth (Brier 1950)."""
    return sum((word.score - word.truth) ** 2 for word in words) / len(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Episodes of similar score: their mean score, and the share that is good."""

    num: int
    score: float
    good: float


def bins(words: Sequence[Word]) -> list[Bin]:
    """Ten bins of the score of equal width, the empty ones left out."""
    found = []
    for place in range(NUM_BINS):
        inside = [word for word in words if min(NUM_BINS - 1, int(word.score * NUM_BINS)) == place]
        if inside:
            good = sum(word.truth for word in inside) / len(inside)
            found.append(Bin(num=len(inside), score=sum(word.score for word in inside) / len(inside), good=good))
    return found


def calibration_error(words: Sequence[Word]) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599): distance of mean score and truth, averaged over bins by size."""
    return sum(each.num * abs(each.score - each.good) for each in bins(words)) / len(words)


def report_rows(
    words: Sequence[Word], *, judge: str, judge_version: str, reference: str, chosen: float, target: float
) -> list[dict[str, Any]]:
    """Rows of `judge_reports`: for each split, each domain and all of them together, every threshold and the chosen one."""
    rows = []
    for split in sorted({word.split for word in words}):
        of_split = [word for word in words if word.split == split]
        domains = sorted({word.domain for word in of_split})
        groups = {ALL_DOMAINS: of_split} | {name: [word for word in of_split if word.domain == name] for name in domains}
        for domain, of_domain in groups.items():
            common = {
                "judge": judge, "judge_version": judge_version, "reference": reference, "split": split, "domain": domain,
                "target_precision": target, "brier": brier(of_domain), "calibration_error": calibration_error(of_domain),
            }  # fmt: skip
            rows += [
                common | _row(confusion(of_domain, threshold)) | {"is_chosen": threshold == chosen}
                for threshold in sorted({*THRESHOLDS, chosen})
            ]
    return rows


def _row(counts: Confusion) -> dict[str, Any]:
    return {
        "threshold": counts.threshold, "num_true_positive": counts.true_positive, "num_false_positive": counts.false_positive,
        "num_false_negative": counts.false_negative, "num_true_negative": counts.true_negative, "precision": counts.precision,
        "recall": counts.recall, "f1": counts.f1,
    }  # fmt: skip
