"""Evaluation on fixed sets and the release gate. Every choice reads the `eval` split, every reported curve the `holdout` split."""

from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from assets.iterations.keys import previous_key
from assets.settings.profile import Profile
from assets.stages.asset_keys import rl_asset_key
from assets.stages.metadata import ITERATIONS_DRAWN, data_version, describe, of_result, picture
from assets.stages.requests import EvaluateRequest
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stages.stage_assets import stage_asset
from warehouse.core.stages import SEED_ITERATION, joint_name, rl_stage
from warehouse.evaluation.choosing import outcomes_to_choose
from warehouse.evaluation.evaluations import evaluations as evaluated
from warehouse.evaluation.evaluations import success_by_domain
from warehouse.evaluation.merge_results import retentions
from warehouse.evaluation.novelty import novelty
from warehouse.evaluation.statistics import compare_paired, release_gate
from warehouse.lineage import registry
from warehouse.lineage.release_ledger import Ledger, changing, read_ledger
from warehouse.lineage.releases import STANDS, decide, evidence
from warehouse.reporting.charts import success_by_stage
from warehouse.reporting.merge_report import retention_table, successes_table
from warehouse.reporting.svg import as_markdown
from warehouse.storage.content import content_digest
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

GROUP = "release"


def build_evaluation_asset(domains: tuple[str, ...], joint: tuple[tuple[str, ...], ...] = ()) -> dg.AssetsDefinition:
    """Greedy success of every policy the iteration made; `joint` are the groups of domains that one policy each was trained on."""
    names = (*domains, *(joint_name(group) for group in joint))
    always = ("sft_model", *(rl_stage(name) for name in names), "merged_policy")

    @stage_asset(
        table="evaluations",
        stage="evaluation",
        group_name=GROUP,
        kinds={"chromium"},
        deps=["ct_model", "sft_model", *(rl_asset_key(name) for name in names), "merged_policy"],
        description="Greedy success on the fixed instances, per task, of the SFT, RL and merged policies; of the first CT as well.",
    )
    def evaluations(
        context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
    ) -> dg.MaterializeResult[None]:
        settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
        is_first_ct = previous_key(iteration) == SEED_ITERATION and settings.evaluates_first_ct
        roles = ("ct_model", *always) if is_first_ct else always
        checkpoints = {role: registry.made_by(warehouse, iteration, role).checkpoint_id for role in roles}
        splits = {role: ("eval", "holdout") if role == "merged_policy" else ("holdout",) for role in roles}
        if (incumbent := _never_compared(warehouse, iteration)) is not None:
            checkpoints["released_policy"], splits["released_policy"] = incumbent, ("eval",)
        request = EvaluateRequest(
            iteration=iteration,
            stage="evaluation",
            seed=settings.seed,
            acting=settings.acting,
            evaluation=settings.evaluation,
            checkpoints=checkpoints,
            splits=splits,
        )
        result = runner.run(context, request)
        with connect(warehouse, tables=["evaluations"]) as con:
            found = evaluated(con)
            drawn = sorted({one.iteration for one in found})[-ITERATIONS_DRAWN:]
            chart = success_by_stage([one for one in found if one.iteration in drawn])
            kept = retention_table(retentions(con, iteration))
            beside = successes_table(success_by_domain(con, iteration))
        novel = novelty(warehouse, iteration)
        content = content_digest(warehouse, ("evaluations", "episodes"), iteration=iteration, stage=request.stage)
        return dg.MaterializeResult(
            data_version=data_version(request.checkpoints, content),
            metadata=of_result(
                result,
                config=settings.evaluation,
                success=picture(as_markdown(chart)),
                kept_by_merge=dg.MetadataValue.md(kept),
                by_domain=dg.MetadataValue.md(beside),
                **({} if novel is None else {"novelty": dg.MetadataValue.md(f"{novel.summary}.\n\n{novel.table}")}),
            ),
        )

    return evaluations


