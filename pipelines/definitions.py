"""The Dagster code location: every asset, check, job, schedule and sensor, bound to the values of their resources.

Importing this stays light: no torch, no Prefect, no browser (tests/architecture holds it to that).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets import collection, datasets, gateway, judging, people, recordings, release, routing, seed, training
from assets.gates import checks, value_gate
from assets.iterations import handoff
from assets.stages.resources import WarehouseResource
from assets.tasks import pool as task_pool
from pipelines import profiles
from pipelines.orchestration import imported_logs
from pipelines.orchestration.alerts.freshness import with_policies
from pipelines.orchestration.jobs import JOBS
from pipelines.orchestration.runs import profile as run_profile
from pipelines.orchestration.runs.executor import home_executor
from pipelines.orchestration.schedules import build_schedules
from pipelines.orchestration.sensors import build_sensors
from pipelines.orchestration.work.stage_runner import PipesStageRunner
from warehouse.core.home import Home
from warehouse.core.stages import joint_name


def build_defs(resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """All definitions, to load as they are or to merge into a project's own (`dg.Definitions.merge`). `resource_overrides` replaces single
    resources by name: tables, profile, runner."""
    profile = profiles.from_env()
    domains, joint = profile.tasks.specialists, profile.tasks.joint
    root = str(Home.from_env().root)
    logs = imported_logs.build_logs(profile.logs)
    return dg.Definitions(
        assets=with_policies(
            [
                handoff.iteration_input,
                seed.tasks,
                seed.seed_tutorials,
                seed.seed_demonstrations,
                seed.seed_policy,
                seed.seed,
                people.withdrawals,
                datasets.dataset_snapshots,
                training.ct_model,
                training.sft_model,
                *(training.build_rl_asset(domain) for domain in domains),
                *(training.build_rl_asset(*group) for group in joint),
                training.build_merge_asset(domains, joint if profile.merge.include_joint else ()),
                release.build_evaluation_asset(domains, joint),
                release.released_policy,
                task_pool.task_pool,
                collection.rollouts,
                collection.annotations,
                people.human_annotations,
                gateway.gateway_episodes,
                recordings.recordings,
                judging.orm_data,
                judging.orm_model,
                judging.judging,
                routing.verdicts,
                routing.routing,
                handoff.iteration_output,
                *logs.assets,
            ],
            profile,
        ),
        asset_checks=[
            *(checks.build_gate(gate) for gate in checks.GATES),
            value_gate.build_value_gate((*domains, *(joint_name(group) for group in joint))),
        ],
        jobs=[*JOBS, *logs.jobs],
        schedules=[*build_schedules(profile), *logs.schedules],
        sensors=build_sensors(profile),
        executor=home_executor,
        resources={
            "tables": WarehouseResource(root=root),
            "profile": run_profile.build_resource(profile),
            "runner": PipesStageRunner(root=root),
            **(resource_overrides or {}),
        },
    )


defs = build_defs()
