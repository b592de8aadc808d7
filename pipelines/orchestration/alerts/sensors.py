"""Sensors that detect what alerts are about, and send them (channels.py). They are on where a channel is configured."""

from __future__ import annotations

import os

import dagster as dg

from assets.settings.profile import Profile
from assets.stages.asset_keys import ITERATION_OUTPUT
from assets.stages.resources import WarehouseResource
from pipelines.orchestration.alerts.channels import EMAIL_VARIABLE, WEBHOOK_VARIABLE, Alert, channels, deliver, post
from pipelines.orchestration.alerts.freshness import overdue
from pipelines.orchestration.alerts.regressions import eval_drop
from pipelines.orchestration.jobs import completed, dagster_url
from pipelines.orchestration.runs.failures import failure_of
from warehouse.core.home import Home
from warehouse.lineage.releases import releases

INTERVAL_S = 30
NEWS_CHARS = 1500


def build_alert_sensors(profile: Profile) -> list[dg.SensorDefinition]:
    is_on = any(os.environ.get(name) for name in (WEBHOOK_VARIABLE, EMAIL_VARIABLE))
    status = dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED

    @dg.run_failure_sensor(
        name="alert_failed_runs",
        minimum_interval_seconds=INTERVAL_S,
        default_status=status,
        description="Keeps an alert of each run that failed, a broken gate's among them.",
    )
    def alert_failed_runs(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        of = f" of iteration {run.tags['dagster/partition']}" if "dagster/partition" in run.tags else ""
        text = f"{run.job_name}{of} failed: {failure_of(context.instance, run).words}"
        alert = Alert(kind="run_failed", about=run.run_id, text=text[:NEWS_CHARS], url=f"{dagster_url()}/runs/{run.run_id}")
        post(Home.from_env(), alert)

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=INTERVAL_S,
        default_status=status,
        description="Sends alerts: failed runs, regressions, releases that are held, and schedules that are late.",
    )
    def alerts(context: dg.SensorEvaluationContext, tables: WarehouseResource) -> dg.SkipReason:
        through = channels()
        if not through:
            return dg.SkipReason(f"no channel is configured: set {WEBHOOK_VARIABLE} or {EMAIL_VARIABLE} where Dagster is started")
        for alert in (
            *_regressions(context.instance, tables, profile.schedule.regression),
            *_held(tables),
            *_late(context.instance, profile),
        ):
            post(tables.home, alert)
        num_sent, problems = deliver(tables.home, through)
        return dg.SkipReason("; ".join([f"{num_sent} sent", *problems]))

    return [alert_failed_runs, alerts]


def _regressions(instance: dg.DagsterInstance, tables: WarehouseResource, least: float) -> list[Alert]:
    found = eval_drop(tables.warehouse, completed(instance))
    if found is None or found.drop < least:
        return []
    text = f"the merged policy of iteration {found.iteration} solves {found.now:.3f} of eval, the one before {found.before:.3f}"
    return [Alert(kind="regression", about=found.iteration, text=text, url=f"{dagster_url()}/assets/evaluations")]


def _held(tables: WarehouseResource) -> list[Alert]:
    held = [one for one in releases(tables.warehouse) if one.state == "held" and one.last is not None]
    return [
        Alert(
            kind="release_held",
            about=f"{one.checkpoint_id} {one.last.number if one.last else ''}",
            text=f"{one.release} is held: {one.last.reason if one.last else ''}",
            url=f"{dagster_url()}/assets/released_policy",
        )
        for one in held
    ]


def _late(instance: dg.DagsterInstance, profile: Profile) -> list[Alert]:
    """A cadence that was kept once, and is not any more."""
    alerts = []
    for one in overdue(instance, profile):
        cadence = one.cadence
        what = "no iteration has closed" if cadence.shows == ITERATION_OUTPUT else f"{cadence.shows.to_user_string()} was not made"
        text = f"{what} for {one.hours:.0f} hours ({cadence.setting}): is {cadence.schedule} on, and the daemon running?"
        alerts.append(Alert(kind="late", about=f"{cadence.schedule} {one.last_s}", text=text, url=f"{dagster_url()}/automation"))
    return alerts
