"""What judges said of an iteration's episodes beside what is known of them: the words that reports are made of, and how a report reads.
The arithmetic is warehouse/evaluation/judge_reports.py's, what counts as known agent/judging/samples.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from warehouse.evaluation.judge_reports import ALL_DOMAINS, NOTHING_PASSES, Word
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

STAGE = "judgements"
"""Of the rows of `verdicts` that judges wrote."""
_THRESHOLDS = """
select distinct v.judge, v.judge_version, e.domain, v.threshold from verdicts v join episodes e using (episode_id)
where v.iteration = ? and v.stage = ? order by all
"""
_FIGURES = """
select judge, reference, split, domain, threshold, precision, recall, f1, brier, calibration_error,
    num_true_positive, num_false_positive, num_false_negative, num_true_negative
from judge_reports where iteration = ? and is_chosen
order by judge, reference, case split when 'eval' then 0 when 'holdout' then 1 else 2 end, domain <> 'all', domain
"""
PARTS = {"eval": "eval (chose the threshold)", "holdout": "holdout", "train": "this iteration's own"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAt:
    """A judge as it judged an iteration."""

    name: str
    version: str
    thresholds: dict[str, float]
    """By domain."""


def judges_of(warehouse: Warehouse, iteration: str) -> list[JudgeAt]:
    with connect(warehouse) as con:
        found = con.execute(_THRESHOLDS, [iteration, STAGE]).fetchall()
    judges: dict[tuple[str, str], dict[str, float]] = {}
    for name, version, domain, threshold in found:
        judges.setdefault((name, version), {})[domain] = threshold
    return [JudgeAt(name=name, version=version, thresholds=thresholds) for (name, version), thresholds in judges.items()]


def report_words(
    warehouse: Warehouse, iteration: str, judge: str, *, success_threshold: float, unverified: Sequence[str] = ()
) -> dict[str, list[Word]]:
    """By reference, the scores of a judge beside the truth. `train` are episodes of this iteration that are routed: no ORM has learned from
    them yet. A domain that is taken for unverified is measured by its hidden verifier all the same; it chose nothing, so what would be its
    eval part counts as holdout."""
    from agent.judging.samples import known_episodes  # brings the grammars along, which a report has no use for

    with connect(warehouse) as con:
        known = known_episodes(con, iteration, success_threshold=success_threshold)
        query = "select episode_id, score from verdicts where iteration = ? and stage = ? and judge = ?"
        scores = dict(con.execute(query, [iteration, STAGE, judge]).fetchall())
    words: dict[str, list[Word]] = {}
    for each in known:
        if each.episode_id not in scores:
            continue
        is_hidden = each.row["domain"] in unverified and each.reference == "verifier"
        split = "holdout" if is_hidden and each.part == "eval" else each.part
        word = Word(domain=each.row["domain"], split=split, score=scores[each.episode_id], truth=each.truth)
        words.setdefault(each.reference, []).append(word)
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeFigures:
    """One judge on one part of one domain, at its chosen threshold; of all domains, each at its own."""

    judge: str
    reference: str
    part: str
    domain: str
    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None
    brier: float
    calibration_error: float
    num: int
    num_good: int
    num_passed: int
    num_false: int

    @property
    def passes_nothing(self) -> bool:
        return self.threshold >= NOTHING_PASSES


def judge_figures(con: duckdb.DuckDBPyConnection, iteration: str) -> list[JudgeFigures]:
    """Every judge of an iteration at its chosen threshold: first what all domains give together, then each."""
    found = []
    for row in con.execute(_FIGURES, [iteration]).fetchall():
        judge, reference, split, domain, threshold, precision, recall, f1, brier, error, *counts = row
        true_positive, false_positive, false_negative, true_negative = counts
        found.append(
            JudgeFigures(
                judge=judge,
                reference=reference,
                part=PARTS[split],
                domain="all domains" if domain == ALL_DOMAINS else domain,
                threshold=threshold,
                precision=precision,
                recall=recall,
                f1=f1,
                brier=brier,
                calibration_error=error,
                num=true_positive + false_positive + false_negative + true_negative,
                num_good=true_positive + false_negative,
                num_passed=true_positive + false_positive,
                num_false=false_positive,
            )
        )
    return found


def report_table(con: duckdb.DuckDBPyConnection, iteration: str) -> str:
    """The same as a Markdown table."""
    head = "| judge | against | part | domain | episodes | good | threshold | precision | recall | F1 | Brier | ECE |"
    lines = [head, "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for each in judge_figures(con, iteration):
        shares = " | ".join("–" if value is None else f"{value:.3f}" for value in (each.precision, each.recall, each.f1))
        threshold = "nothing passes" if each.passes_nothing else f"{each.threshold:.3f}"
        lines.append(
            f"| {each.judge} | {each.reference} | {each.part} | {each.domain} | {each.num} | {each.num_good} | {threshold} | {shares} | "
            f"{each.brier:.3f} | {each.calibration_error:.3f} |"
        )
    return "\n".join(lines)
