"""Recurring retraining: a schedule that starts one iteration per tick."""

from collections.abc import Iterator

import dagster as dg

from assets.profile import Profile
from pipelines.orchestration.jobs import first_incomplete, iteration_job
from pipelines.orchestration.living_runs import living_runs
from warehouse.core.home import Home


def build_schedules(profile: Profile) -> list[dg.ScheduleDefinition]:
    """One schedule; its cron line is the profile's. Off until a person switches it on."""

    @dg.schedule(cron_schedule=profile.schedule.cron, job=iteration_job, name="recurring_retraining")
    def recurring_retraining(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        running = living_runs(context.instance, Home.from_env())
        if running:
            yield dg.SkipReason(f"run {running[0].run_id} is still in progress")
            return
        key = first_incomplete(context.instance)
        if key is None:
            yield dg.SkipReason("the seed is not made yet: launch seed_wheel or next_iteration once")
        else:
            yield dg.RunRequest(partition_key=key)

    return [recurring_retraining]
