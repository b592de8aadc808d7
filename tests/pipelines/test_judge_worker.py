"""By whose words the judging worker chooses thresholds: those of the eval part, each under the part that it is of."""

from __future__ import annotations

import pytest

from agent.judging.samples import Known
from models.judges.judge import Judgement
from pipelines.stages.judge import ToJudge, _words, to_measure, words_to_choose
from sandbox.tasks.task import Split
from warehouse.core.errors import ReportedOnly
from warehouse.evaluation.judge_reports import choose_thresholds


def known(split: str, seed: int) -> Known:
    row = {"episode_id": f"{split}-{seed}", "task_id": "task-a", "seed": seed, "split": split, "domain": "forms", "iteration": "0001"}
    return Known(row=row, truth=seed % 2 == 0, reference="verifier")


KNOWN = [known(split, seed) for split in Split for seed in range(20)]
WANTED = ToJudge(rows={}, records={}, references={}, known={each.episode_id: each for each in KNOWN})
JUDGED = [
    Judgement(
        episode_id=each.episode_id, score=0.9 if each.truth else 0.1, reasons=(), num_asked=1, num_readable=1, cost_tokens=None, cost_ms=1.0
    )
    for each in KNOWN
]


def test_a_threshold_is_chosen_by_words_of_the_eval_part() -> None:
    words = words_to_choose(WANTED, JUDGED)
    assert {word.split for word in words} == {"eval"}
    assert len(words) == sum(each.part == "eval" for each in KNOWN) >= 20
    assert choose_thresholds(words, ["forms"], 0.9, 5)["forms"].threshold == 0.9


def test_words_of_the_part_that_is_reported_carry_its_name_and_choose_nothing() -> None:
    words = _words(WANTED, JUDGED, "holdout")
    assert words and {word.split for word in words} == {"holdout"}
    with pytest.raises(ReportedOnly):
        choose_thresholds(words, ["forms"], 0.9, 5)


def test_of_either_part_no_more_is_measured_than_is_asked_for() -> None:
    measured = to_measure(KNOWN, 7)
    assert [sum(each.part == part for each in measured) for part in ("eval", "holdout", "train")] == [7, 7, 0]
