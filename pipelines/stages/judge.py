"""Judges that may err read episodes: those that the iteration routes, and others of known truth, by which they are measured and their
thresholds chosen. Rows of `verdicts`, stage `judgements`.

A verdict is kept as it comes in the stage's folder: a killed stage, or one whose server was gone for a while, asks only what is missing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from agent.judging.prompt import JudgeBuilder, Record
from agent.judging.samples import Known, known_episodes, records
from assets.settings.verdicts import OrmSettings, VerdictSettings
from assets.stages.requests import JudgeRequest, StageResult
from models.engine.choice import EngineChoice
from models.families.vision import screenshot_ids
from models.judges.judge import Case, Judge, Judgement
from models.judges.own import OwnJudge
from models.judges.registry import JUDGES
from models.supervised.training_set import TrainingSample
from pipelines.stages.context import WorkerContext
from pipelines.stages.engines import open_engine
from pipelines.stages.images import spooled_images
from pipelines.stages.references import references
from warehouse.core.identity import stable_fraction
from warehouse.evaluation.judge_reports import BORROWED, Choice, Word, choose_thresholds, confusion_by_domain
from warehouse.lineage import registry
from warehouse.storage.catalogue import ROUTED_PURPOSES
from warehouse.storage.sql.query import connect

CASES_AT_ONCE = 64
_ROUTED = f"""
select iteration, episode_id, purpose, task_id, task_name, domain, seed, split, instruction, outcome, reward from episodes
where iteration = $iteration and purpose in {ROUTED_PURPOSES} and outcome <> 'crashed' and num_steps > 0
qualify row_number() over (partition by episode_id order by stage) = 1
order by episode_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToJudge:
    """The episodes of one judging: their records, the references of right answers, and the truth of those whose truth is known."""

    rows: dict[str, Mapping[str, Any]]
    records: dict[str, Record]
    references: dict[str, str]
    known: dict[str, Known]


def run(request: JudgeRequest, context: WorkerContext) -> StageResult:
    with connect(context.warehouse) as con:
        wanted = to_judge(con, request, context.log)
    progress = context.progress()
    rows: list[dict[str, Any]] = []
    metrics: dict[str, float] = {}
    counts: dict[str, int] = {"episodes": len(wanted.rows)} | ({"with reference": len(wanted.references)} if wanted.references else {})
    notes: dict[str, str] = {}
    with ExitStack() as stack:
        for judge, builder in open_judges(request, context, stack):
            done = 0
            judged: list[Judgement] = []
            for batch in _judgements(judge, builder, wanted, context):
                judged += batch
                done += len(batch)
                progress.update(done, len(wanted.rows), "episodes", {"score": sum(each.score for each in judged) / len(judged)})
            words = words_to_choose(wanted, judged)
            domains = {episode_id: str(row["domain"]) for episode_id, row in wanted.rows.items()}
            choices = choose_thresholds(words, domains.values(), request.verdicts.target_precision, request.verdicts.min_passed)
            rows += verdict_rows(judge, judged, choices, domains)
            notes |= {f"{judge.name} threshold of {name}": f"{each.threshold:.4g}: {each.reason}" for name, each in choices.items()}
            metrics |= _figures(judge.name, judged, choices, _words(wanted, judged, "holdout"))
            counts |= {
                f"judged/{judge.name}": len(judged),
                f"measured/{judge.name}": len(words),
                f"without verdict/{judge.name}": sum(each.num_readable == 0 for each in judged),
            }
    version = context.warehouse.replace_partition("verdicts", rows, iteration=request.iteration, stage=request.stage)
    return StageResult(table_versions={"verdicts": version}, counts=counts, metrics=metrics, notes=notes)


