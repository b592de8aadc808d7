"""Dagster by itself: once somebody has switched the schedule on in its page, the daemon's tick runs an iteration with nobody there, and a
killed page leaves nothing behind."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page

from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.jobs import completed
from tests.iterations.test_ui import switch_on_the_schedule

pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(3600)]

ITERATION_TIMEOUT_S = 1800


def test_a_tick_of_the_schedule_completes_an_iteration_unattended(
    page: Page, finished_home, copy_of, serve, monkeypatch: pytest.MonkeyPatch
):
    workspace = copy_of(finished_home)
    for name, value in workspace.environment.items():
        monkeypatch.setenv(name, value)
    with serve(workspace, "--set", "schedule.cron='* * * * *'") as served, open_instance(workspace.home) as instance:
        page.goto(served.url)
        switch_on_the_schedule(page)
        page.goto("about:blank")
        deadline = time.monotonic() + ITERATION_TIMEOUT_S
        while "0002" not in completed(instance) and time.monotonic() < deadline:
            assert served.process.poll() is None, served.said()
            time.sleep(1)
        assert "0002" in completed(instance), served.said()
        served.process.kill()
        served.process.wait()
    assert workspace.left_after(15) == [], "killed, the page leaves nothing behind"
    routed = "select episode_id from episodes where purpose in ('rollout', 'annotation')"
    assert workspace.sql(f"{routed} except select episode_id from routes") == []
    assert workspace.sql("select episode_id from routes group by all having count(*) > 1") == []
    assert workspace.sql("select count(*) > 0 from routes where iteration = '0002'") == [(True,)]
