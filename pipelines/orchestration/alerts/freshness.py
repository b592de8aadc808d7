"""How old the newest results of iterations may be: freshness policies, which Dagster's daemon evaluates and its page shows, and the same
limits for alerts (sensors.py).

A result is expected as often as the schedule ticks that makes it (pipelines/orchestration/schedules.py), and is overdue when it is as old
as two such intervals.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise

import dagster as dg
from dagster._utils.schedules import schedule_execution_time_iterator

from assets.settings.profile import Profile
from assets.stages.asset_keys import ITERATION_OUTPUT, rl_asset_key
from warehouse.core.stages import joint_name

INTERVALS = 2
"""One tick may be missed, or its iteration may take as long as the interval."""
WARN_SHARE = 0.75
LEAST = timedelta(minutes=1)
"""Dagster takes no shorter window."""
FRIDAY = datetime(2027, 1, 1, tzinfo=UTC)
NUM_TICKS = 400
"""Of a schedule that is asked for its longest interval, from a Friday on: weekends are among them."""

CT, SFT = ("ct_dataset", "ct_model"), ("sft_dataset", "sft_model")
REST = ("merged_policy", "evaluations", "released_policy", "rollouts", "routes")
"""Results of an iteration that are read elsewhere. What some profiles do not make (orm_model), and what people make, is not expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """What a schedule makes, and how old it may become. `shows` is the asset by whose age the schedule is judged."""

    schedule: str
    setting: str
    late_after: timedelta
    assets: tuple[dg.AssetKey, ...]
    shows: dg.AssetKey

    def policy(self) -> dg.FreshnessPolicy:
        """Warns at three quarters of the limit."""
        fail, warn = max(self.late_after, LEAST), self.late_after * WARN_SHARE
        return dg.FreshnessPolicy.time_window(fail_window=fail, warn_window=warn if warn >= LEAST else None)


def cadences(profile: Profile) -> list[Cadence]:
    """Of each schedule that the profile has. What has no schedule of its own is `recurring_retraining`'s to make."""
    times = profile.schedule
    specialists = (*profile.tasks.specialists, *(joint_name(group) for group in profile.tasks.joint))
    stages = [("ct", times.ct, _keys(CT)), ("sft", times.sft, _keys(SFT)), ("rl", times.rl, tuple(map(rl_asset_key, specialists)))]
    own = [
        Cadence(
            schedule=f"recurring_{stage}",
            setting=f"schedule.{stage}",
            late_after=INTERVALS * longest_interval(cron),
            assets=assets,
            shows=assets[-1],
        )
        for stage, cron, assets in stages
        if cron is not None
    ]
    shared = [key for _, cron, assets in stages if cron is None for key in assets]
    hours = times.late_after_h
    whole = Cadence(
        schedule="recurring_retraining",
        setting="schedule.cron",
        late_after=INTERVALS * longest_interval(times.cron) if hours is None else timedelta(hours=hours),
        assets=(*shared, *_keys(REST), ITERATION_OUTPUT),
        shows=ITERATION_OUTPUT,
    )
    return [whole, *own]


def _keys(names: Iterable[str]) -> tuple[dg.AssetKey, ...]:
    return tuple(dg.AssetKey(name) for name in names)


@cache
def longest_interval(cron: str) -> timedelta:
    """Between two ticks, e.g. a weekend's where it ticks on weekdays."""
    ticks = islice(schedule_execution_time_iterator(FRIDAY.timestamp(), cron, "UTC"), NUM_TICKS)
    return max(after - before for before, after in pairwise(ticks))


def with_policies(assets: Iterable[dg.AssetsDefinition | dg.AssetSpec], profile: Profile) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets, those with a policy that are expected at a cadence."""
    policies = {key: cadence.policy() for cadence in cadences(profile) for key in cadence.assets}

    def expect(spec: dg.AssetSpec) -> dg.AssetSpec:
        return dg.apply_freshness_policy(spec, policies[spec.key]) if spec.key in policies else spec

    return [expect(one) if isinstance(one, dg.AssetSpec) else one.map_asset_specs(expect) for one in assets]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A cadence that is not kept: when what it makes came last, in seconds since 1970, and how many hours ago."""

    cadence: Cadence
    last_s: float
    hours: float


def overdue(instance: dg.DagsterInstance, profile: Profile, *, now_s: float | None = None) -> list[Overdue]:
    """What was made once and is older than it may be at `now_s`, in seconds since 1970."""
    found, now_s = [], time.time() if now_s is None else now_s
    for cadence in cadences(profile):
        event = instance.get_latest_materialization_event(cadence.shows)
        age = timedelta(seconds=now_s - event.timestamp) if event is not None else timedelta()
        if event is not None and age >= cadence.late_after:
            found.append(Overdue(cadence=cadence, last_s=event.timestamp, hours=age / timedelta(hours=1)))
    return found