def to_judge(con: duckdb.DuckDBPyConnection, request: JudgeRequest, log: Callable[[str], None]) -> ToJudge:
    """The iteration's routed episodes, and of those whose truth is known as many as are to be measured by."""
    settings = request.verdicts
    routed = con.sql(_ROUTED, params={"iteration": request.iteration}).to_arrow_table().to_pylist()
    known = known_episodes(con, request.iteration, success_threshold=request.success_threshold, unverified=settings.unverified_domains)
    rows = {row["episode_id"]: row for row in [*routed, *(each.row for each in to_measure(known, settings.max_measured))]}
    found: dict[str, str] = {}
    if settings.judge.engine is not None or settings.judges:
        found, unknown = references(con, rows.values(), settings.judge.rubrics)
        for reason, num in unknown.most_common():
            log(f"no reference for {num} instances: {reason}")
    read = records(con, list(rows.values()))
    return ToJudge(
        rows=rows,
        records={episode_id: record for episode_id, (record, _) in read.items()},
        references=found,
        known={each.episode_id: each for each in known if each.episode_id in rows},
    )


def to_measure(known: Sequence[Known], max_measured: int) -> list[Known]:
    """Of the eval and the holdout part at most so many each: the newest iteration first, then by a hash of their ids."""
    chosen: list[Known] = []
    for part in ("eval", "holdout"):
        of_part = sorted(
            (each for each in known if each.part == part), key=lambda each: (-int(each.row["iteration"]), stable_fraction(each.episode_id))
        )
        chosen += of_part[:max_measured]
    return chosen


def open_judges(request: JudgeRequest, context: WorkerContext, stack: ExitStack) -> Iterator[tuple[Judge, JudgeBuilder]]:
    """The judges that the request asks for, one after the other; `stack` closes them."""
    builder = request.verdicts.prompt.builder(request.layout)
    if request.orm_id is not None:
        folder = registry.find(context.warehouse, request.orm_id).folder
        yield open_orm(folder, request.engine, request.orm, builder, stack), builder
    if request.verdicts.judge.engine is not None:
        builder = request.verdicts.prompt.builder("chat")  # whatever the policy's own layout is: another model answers
        yield open_reference_judge(request.verdicts, builder, stack), builder
    for name in request.verdicts.judges:
        yield OwnJudge(name, JUDGES[name]), request.verdicts.prompt.builder("chat")


def open_orm(folder: Path, choice: EngineChoice, settings: OrmSettings, builder: JudgeBuilder, stack: ExitStack) -> Judge:
    """The ORM of a checkpoint: with exact scores where it runs in this process."""
    from models.judges.orm import Orm

    more: dict[str, Any] = {"votes": settings.votes, "temperature": settings.temperature, "max_new_tokens": settings.max_new_tokens}
    if choice.http is not None:
        from models.families.registry import load_codec

        engine = stack.enter_context(closing(open_engine(folder, choice)))
        return Orm(engine, builder, decode=load_codec(folder).decode, **more)
    from models.checkpoints.checkpoint import read_card
    from models.engine.embedded import EmbeddedEngine
    from models.families.registry import device_named, load_codec, load_policy
    from models.judges.verdict_scores import ModelVerdictScores

    dtype = "float32" if choice.dtype == "auto" else choice.dtype
    model, codec = load_policy(folder, dtype=dtype, device=device_named(choice.device)), load_codec(folder)
    exact = choice.settings.model_copy(update={"quantisation": None})  # the scores are read off the same model
    own = EmbeddedEngine(model, codec, read_card(folder).checkpoint_id, settings=exact, gives_away=True)
    return Orm(stack.enter_context(closing(own)), builder, scores=ModelVerdictScores(model, codec), **more)


def open_reference_judge(settings: VerdictSettings, builder: JudgeBuilder, stack: ExitStack) -> Judge:
    """The judge behind the profile's server. Raises EngineUnreachable where nobody answers."""
    from models.http.engine import HttpEngine
    from models.judges.reference import ReferenceJudge

    judge = settings.judge
    if judge.engine is None:
        raise ValueError("verdicts.judge.engine is not set: there is no server to ask")
    engine = stack.enter_context(closing(HttpEngine(judge.engine)))
    return ReferenceJudge(engine, builder, votes=judge.votes, repeats=judge.repeats, max_new_tokens=judge.max_new_tokens)


