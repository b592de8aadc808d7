"""What a plan costs: hours of machines times the prices that the profile gives for them (`plan.prices`). There is no default price.

A stage pays for the machines that it uses, `StagePlan.nodes`; specialists that train side by side share theirs. With all machines paid for
the whole time it is another sum, `held_cost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assets.settings.plan import NodeKind
from assets.settings.profile import Profile
from pipelines.plan.plan import Plan, StagePlan
from pipelines.plan.workload import Work
from warehouse.core.stages import is_rl

HOUR_S = 3600.0


def nodes_of(profile: Profile, work: Work, num_processes: int) -> dict[NodeKind, int]:
    """Machines by kind that a stage uses: the head has Dagster, the stage's process and the training host that is this machine."""
    acts = work.kind in ("acting", "rl") and work.stage != "judgements"
    is_job = profile.runner.kind == "ray" and bool(profile.runner.cpus or profile.runner.gpus)
    workers = profile.sandbox.ray.workers or 0 if profile.sandbox.ray else 0
    choice = profile.engine.http
    found: dict[NodeKind, int] = {
        "head": 1,
        "trainer": max(0, min(num_processes, len(profile.training.hosts)) - 1) + is_job,
        "sandbox": len(profile.sandbox.servers) + workers if acts else 0,
        "policy": 1 + len(choice.replicas) if choice is not None and acts and work.response_tokens else 0,
    }
    return {kind: num for kind, num in found.items() if num}


def stage_costs(plan: Plan, stages: Sequence[StagePlan]) -> dict[str, float]:
    """By the stages' names; of these stages together."""
    trained = sum(stage.seconds for stage in stages if is_rl(stage.stage))
    alone = sum(stage.seconds for stage in stages if not is_rl(stage.stage))
    shared = (plan.elapsed(stages) - alone) / trained if trained else 1.0
    prices = plan.profile.plan.prices
    return {
        stage.stage: stage.seconds * (shared if is_rl(stage.stage) else 1.0) / HOUR_S * _per_hour(prices, stage.nodes) for stage in stages
    }


def cost(plan: Plan, num_iterations: int) -> float:
    """Of the seed and so many iterations, each stage with its own machines."""
    sums = [sum(stage_costs(plan, stages).values()) for stages in (plan.seed, plan.first, plan.later)]
    return sums[0] + sums[1] + max(0, num_iterations - 1) * sums[2]


def held_cost(plan: Plan, num_iterations: int) -> float:
    """The same with all machines from the first stage to the last."""
    return plan.seconds(num_iterations) / HOUR_S * _per_hour(plan.profile.plan.prices, all_nodes(plan))


def all_nodes(plan: Plan) -> dict[NodeKind, int]:
    """The most that a stage uses, by kind."""
    every = (*plan.seed, *plan.first, *plan.later)
    return {kind: max(stage.nodes.get(kind, 0) for stage in every) for kind in sorted({kind for stage in every for kind in stage.nodes})}


def cost_rests_on(plan: Plan) -> list[str]:
    """What of the cost is known and what is not, in sentences."""
    nodes, prices = all_nodes(plan), plan.profile.plan.prices
    named = ", ".join(f"{num} {kind}" for kind, num in nodes.items())
    if not prices:
        return [f"Machines: {named}. No cost, since no price is given: --set plan.prices.KIND=PRICE, of one machine of a kind and hour."]
    given = ", ".join(f"{kind} {prices[kind]:g}" for kind in nodes if kind in prices)
    lines = [f"Machines: {named}; prices of one and an hour, as given: {given or 'of none of these'}."]
    if missing := [kind for kind in nodes if kind not in prices]:
        lines.append(f"Without a price, and so not in the cost: {', '.join(missing)}.")
    ray = plan.profile.sandbox.ray
    if ray is not None and ray.workers is None:
        lines.append("How many nodes of the Ray cluster run episodes is not known (sandbox.ray.workers), so they are not in the cost.")
    return lines


def _per_hour(prices: Mapping[NodeKind, float], nodes: Mapping[NodeKind, int]) -> float:
    return sum(num * prices.get(kind, 0.0) for kind, num in nodes.items())
