"""Thresholds, agreement and calibration of judges, against figures worked out by hand."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from warehouse.core.errors import ReportedOnly
from warehouse.evaluation.judge_reports import (
    NOTHING_PASSES,
    Word,
    bins,
    brier,
    calibration_error,
    choose_threshold,
    choose_thresholds,
    confusion,
    report_rows,
)
from warehouse.reporting.judge_charts import judge_chart


def words(*pairs: tuple[float, int], domain: str = "forms", split: str = "eval") -> list[Word]:
    return [Word(domain=domain, split=split, score=score, truth=bool(truth)) for score, truth in pairs]


SOME = words((0.9, 1), (0.8, 1), (0.7, 0), (0.6, 1), (0.4, 0), (0.2, 1), (0.1, 0))


def test_counts_of_a_threshold():
    at = confusion(SOME, 0.6)
    assert (at.true_positive, at.false_positive, at.false_negative, at.true_negative) == (3, 1, 1, 2)
    assert (at.precision, at.recall, at.f1) == (0.75, 0.75, 0.75)
    nothing = confusion(SOME, 1.0)
    assert nothing.precision is None and nothing.recall == 0.0 and nothing.f1 == 0.0
    assert confusion(words((0.3, 0)), 0.5).f1 is None


@pytest.mark.parametrize(("target", "threshold"), [(1.0, 0.8), (0.75, 0.6), (0.6, 0.2), (0.5, 0.1)])
def test_the_threshold_is_the_lowest_that_gives_the_precision(target: float, threshold: float):
    choice = choose_threshold(SOME, target, min_passed=2)
    assert choice.threshold == threshold
    assert (confusion(SOME, threshold).precision or 0) >= target


def test_no_threshold_is_chosen_by_what_is_only_reported():
    for split in ("holdout", "report"):
        with pytest.raises(ReportedOnly, match=f"a judge's threshold would read the split {split}, which is only reported"):
            choose_thresholds([*SOME, *words((0.9, 0), split=split)], ["forms"], 0.75, 2)


def test_ties_pass_or_fail_together():
    tied = words((0.9, 1), (0.5, 1), (0.5, 0), (0.5, 0), (0.1, 1))
    assert choose_threshold(tied, 0.6, min_passed=1).threshold == 0.1
    assert choose_threshold(tied[:4], 0.6, min_passed=1).threshold == 0.9


def test_whoever_cannot_be_believed_passes_nothing():
    few = choose_threshold(words((0.9, 1), (0.8, 1)), 0.9, min_passed=5)
    assert few.threshold == NOTHING_PASSES and "measured on 2 good episodes, of which 5 are needed" in few.reason
    wrong = choose_threshold(words(*[(0.9, 0)] * 10, *[(0.1, 1)] * 10), 0.9, min_passed=5)
    assert wrong.threshold == NOTHING_PASSES and "no threshold gives a precision of 0.9" in wrong.reason
    assert choose_threshold([], 0.9, min_passed=5).threshold == NOTHING_PASSES


def test_a_precision_is_proved_where_there_are_enough_and_else_said_not_to_be():
    enough = words(*[(0.9, 1)] * 80, *[(0.5, 1)] * 30, *[(0.5, 0)] * 2)
    assert sum(word.truth for word in enough) / len(enough) > 0.95, "the share itself would let all pass"
    proved = choose_threshold(enough, 0.95, min_passed=20)
    assert proved.threshold == 0.9 and "the lowest that proves a precision of 0.95: 1.000 (0.954 to 1.000) of 80" in proved.reason
    few = choose_threshold(words(*[(0.9, 1)] * 30), 0.95, min_passed=20)
    assert few.threshold == 0.9 and few.reason.startswith("not proved, but the lowest that gives a precision of 0.95: 1.000 (0.886 to")


def test_a_domain_has_a_threshold_of_its_own_where_enough_is_known_of_it():
    """A judge that is sure of forms when it should not be, and never sure of pointing when it could be."""
    forms = words(*[(0.9, 1)] * 25, *[(0.6, 0)] * 25)
    pointing = words(*[(0.4, 1)] * 30, *[(0.2, 0)] * 8, domain="pointing")
    hopeless = words(*[(0.9, 0)] * 25, *[(0.5, 1)] * 25, domain="games")
    measured = [*forms, *pointing, *hopeless, *words((0.9, 1), domain="web")]
    chosen = choose_thresholds(measured, ["forms", "pointing", "games", "web"], 0.9, min_passed=20)
    assert {name: each.threshold for name, each in chosen.items()} == {"forms": 0.9, "pointing": 0.4, "games": 1.0, "web": 1.0}
    assert [name for name, each in chosen.items() if each.is_borrowed] == ["web"] and "1 good ones of web are known" in chosen["web"].reason
    lent = choose_thresholds([*forms, *pointing], ["web"], 0.9, min_passed=20)["web"]
    assert lent == choose_thresholds(forms + pointing, ["web", "forms"], 0.9, 20)["web"] and lent.threshold == 0.9


def test_calibration():
    assert brier(words((1.0, 1), (0.0, 1))) == 0.5
    assert calibration_error(words(*[(0.75, 1)] * 3, (0.75, 0))) == pytest.approx(0.0)
    assert calibration_error(words((0.95, 0), (0.05, 0))) == pytest.approx(0.5)
    assert [(each.num, each.good) for each in bins(words((0.01, 0), (0.05, 1), (1.0, 1)))] == [(2, 0.5), (1, 1.0)]
    dice = random.Random(0)
    honest = [Word(domain="d", split="eval", score=(score := dice.random()), truth=dice.random() < score) for _ in range(20_000)]
    assert calibration_error(honest) < 0.02


def test_a_report_has_every_domain_and_the_chosen_threshold_once():
    both = [*SOME, *words((0.9, 0), (0.95, 1), domain="pointing"), *words((0.5, 1), split="holdout")]
    thresholds = {"forms": 0.8, "pointing": 0.95}
    rows = report_rows(both, judge="orm", judge_version="c", reference="verifier", chosen=thresholds, target=0.9)
    assert {(row["split"], row["domain"]) for row in rows} == {
        ("eval", "all"),
        ("eval", "forms"),
        ("eval", "pointing"),
        ("holdout", "all"),
        ("holdout", "forms"),
    }
    chosen = [row for row in rows if row["is_chosen"]]
    assert len(chosen) == 5 and all(row["threshold"] == thresholds.get(row["domain"], 0.8) for row in chosen)
    (together,) = [row for row in chosen if (row["split"], row["domain"]) == ("eval", "all")]
    assert (together["num_true_positive"], together["num_false_positive"]) == (3, 0), "each domain at its own: at 0.8 there was one more"
    assert len({(row["split"], row["domain"], row["threshold"]) for row in rows}) == len(rows)


def test_the_picture_draws_each_judge_and_nothing_of_none():
    drawing = judge_chart({"before <x>": SOME, "after": SOME}, {"after": {"forms": 0.6}}, "Judges")
    ElementTree.fromstring(drawing)
    assert "before &lt;x&gt; (7)" in drawing and "from 0.600 on precision 0.750" in drawing
    assert judge_chart({"none": []}, {}, "Judges") == ""
