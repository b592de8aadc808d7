"""Judges that may err: the outcome reward model's data, its training, what it and the LLM judge say of the iteration's episodes, and how
far they can be trusted. What their words mean for a route is warehouse/routing/routes.py's business.

Where the profile has no ORM these assets pass: nothing is trained or judged, and they say so.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from agent.judging.reports import judges_of, report_table, report_words
from agent.judging.samples import known_digest, orm_dataset, orm_members, orm_samples
from assets.iterations.keys import previous_key
from assets.routing import COLLECTED
from assets.settings.profile import Profile
from assets.stages.metadata import data_version, describe, of_result, picture
from assets.stages.requests import JudgeRequest, SupervisedRequest
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stages.stage_assets import stage_asset, stage_assets, stage_spec
from assets.training import policy_into
from models.judges.own import OwnJudge
from models.judges.registry import JUDGES
from warehouse.core.errors import CheckpointError
from warehouse.core.stages import SEED_ITERATION
from warehouse.evaluation.judge_reports import report_rows
from warehouse.lineage import registry
from warehouse.reporting.judge_charts import judge_chart
from warehouse.reporting.svg import as_markdown
from warehouse.storage.content import content_digest
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

OFF = "this profile has no ORM: orm.enabled is false"
NO_JUDGE = "nothing judges in this profile: orm.enabled is false, verdicts.judge.engine is null and verdicts.judges is empty"


@stage_assets(
    stage_spec(
        "orm_samples",
        table="orm_samples",
        deps=["merged_policy"],
        kinds={"deltalake"},
        group_name="datasets",
        description="What joined D_ORM in this iteration: judgements of episodes whose truth is known.",
    ),
    stage_spec(
        "orm_dataset",
        table="datasets",
        deps=["orm_samples"],
        kinds={"deltalake"},
        group_name="datasets",
        description="Immutable snapshot of D_ORM for this iteration, good and bad in balance.",
    ),
)
def orm_data(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource
) -> Iterator[dg.MaterializeResult[None]]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    if not settings.orm.enabled:
        _clear(warehouse, iteration, {"orm_samples": "orm_samples", "datasets": "orm_dataset"})
        yield from (_passed(OFF, key) for key in ("orm_samples", "orm_dataset"))
        return
    read = {table: warehouse.version(table) for table in ("episodes", "steps", "verdicts")}
    builder = settings.verdicts.prompt.builder(settings.agent.builder().grammar.layout)
    lesson = orm_samples(
        warehouse,
        iteration,
        builder,
        success_threshold=settings.quality.success_threshold,
        max_samples=settings.orm.max_samples,
        claim_share=settings.orm.claim_share,
        unverified=settings.verdicts.unverified_domains,
    )
    version = warehouse.replace_partition("orm_samples", lesson.rows, iteration=iteration, stage="orm_samples")
    counts = {"samples": len(lesson.rows), "samples/good": sum(row["verdict"] for row in lesson.rows), "known": lesson.num_known}
    yield dg.MaterializeResult(
        asset_key="orm_samples",
        data_version=data_version(sorted(row["sample_id"] for row in lesson.rows)),
        metadata=describe(config=settings.orm, counts=counts | {"known/good": lesson.num_good}, read=read, wrote={"orm_samples": version}),
    )
    with connect(warehouse) as con:
        dataset_id, rows = orm_dataset(orm_members(con, iteration))
    stored = warehouse.replace_partition("datasets", rows, iteration=iteration, stage="orm_dataset")
    yield dg.MaterializeResult(
        asset_key="orm_dataset",
        data_version=dg.DataVersion(dataset_id),
        metadata=describe(
            counts={"samples": len(rows)} | _by_component(rows),
            read={"orm_samples": version},
            wrote={"datasets": stored},
            dataset=dataset_id,
        ),
    )


@stage_asset(
    table="checkpoints",
    group_name="training",
    deps=["orm_dataset"],
    kinds={"torch"},
    description="The outcome reward model: single-turn training on D_ORM.",
)
def orm_model(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    if not settings.orm.enabled:
        _clear(warehouse, iteration, {"checkpoints": "orm_model"})
        return _passed(OFF)
    base = _base(warehouse, settings, iteration)
    table = warehouse.read("datasets", iteration=iteration, stage="orm_dataset", columns=["dataset_id", "component"])
    counts = _by_component(table.to_pylist())
    fewest = min(counts.get(f"samples/{name}", 0) for name in ("good", "bad"))
    if fewest < settings.orm.min_samples:
        runner.forget(iteration, "orm_model")
        note = f"{fewest} samples of the rarer verdict, of which {settings.orm.min_samples} are needed: {base.checkpoint_id} is passed on"
        version = registry.pass_on(warehouse, base, iteration=iteration, stage="orm_model", note=note)
        metadata = describe(counts=counts, wrote={"checkpoints": version}, note=note)
        return dg.MaterializeResult(data_version=dg.DataVersion(base.checkpoint_id), metadata=metadata)
    request = SupervisedRequest(
        iteration=iteration,
        stage="orm_model",
        seed=settings.seed,
        tracking=settings.tracking,
        hosts=settings.training,
        kind="orm",
        checkpoint_id=base.checkpoint_id,
        dataset_id=str(table["dataset_id"][0].as_py()),
        config=settings.orm.training,
    )
    result = runner.run(context, request)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(str(result.checkpoint_id)),
        metadata=of_result(result, config=settings.orm, checkpoint=result.checkpoint_id, **{"trained from": base.checkpoint_id}),
    )


@stage_assets(
    stage_spec(
        "judgements",
        table="verdicts",
        deps=["orm_model", "evaluations", *COLLECTED],
        kinds={"torch"},
        group_name="routing",
        description="What the ORM and the LLM judge say of the iteration's episodes, and of others by which they are measured.",
    ),
    stage_spec(
        "judge_reports",
        table="judge_reports",
        deps=["judgements"],
        kinds={"duckdb"},
        group_name="routing",
        description="Precision, recall, F1 and calibration of every judge that may err, against verifiers and people.",
    ),
)
def judging(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> Iterator[dg.MaterializeResult[None]]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    orm_id, note = _judging_orm(warehouse, settings, iteration)
    if orm_id is None and settings.verdicts.judge.engine is None and not settings.verdicts.judges:
        runner.forget(iteration, "judgements")
        _clear(warehouse, iteration, {"verdicts": "judgements", "judge_reports": "judge_reports"})
        yield from (_passed(note, key) for key in ("judgements", "judge_reports"))
        return
    with connect(warehouse) as con:
        known = known_digest(con, iteration)
    request = JudgeRequest(
        iteration=iteration,
        stage="judgements",
        seed=settings.seed,
        orm_id=orm_id,
        orm=settings.orm,
        verdicts=settings.verdicts,
        judge_versions={name: OwnJudge(name, JUDGES[name]).version for name in settings.verdicts.judges},
        layout=settings.agent.builder().grammar.layout,
        engine=settings.engine,
        success_threshold=settings.quality.success_threshold,
        known=known,
    )
    result = runner.run(context, request)
    content = content_digest(warehouse, ["verdicts"], iteration=iteration, stage=request.stage)
    yield dg.MaterializeResult(
        asset_key="judgements",
        data_version=data_version(orm_id, content),
        metadata=of_result(result, config=settings.verdicts, **({"note": note} if orm_id is None else {"orm": orm_id})),
    )
    yield _reports(warehouse, settings, iteration)


def _reports(warehouse: Warehouse, settings: Profile, iteration: str) -> dg.MaterializeResult[None]:
    """How far each judge agrees with verifiers and people, in rows and as a picture."""
    rows = []
    words, chosen, versions = {}, {}, {}
    for judge in judges_of(warehouse, iteration):
        found = report_words(
            warehouse,
            iteration,
            judge.name,
            success_threshold=settings.quality.success_threshold,
            unverified=settings.verdicts.unverified_domains,
        )
        for reference, of_reference in found.items():
            rows += report_rows(
                of_reference,
                judge=judge.name,
                judge_version=judge.version,
                reference=reference,
                chosen=judge.thresholds,
                target=settings.verdicts.target_precision,
            )
            label = f"{judge.name} by {reference}"
            words[label] = [word for word in of_reference if word.split == "holdout"]
            chosen[label], versions[judge.name] = judge.thresholds, judge.version
    version = warehouse.replace_partition("judge_reports", rows, iteration=iteration, stage="judge_reports")
    drawn = judge_chart(words, chosen, "Judges against what is known, holdout part")
    with connect(warehouse) as con:
        table = report_table(con, iteration)
    more: dict[str, Any] = {"agreement": picture(as_markdown(drawn))} if drawn else {}
    more["by_domain"] = dg.MetadataValue.md(table)
    return dg.MaterializeResult(
        asset_key="judge_reports",
        data_version=data_version(content_digest(warehouse, ["judge_reports"], iteration=iteration, stage="judge_reports")),
        metadata=describe(counts={"rows": len(rows)}, wrote={"judge_reports": version}, **more),
    )


def _base(warehouse: Warehouse, settings: Profile, iteration: str) -> registry.Registered:
    """What the ORM is trained from."""
    if settings.orm.base == "released_policy":
        return policy_into(warehouse, iteration)
    before = previous_key(iteration)
    if settings.orm.base == "previous" and before != SEED_ITERATION:
        try:
            return registry.made_by(warehouse, before, "orm_model")
        except CheckpointError:  # the ORM was switched on in this iteration
            pass
    return registry.made_by(warehouse, iteration, "sft_model")


def _judging_orm(warehouse: Warehouse, settings: Profile, iteration: str) -> tuple[str | None, str]:
    """The ORM that judges, if it has learned to; and what to say where none does."""
    if not settings.orm.enabled:
        return None, NO_JUDGE
    checkpoint_id = registry.made_by(warehouse, iteration, "orm_model").checkpoint_id
    query = "select 1 from checkpoints where stage = 'orm_model' and checkpoint_id = ? and len(datasets) > 0 limit 1"
    with connect(warehouse) as con:
        is_trained = con.execute(query, [checkpoint_id]).fetchone() is not None
    if is_trained:
        return checkpoint_id, ""
    return None, "the ORM has not been trained yet: there were too few samples, and an untrained one judges nothing"


def _by_component(rows: Sequence[dict[str, str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[f"samples/{row['component']}"] = counts.get(f"samples/{row['component']}", 0) + 1
    return counts


def _clear(warehouse: Warehouse, iteration: str, stages: dict[str, str]) -> None:
    """Take away what an earlier run of the iteration left with other settings; touch no table where there is nothing."""
    for table, stage in stages.items():
        if warehouse.read(table, iteration=iteration, stage=stage).num_rows:
            warehouse.replace_partition(table, [], iteration=iteration, stage=stage)


def _passed(note: str, key: str | None = None) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(asset_key=key, data_version=data_version("off"), metadata=describe(note=note))
