"""Recurring retraining: a schedule that completes one iteration a tick, and one each for CT, SFT and RL with a cadence of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dagster as dg

from assets.settings.profile import Profile
from assets.stages.asset_keys import rl_asset_key
from pipelines.orchestration.jobs import ct_job, first_incomplete, iteration_job
from pipelines.orchestration.runs import profile as run_profile
from pipelines.orchestration.runs.living_runs import living_runs
from warehouse.core.home import Home
from warehouse.core.stages import joint_name

Tick = Iterator[dg.RunRequest | dg.SkipReason]


def build_schedules(profile: Profile) -> list[dg.ScheduleDefinition]:
    """Their cron lines are the profile's, and whether they are on before a person switches them."""
    specialists = [*profile.tasks.specialists, *(joint_name(group) for group in profile.tasks.joint)]
    sft = ("sft_dataset", "sft_model")
    before_sft = ("withdrawals", "ct_dataset", "ct_model")
    rl = tuple(rl_asset_key(name).to_user_string() for name in specialists)
    cadences = [
        _schedule(profile, "recurring_retraining", profile.schedule.cron, iteration_job, lambda _, __: None),
        _schedule(profile, "recurring_ct", profile.schedule.ct, ct_job, lambda _, __: None),
        _schedule(profile, "recurring_sft", profile.schedule.sft, iteration_job, _up_to(sft, before_sft)),
        _schedule(profile, "recurring_rl", profile.schedule.rl, iteration_job, _up_to(rl, (*before_sft, *sft))),
    ]
    return [schedule for schedule in cadences if schedule is not None]


Selecting = Callable[[dg.DagsterInstance, str], list[dg.AssetKey] | None]
"""Which assets a tick asks for, of an iteration; None is all of the job."""


def _up_to(wanted: tuple[str, ...], upstream: tuple[str, ...]) -> Selecting:
    """These assets, and what they are made from where the iteration has none yet. The job uses what is finished, so that a tick works only
    what is missing, or reads what has changed."""

    def select(instance: dg.DagsterInstance, iteration: str) -> list[dg.AssetKey]:
        keys = [dg.AssetKey.from_user_string(name) for name in upstream]
        missing = [key for key in keys if iteration not in instance.get_materialized_partitions(key)]
        return [*missing, *(dg.AssetKey.from_user_string(name) for name in wanted)]

    return select


def _schedule(profile: Profile, name: str, cron: str | None, job: object, select: Selecting) -> dg.ScheduleDefinition | None:
    if cron is None:
        return None

    status = dg.DefaultScheduleStatus.RUNNING if profile.schedule.enabled else dg.DefaultScheduleStatus.STOPPED

    @dg.schedule(cron_schedule=cron, job=job, name=name, default_status=status)  # type: ignore[arg-type]
    def tick(context: dg.ScheduleEvaluationContext) -> Tick:
        running = living_runs(context.instance, Home.from_env())
        if running:
            yield dg.SkipReason(f"run {running[0].run_id} is still in progress")
            return
        key = first_incomplete(context.instance)
        if key is None:
            yield dg.SkipReason("the seed is not made yet: launch seed_iteration or next_iteration once")
            return
        changed = run_profile.run_config(None, profile.schedule.set)
        yield dg.RunRequest(partition_key=key, asset_selection=select(context.instance, key), run_config=changed)

    return tick
