"""How far a judge that may err agrees with one that does not: thresholds from a target precision, precision, recall, F1 and calibration.
Pure functions of scores and truths; who is measured on what is assets/judging.py's business, pictures are judge_charts.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warehouse.evaluation.choosing import require_choosable
from warehouse.evaluation.statistics import Interval, wilson

ALL_DOMAINS = "all"
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Reported beside the chosen one."""
NOTHING_PASSES = 1.0
"""The threshold of a judge that cannot be trusted: no judge that may err gives a score of 1."""
BORROWED = "the threshold is that of all domains together"
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
    """The threshold that routing uses, and why it is that. It is borrowed where a domain was measured on too few: then it is what all
    domains together give."""

    threshold: float
    reason: str
    is_borrowed: bool = False


def confusion(words: Iterable[Word], threshold: float) -> Confusion:
    counts = {(passed, truth): 0 for passed in (True, False) for truth in (True, False)}
    for word in words:
        counts[word.score >= threshold, word.truth] += 1
    return Confusion(
        threshold=threshold,
        true_positive=counts[True, True],
        false_positive=counts[True, False],
        false_negative=counts[False, True],
        true_negative=counts[False, False],
    )


def choose_threshold(words: Sequence[Word], target: float, min_passed: int) -> Choice:
    """The lowest score from which on the judge is right about at least `target` of what passes, with at least `min_passed` of these: by the
    lower end of the 95 % interval where any score gets there, else by the share itself, which few episodes flatter. False positives poison
    SFT, so whoever was not measured on enough, or never gets there, passes nothing. Raises ReportedOnly for words that are reported."""
    require_choosable({word.split for word in words}, "a judge's threshold")
    if sum(word.truth for word in words) < min_passed:
        return Choice(
            threshold=NOTHING_PASSES,
            reason=f"it abstains: measured on {sum(word.truth for word in words)} good episodes, of which {min_passed} are needed",
        )
    ordered = sorted(words, key=lambda word: -word.score)
    best: Confusion | None = None
    proved: Confusion | None = None
    num_good = 0
    for place, word in enumerate(ordered, start=1):
        num_good += word.truth
        is_edge = place == len(ordered) or ordered[place].score < word.score
        if is_edge and place >= min_passed and num_good / place >= target:
            best = confusion(words, word.score)
            proved = best if wilson(num_good, place).low >= target else proved
    if best is None or best.precision is None:
        return Choice(
            threshold=NOTHING_PASSES,
            reason=f"it abstains: no threshold gives a precision of {target:g} to {min_passed} of {len(words)} measured episodes",
        )
    at = proved or best
    how = "the lowest that proves a precision" if proved else "not proved, but the lowest that gives a precision"
    return Choice(
        threshold=at.threshold,
        reason=f"{how} of {target:g}: {at.precision or 0.0:.3f} ({at.precision_interval.low:.3f} to {at.precision_interval.high:.3f}) of "
        f"{at.num_passed} that pass, of {len(words)} measured; recall {at.recall or 0.0:.3f}",
    )


def choose_thresholds(words: Sequence[Word], domains: Iterable[str], target: float, min_passed: int) -> dict[str, Choice]:
    """A threshold for each of these domains: its own where at least `min_passed` of its episodes are known to be good, else that of all
    domains together."""
    pooled = choose_threshold(words, target, min_passed)
    chosen = {}
    for domain in sorted(set(domains)):
        own = [word for word in words if word.domain == domain]
        num_good = sum(word.truth for word in own)
        if num_good >= min_passed:
            chosen[domain] = choose_threshold(own, target, min_passed)
        else:
            reason = f"{BORROWED} ({num_good} good ones of {domain} are known, of which {min_passed} are needed): {pooled.reason}"
            chosen[domain] = Choice(threshold=pooled.threshold, reason=reason, is_borrowed=True)
    return chosen


def confusion_by_domain(words: Iterable[Word], thresholds: Mapping[str, float]) -> Confusion:
    """The result at each domain's own threshold; the one reported is the lowest."""
    of = list(words)
    each = [confusion([word for word in of if word.domain == name], thresholds[name]) for name in sorted({word.domain for word in of})]
    return Confusion(
        threshold=min((at.threshold for at in each), default=NOTHING_PASSES),
        true_positive=sum(at.true_positive for at in each),
        false_positive=sum(at.false_positive for at in each),
        false_negative=sum(at.false_negative for at in each),
        true_negative=sum(at.true_negative for at in each),
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
    words: Sequence[Word], *, judge: str, judge_version: str, reference: str, chosen: Mapping[str, float], target: float
) -> list[dict[str, Any]]:
    """Rows of `judge_reports`: for each split, each domain and all of them together, every threshold and the chosen one, which is `chosen`
    for the domain. Of all together the chosen row is what each domain's own gives."""
    rows = []
    for split in sorted({word.split for word in words}):
        of_split = [word for word in words if word.split == split]
        domains = sorted({word.domain for word in of_split})
        groups = {ALL_DOMAINS: of_split} | {name: [word for word in of_split if word.domain == name] for name in domains}
        for domain, of_domain in groups.items():
            common = {
                "judge": judge,
                "judge_version": judge_version,
                "reference": reference,
                "split": split,
                "domain": domain,
                "target_precision": target,
                "brier": brier(of_domain),
                "calibration_error": calibration_error(of_domain),
            }
            at = confusion_by_domain(of_domain, chosen)
            tried = {threshold: confusion(of_domain, threshold) for threshold in THRESHOLDS} | {at.threshold: at}
            rows += [common | _row(tried[each]) | {"is_chosen": each == at.threshold} for each in sorted(tried)]
    return rows


def _row(counts: Confusion) -> dict[str, Any]:
    return {
        "threshold": counts.threshold,
        "num_true_positive": counts.true_positive,
        "num_false_positive": counts.false_positive,
        "num_false_negative": counts.false_negative,
        "num_true_negative": counts.true_negative,
        "precision": counts.precision,
        "recall": counts.recall,
        "f1": counts.f1,
    }