def _judgements(judge: Judge, builder: JudgeBuilder, wanted: ToJudge, context: WorkerContext) -> Iterator[list[Judgement]]:
    """What the judge says, what it has said before first. Those who judge alike share a file: its name is of judge and version."""
    version = re.sub(r"[^\w.-]", "_", judge.version)
    log = context.folder / f"{judge.name}-{version[:80]}.jsonl"
    said = _read_log(log)
    before = [said[episode_id] for episode_id in wanted.rows if episode_id in said]
    if before:
        yield before
    left = [episode_id for episode_id in wanted.rows if episode_id not in said]
    for first in range(0, len(left), CASES_AT_ONCE):
        cases = _cases(left[first : first + CASES_AT_ONCE], builder, wanted, context, with_reference=judge.origin == "judge")
        judged = asyncio.run(judge.judge(cases))
        with log.open("a") as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in judged)
        yield judged


def _read_log(log: Path) -> dict[str, Judgement]:
    said = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            stored = json.loads(line)
            said[stored["episode_id"]] = Judgement(**{**stored, "reasons": tuple(stored["reasons"])})
        except (ValueError, TypeError, KeyError):
            continue  # the line that a kill cut off
    return said


def _cases(ids: Sequence[str], builder: JudgeBuilder, wanted: ToJudge, context: WorkerContext, *, with_reference: bool) -> list[Case]:
    references = wanted.references if with_reference else {}
    prompts = {
        episode_id: TrainingSample(messages=builder.build(wanted.records[episode_id], reference=references.get(episode_id)))
        for episode_id in ids
    }
    read = spooled_images(context.warehouse, list(prompts.values()), context.folder / "images")
    return [
        Case(
            record=wanted.records[episode_id],
            reference=references.get(episode_id),
            images={name: read(name) for name in screenshot_ids(prompts[episode_id].messages)},
        )
        for episode_id in ids
    ]


def words_to_choose(wanted: ToJudge, judged: Sequence[Judgement]) -> list[Word]:
    """Those that thresholds are chosen by."""
    return _words(wanted, judged, "eval")


def _words(wanted: ToJudge, judged: Sequence[Judgement], part: str) -> list[Word]:
    """Scores beside known truths, of the episodes of one part."""
    return [
        Word(domain=known.row["domain"], split=known.part, score=each.score, truth=known.truth)
        for each in judged
        if (known := wanted.known.get(each.episode_id)) is not None and known.part == part
    ]


def verdict_rows(
    judge: Judge, judged: Sequence[Judgement], choices: Mapping[str, Choice], domains: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Rows of the table `verdicts`, each at the threshold of its episode's domain."""
    return [
        {
            "episode_id": each.episode_id,
            "judge": judge.name,
            "judge_version": judge.version,
            "kind": "verdict",
            "origin": judge.origin,
            "score": each.score,
            "threshold": choice.threshold,
            "passed": each.score >= choice.threshold,
            "reasons": [*each.reasons, *([BORROWED] if choice.is_borrowed else [])],
            "cost_tokens": each.cost_tokens,
            "cost_ms": each.cost_ms,
        }
        for each in judged
        for choice in [choices[domains[each.episode_id]]]
    ]


def _figures(name: str, judged: Sequence[Judgement], choices: Mapping[str, Choice], words: Sequence[Word]) -> dict[str, float]:
    """What the asset shows: the thresholds, what they give on the holdout part, and what it cost."""
    thresholds = {domain: choice.threshold for domain, choice in choices.items()}
    at = confusion_by_domain(words, thresholds)
    found = {"precision": at.precision, "recall": at.recall, "f1": at.f1}
    figures = {f"{name}/holdout {key}": value for key, value in found.items() if value is not None}
    costs = [each.cost_tokens for each in judged if each.cost_tokens is not None]
    if costs:
        figures[f"{name}/tokens a case"] = sum(costs) / len(costs)
    figures[f"{name}/ms a case"] = sum(each.cost_ms for each in judged) / max(1, len(judged))
    return {f"{name}/threshold of {domain}": threshold for domain, threshold in thresholds.items()} | figures
