"""An iteration whose policy answers in processes of its own (`engine: {kind: served}`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.wheel.conftest import PROFILE, TURN_TIMEOUT_S, Turned, Wheel
from tests.wheel.repeatable import assert_same_rows
from tests.wheel.test_faults import assert_nothing_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def test_an_iteration_with_policy_servers_of_its_own(turned_home: Turned, new_wheel: Callable[..., Wheel]) -> None:
    wheel = new_wheel()
    engine = ["--set", "engine.kind=served", "--set", "engine.replicas=2"]
    ran = wheel.flywheel("run", "--iterations", "1", "--profile", PROFILE, *engine, timeout_s=TURN_TIMEOUT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert_same_rows(turned_home.warehouse, wheel.warehouse)
    assert_nothing_lost(wheel, set())
    learned = wheel.sql("select stage, count(*) from training_metrics where starts_with(stage, 'rl_') and metric = 'success' group by all")
    assert learned and all(rounds == 2 for _, rounds in learned), learned
    assert wheel.left_after(20) == []