def _never_compared(warehouse: Warehouse, iteration: str) -> str | None:
    """The live release, where the gate could not compare a candidate with it: a person promoted what no iteration evaluates on `eval`."""
    incumbent = read_ledger(warehouse).kept(iteration)
    return incumbent if incumbent is not None and not outcomes_to_choose(warehouse, incumbent) else None


@stage_asset(
    table="checkpoints",
    group_name=GROUP,
    deps=["evaluations", "merged_policy"],
    kinds={"deltalake"},
    description="The merged policy if it does not lose to the live release on the eval split and nobody holds it, else the live release.",
)
def released_policy(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    read = {table: warehouse.version(table) for table in ("checkpoints", "episodes")}
    candidate = registry.made_by(warehouse, iteration, "merged_policy")
    with changing(warehouse) as ledger:
        found = _decision(warehouse, ledger, settings, iteration, candidate)
        live_id = decide(warehouse, ledger, iteration, candidate, found.state, by=found.by, reason=found.reason, evidence=found.evidence)
    chosen = candidate if live_id == candidate.checkpoint_id else registry.live_or_seed(warehouse, live_id)
    version = registry.pass_on(warehouse, chosen, iteration=iteration, stage="released_policy", note=found.reason)
    context.log.info(found.reason)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(chosen.checkpoint_id),
        metadata=describe(
            config=settings.evaluation,
            read=read,
            wrote={"checkpoints": version, "releases": warehouse.version("releases")},
            figures={name: found.evidence[name] for name in ("gain", "p_worse")} if found.evidence else {},
            released=chosen.checkpoint_id,
            candidate=f"{candidate.checkpoint_id} is {found.state}",
            reason=found.reason,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What becomes of the candidate, by which rule, why, and the figures of the comparison."""

    state: str
    by: str
    reason: str
    evidence: dict[str, Any] | None = None


def _decision(warehouse: Warehouse, ledger: Ledger, settings: Profile, iteration: str, candidate: registry.Registered) -> _Decision:
    word = ledger.persons_word(candidate.checkpoint_id)
    if word is not None and (word.state in STANDS or ledger.live_until(iteration) == candidate.checkpoint_id):
        said = {"live": "promoted", "rolled_back": "rolled back"}.get(word.state, word.state)
        return _Decision(state=word.state, by="a person's word", reason=f"{word.decided_by} has {said} the candidate: {word.reason}")
    found = _by_gate(warehouse, ledger, settings, iteration, candidate)
    if found.state == "live" and settings.release.needs_approval and ledger.kept(iteration) != candidate.checkpoint_id:
        name = f"{iteration}/{candidate.stage}"
        reason = f"{found.reason}. Held until a person promotes it: flywheel release promote {name} --by NAME --reason TEXT"
        return replace(found, state="held", by="release.needs_approval", reason=reason)
    return found


def _by_gate(warehouse: Warehouse, ledger: Ledger, settings: Profile, iteration: str, candidate: registry.Registered) -> _Decision:
    incumbent, id_ = ledger.kept(iteration), candidate.checkpoint_id
    if incumbent is None:
        return _Decision(state="live", by="first release", reason="first release: there is nothing to lose to")
    if incumbent == id_:
        return _Decision(state="live", by="release gate", reason="the candidate is the live release")
    now, then = (outcomes_to_choose(warehouse, one) for one in (id_, incumbent))
    if not now or not then:
        which = "candidate" if not now else "live release"
        reason = f"held: the {which} has no outcome on the eval split to compare by. Evaluate again, or promote it by hand"
        return _Decision(state="held", by="release gate", reason=reason)
    if not now.keys() & then.keys():
        reason = "the previous release was evaluated on other instances, under an older rule of splits: nothing to lose to"
        return _Decision(state="live", by="release gate", reason=reason)
    comparison = compare_paired(now, then)
    decision = release_gate(
        comparison,
        significance=settings.evaluation.release_significance,
        tolerance=settings.evaluation.release_tolerance,
        was_refused=ledger.was_refused(id_, incumbent),
    )
    state = "live" if decision.released else "refused"
    return _Decision(state=state, by="release gate", reason=decision.reason, evidence=evidence(comparison, incumbent))
