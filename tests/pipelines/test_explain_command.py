"""`flywheel explain` and `flywheel reroute` at the command line, on a small routed history."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.data.explain import with_rules
from tests.warehouse.test_explain import judged as judged_once
from tests.warehouse.test_explain import warehouse as routed
from warehouse.core.errors import ConfigError, IterationLocked
from warehouse.core.locks import FileLock
from warehouse.routing.routes import RoutingConfig
from warehouse.storage.tables import Warehouse

judged, warehouse = judged_once, routed
Command = Callable[..., str]


@pytest.fixture
def flywheel(warehouse: Warehouse) -> Command:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--home", str(warehouse.home.root)], catch_exceptions=False, terminal_width=200)
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_explain_says_it_to_people_and_to_machines(flywheel: Command) -> None:
    text = flywheel("explain", "looping")
    assert "route: ct" in text and "demoted by loop 0.5 < 0.7" in text and "loop at a threshold of 0.5 → sft" in text
    assert "flywheel lineage episode-looping --direction both" in text
    reported = json.loads(flywheel("explain", "episode-good", "--json"))
    assert reported["route"] == "sft" and {use["checkpoints"][0] for use in reported["uses"]} == {"0002/sft_model policy-2"}
    laxer = json.loads(
        flywheel("explain", "looping", "--json", "--set", "routing.rules.loop.effect=demote", "--set", "routing.rules.loop.threshold=0.4")
    )
    assert laxer["route"] == "sft" and laxer["stored_route"] == "ct"


def test_reroute_shows_then_does_then_has_nothing_to_do(flywheel: Command, warehouse: Warehouse) -> None:
    arguments = ("reroute", "--set", "loop.threshold=0.4")
    dry = flywheel(*arguments, "--dry-run")
    assert "1 of 3 episodes move" in dry and "ct → sft (solved): 1  episode-looping" in dry and "nothing was written" in dry
    done = flywheel(*arguments, "--iteration", "1")
    assert "sft_samples: 4 joined, 0 left" in done and "written: ct_samples version" in done
    (again,) = json.loads(flywheel(*arguments, "--json"))
    assert again["moves"] == [] and again["versions"] == {}


def test_reroute_waits_for_no_running_iteration(flywheel: Command, warehouse: Warehouse) -> None:
    from pipelines.orchestration.runs.iteration_lock import lock_path

    lock = FileLock(lock_path(warehouse.home))
    assert lock.acquire(timeout_s=1)
    try:
        with pytest.raises(IterationLocked, match="reroute when it has ended"):
            flywheel("reroute")
        flywheel("reroute", "--dry-run")
    finally:
        lock.release()


def test_rules_are_checked() -> None:
    rules = with_rules(RoutingConfig(), ["judge.threshold=0.9", "settled.effect=withhold", "routing.rules.verifier.precedence=5"]).rules
    assert (rules["judge"].threshold, rules["settled"].effect, rules["verifier"].precedence) == (0.9, "withhold", 5)
    for item, message in (("loop=3", "JUDGE.threshold"), ("loop.effect=burn", "burn"), ("loop.threshold=7", "threshold = 7")):
        with pytest.raises(ConfigError, match=message):
            with_rules(RoutingConfig(), [item])
