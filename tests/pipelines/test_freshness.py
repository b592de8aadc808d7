"""When results are overdue: after two intervals of the schedule that makes them (the daemon sees it: tests/iterations/test_cadences.py)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
import yaml

from pipelines import profiles
from pipelines.definitions import build_defs
from pipelines.orchestration.alerts.freshness import cadences, longest_interval, overdue
from pipelines.profiles import OVERRIDES_VARIABLE

OWN = {"schedule.cron": "0 2 * * *", "schedule.ct": "0 3 * * 0", "schedule.sft": "0 4 * * 1-5"}
H = 3600.0


@pytest.mark.parametrize(
    ("cron", "hours"),
    [("* * * * *", 1 / 60), ("0 2 * * *", 24), ("0 4 * * 1-5", 72), ("*/5 9-17 * * 1-5", 63 + 5 / 60), ("0 3 1 * *", 31 * 24)],
)
def test_the_longest_interval_of_a_schedule_counts(cron: str, hours: float) -> None:
    assert longest_interval(cron) / timedelta(hours=1) == pytest.approx(hours)


def test_assets_are_expected_as_often_as_the_schedule_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_PROFILE", "smoke")
    monkeypatch.setenv(OVERRIDES_VARIABLE, yaml.safe_dump(OWN))
    windows = {
        spec.key.to_user_string(): (spec.freshness_policy.fail_window.to_timedelta(), spec.freshness_policy.warn_window.to_timedelta())
        for spec in build_defs().resolve_all_asset_specs()
        if spec.freshness_policy is not None
    }
    daily, weekly, workdays = ((timedelta(hours=hours), 0.75 * timedelta(hours=hours)) for hours in (48, 336, 144))
    of_iteration = (
        "rl_model/pointing",
        "rl_model/forms",
        "merged_policy",
        "evaluations",
        "released_policy",
        "rollouts",
        "routes",
        "iteration_output",
    )
    assert windows == {
        **dict.fromkeys(("ct_dataset", "ct_model"), weekly),
        **dict.fromkeys(("sft_dataset", "sft_model"), workdays),
        **dict.fromkeys(of_iteration, daily),
    }


def test_a_limit_in_hours_goes_before_the_schedule_and_dagster_takes_no_window_below_a_minute() -> None:
    (whole,) = cadences(profiles.load("smoke", {"schedule.late_after_h": 6}))
    assert whole.late_after == timedelta(hours=6)
    (often,) = cadences(profiles.load("smoke", {"schedule.late_after_h": 0.001}))
    assert often.policy() == dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=1))


def test_what_was_made_once_is_overdue_by_its_own_schedule(place: Any) -> None:
    profile = profiles.load("smoke", OWN)
    place.open("0001")
    assert overdue(place.instance, profile, now_s=time.time() + 1000 * H) == [], "nothing was made so far"
    place.close("0001")
    place.instance.report_runless_asset_event(dg.AssetMaterialization("ct_model", partition="0001"))

    def late(hours: float) -> list[str]:
        return [one.cadence.schedule for one in overdue(place.instance, profile, now_s=time.time() + hours * H)]

    assert late(47) == []
    assert late(49) == ["recurring_retraining"]
    assert late(337) == ["recurring_retraining", "recurring_ct"]
