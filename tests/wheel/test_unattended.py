"""Dagster by itself: the daemon's tick of the schedule turns an iteration with nobody there, and a killed page leaves nothing behind."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest

from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.jobs import completed

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(3600)]

START_SCHEDULE = """
mutation($selector: ScheduleSelector!) {
  startSchedule(scheduleSelector: $selector) { __typename ... on PythonError { message } }
}"""
SCHEDULE = {"repositoryLocationName": "pipelines.definitions", "repositoryName": "__repository__", "scheduleName": "recurring_retraining"}
ITERATION_TIMEOUT_S = 1800


def ask(url: str, query: str, **variables: Any) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"}), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    assert "errors" not in found, found
    return found["data"]


def test_a_tick_of_the_schedule_completes_an_iteration_unattended(turned_home, copy_of, serve, monkeypatch: pytest.MonkeyPatch):
    wheel = copy_of(turned_home)
    for name, value in wheel.environment.items():
        monkeypatch.setenv(name, value)
    with serve(wheel, "--set", "schedule.cron='* * * * *'") as page, open_instance(wheel.home) as instance:
        started = ask(page.url, START_SCHEDULE, selector=SCHEDULE)["startSchedule"]
        assert started["__typename"] == "ScheduleStateResult", started
        deadline = time.monotonic() + ITERATION_TIMEOUT_S
        while "0002" not in completed(instance) and time.monotonic() < deadline:
            assert page.process.poll() is None, page.said()
            time.sleep(1)
        assert "0002" in completed(instance), page.said()
        page.process.kill()
        page.process.wait()
    assert wheel.left_after(15) == [], "killed, the page leaves nothing behind"
    routed = "select episode_id from episodes where purpose in ('rollout', 'annotation')"
    assert wheel.sql(f"{routed} except select episode_id from routes") == []
    assert wheel.sql("select episode_id from routes group by all having count(*) > 1") == []
    assert wheel.sql("select count(*) > 0 from routes where iteration = '0002'") == [(True,)]
