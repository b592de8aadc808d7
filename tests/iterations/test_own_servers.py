"""An iteration whose policy answers in processes of its own (`engine: {kind: served}`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.iterations.conftest import ITERATION_TIMEOUT_S, PROFILE, Finished, Workspace
from tests.iterations.repeatable import assert_same_rows
from tests.iterations.test_faults import assert_nothing_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def test_an_iteration_with_policy_servers_of_its_own(finished_home: Finished, new_workspace: Callable[..., Workspace]) -> None:
    workspace = new_workspace()
    engine = ["--set", "engine.kind=served", "--set", "engine.replicas=2"]
    ran = workspace.flywheel("run", "--iterations", "1", "--profile", PROFILE, *engine, timeout_s=ITERATION_TIMEOUT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert_same_rows(finished_home.warehouse, workspace.warehouse)
    assert_nothing_lost(workspace, set())
    learned = workspace.sql(
        "select stage, count(*) from training_metrics where starts_with(stage, 'rl_') and metric = 'success' group by all"
    )
    assert learned and all(rounds == 2 for _, rounds in learned), learned
    assert workspace.left_after(20) == []
