"""What routes give, stored by who routes an iteration and by who routes it again: nothing that a dataset may hold is dropped, and what a
later iteration borrowed from an attempt goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.warehouse.conftest import Make
from warehouse.core.errors import ConfigError
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.reroute import reroute
from warehouse.routing.routed_samples import Stored, store_routed_samples
from warehouse.routing.routes import RoutingConfig, Rule, route
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

EVERYTHING = FailureMiningConfig(corrections=True, reflections=True, solved_attempts_tell=True)
SHORT_ONLY = RoutingConfig(rules={"too_long": Rule(threshold=0.9)})


def act(
    warehouse: Warehouse,
    iteration: str,
    episode_id: str,
    screens: str,
    actions: str,
    *,
    is_solved: bool,
    length: float = 1.0,
    prompt: str = "",
) -> None:
    """An attempt at the one instance, judged; `length` is what the filter of long episodes gives it, by which it passes at 0.5;
    `prompt` is what its prompts begin with, in place of its name."""
    place = {"iteration": iteration, "stage": "rollouts"}
    outcome = "success" if is_solved else "failure"
    row = Make.episode(episode_id, outcome=outcome, reward=float(is_solved), num_steps=len(screens), policy_id="policy-1")
    steps = [
        Make.step(
            episode_id,
            index,
            observation=screen,
            response=f"Action {action}",
            action=f'{{"kind":"{action}"}}',
            messages=Make.messages(f"{prompt or episode_id} {screen}")[:1],
        )
        for index, (screen, action) in enumerate(zip(screens, actions, strict=True))
    ]
    too_long = {"judge": "too_long", "kind": "filter", "origin": "filter", "score": length, "passed": length >= 0.5}
    warehouse.replace_partition("episodes", [row], **place)
    warehouse.replace_partition("steps", steps, **place)
    verdicts = [Make.verdict(episode_id, judge="verifier", score=float(is_solved), passed=is_solved), Make.verdict(episode_id, **too_long)]
    warehouse.replace_partition("verdicts", verdicts, iteration=iteration, stage="verdicts")


def run_iteration(warehouse: Warehouse, iteration: str) -> dict[str, Stored]:
    """As the assets route."""
    with connect(warehouse) as con:
        rows = route(con, iteration=iteration)
    warehouse.replace_partition("routes", rows, iteration=iteration, stage="routing")
    return store_routed_samples(warehouse, iteration, EVERYTHING)


def samples(warehouse: Warehouse, table: str, iteration: str, **wanted: Any) -> list[tuple[str, int, bool]]:
    """(episode, step, withdrawn) of an iteration's samples of an origin."""
    rows = warehouse.read(table, iteration=iteration, stage="routing").to_pylist()
    rows = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted((row["episode_id"], row["step_index"], row["withdrawn"]) for row in rows)


@pytest.fixture
def finished(warehouse: Warehouse) -> Warehouse:
    """A solved attempt in the first iteration, a failed one in the second, which is corrected by it."""
    act(warehouse, "0001", "solved", "ABC", "xyz", is_solved=True, length=0.7)
    act(warehouse, "0002", "failed", "ABC", "xqr", is_solved=False)
    for iteration in ("0001", "0002"):
        run_iteration(warehouse, iteration)
    assert samples(warehouse, "sft_samples", "0002", origin="correction") == [("solved", 1, False)]
    assert samples(warehouse, "sft_samples", "0002", origin="reflection") == [("solved", 2, False)]
    return warehouse


@pytest.mark.usefixtures("tables_place")
@pytest.mark.parametrize("mining", [EVERYTHING, FailureMiningConfig()])
@pytest.mark.slow
def test_what_a_later_iteration_borrowed_goes_with_the_attempt_and_comes_back(finished: Warehouse, mining: FailureMiningConfig) -> None:
    first, later = reroute(finished, SHORT_ONLY, ["0001"], mining)
    assert [(move.episode_id, move.after) for move in first.moves] == [("solved", "ct")]
    assert (later.iteration, later.moves, later.samples) == ("0002", (), {"sft_samples": (0, 2)})
    assert samples(finished, "sft_samples", "0002") == [("solved", 1, True), ("solved", 2, True)], "withdrawn, and still to be found"
    assert samples(finished, "ct_samples", "0002", withdrawn=False) == [("failed", index, False) for index in range(3)]
    assert [result.versions for result in reroute(finished, SHORT_ONLY, ["0001"], mining)] == [{}], "a second run changes nothing"
    _, back = reroute(finished, RoutingConfig(), ["0001"], mining)
    assert back.samples == {"sft_samples": (2, 0)}
    assert samples(finished, "sft_samples", "0002") == [("solved", 1, False), ("solved", 2, False)]


@pytest.mark.usefixtures("tables_place")
@pytest.mark.slow
def test_an_iteration_that_is_routed_again_drops_nothing_that_a_dataset_may_hold(finished: Warehouse) -> None:
    reroute(finished, SHORT_ONLY, ["0001"], EVERYTHING)
    withdrawn = [("solved", index, True) for index in range(3)]
    assert samples(finished, "sft_samples", "0001") == withdrawn
    run_iteration(finished, "0001")
    assert samples(finished, "sft_samples", "0001") == [("solved", index, False) for index in range(3)]
    assert samples(finished, "ct_samples", "0001") == withdrawn, "what the other rules had sent there"
    before = finished.versions()
    run_iteration(finished, "0001")
    assert finished.version("sft_samples") == before["sft_samples"] and finished.version("ct_samples") == before["ct_samples"]
    act(finished, "0001", "another", "ABC", "xyz", is_solved=True)
    run_iteration(finished, "0001")
    assert {name for name, *_ in samples(finished, "sft_samples", "0001")} == {"another"}, "of what was played no more nothing is left"


def test_a_rule_of_nobody_who_ever_judged_is_a_mistake(finished: Warehouse) -> None:
    with pytest.raises(ConfigError, match="no judge is called 'to_long'; is too_long meant"):
        reroute(finished, RoutingConfig(rules={"to_long": Rule(threshold=0.9)}), ["0001"])


@pytest.mark.slow
def test_a_pair_that_an_earlier_iteration_made_is_not_made_again(warehouse: Warehouse) -> None:
    """Another attempt that fails with the same prompt gives the same sample, by the same id: that stands already."""
    act(warehouse, "0001", "solved", "AB", ["right", "end"], is_solved=True)
    act(warehouse, "0002", "failed", "AB", ["wrong", "lost"], is_solved=False, prompt="the same")
    act(warehouse, "0003", "again", "AB", ["worse", "lost"], is_solved=False, prompt="the same")
    act(warehouse, "0004", "other", "AB", ["worse", "lost"], is_solved=False, prompt="another")
    for iteration in ("0001", "0002", "0003", "0004"):
        run_iteration(warehouse, iteration)
    made = {name: samples(warehouse, "sft_samples", name, origin="correction") for name in ("0002", "0003", "0004")}
    assert made == {"0002": [("solved", 0, False)], "0003": [], "0004": [("solved", 0, False)]}
    ids = warehouse.read("sft_samples", columns=["sample_id"])["sample_id"].to_pylist()
    assert len(ids) == len(set(ids))
