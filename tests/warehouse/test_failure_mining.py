"""What failed episodes give: their beginning up to the first wrong step, corrections, reflections; by default nothing more than before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from tests.warehouse.test_samples import annotation, episode, load, sampled, step
from warehouse.routing.failure_mining import FailureMiningConfig

EVERYTHING = FailureMiningConfig(ct_objectives=("until_first_error",), corrections=True, reflections=True, solved_attempts_tell=True)
CERTAIN = EVERYTHING.model_copy(update={"solved_attempts_tell": False})


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def at(episode_id: str, index: int, screen: str, action: str, history: str, **changes: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"{history} {screen}", "screenshot_id": None, "loss": 0.0}]
    return step(episode_id, index, f"Action {action}") | {"observation": screen, "action": action, "messages": prompt} | changes


def route_rows(**destinations: str) -> list[dict[str, Any]]:
    reasons = {"sft": "V=1: verifier", "ct": "V=0: verifier", "withheld": "leak 0 < 1"}
    place = {"iteration": "0001", "stage": "routing"}
    says = {"sft": True, "ct": False}
    return [
        place | {"episode_id": name, "route": where, "reason": reasons[where], "decided_verdict": says.get(where)}
        for name, where in destinations.items()
    ]


ACTIONS = ("open", "wrong", "lost", "x")
FAILED = [at("failed", i, screen, ACTIONS[i], "f") for i, screen in enumerate("ABCD")]
SOLVED = [at("solved", 0, "A", "open", "s"), at("solved", 1, "B", "right", "s"), at("solved", 2, "C", "end", "s")]
PAIR = {
    "episodes": [episode("failed", outcome="failure", reward=0.0), episode("solved", attempt=1)],
    "steps": [*FAILED, *SOLVED],
    "routes": route_rows(failed="ct", solved="sft"),
}


def reported(rows: list[dict[str, Any]], *origins: str) -> list[tuple[Any, ...]]:
    return [
        (row["origin"], row["episode_id"], row["step_index"], row["messages"][0]["content"], row["messages"][-1]["content"])
        for row in rows
        if row["origin"] in origins
    ]


def test_nothing_changes_unless_asked(con: duckdb.DuckDBPyConnection) -> None:
    load(con, **PAIR)
    plain = sampled(con)
    assert plain == sampled(con, mining=FailureMiningConfig())
    assert len(plain["ct_samples"]) == 4 and len(plain["sft_samples"]) == 3


def test_a_failed_attempt_is_cut_corrected_and_reflected_on_beside_a_solved_one(con: duckdb.DuckDBPyConnection) -> None:
    load(con, **PAIR)
    samples = sampled(con, mining=EVERYTHING)
    assert samples == sampled(con, mining=EVERYTHING)
    assert [row["step_index"] for row in samples["ct_samples"]] == [0], "what came after the first wrong step is not learned"
    assert reported(samples["sft_samples"], "correction", "reflection") == [
        ("correction", "solved", 1, "f B", "Action right"),
        ("reflection", "solved", 2, "f C", "Action end"),
    ]
    for row in samples["sft_samples"]:
        assert [message["loss"] for message in row["messages"]] == [0.0, 1.0] and row["verdict"] is True


def test_another_way_is_no_error_unless_somebody_says_so(con: duckdb.DuckDBPyConnection) -> None:
    """What the failed attempt did on a screen and no solved one did may have been as right: without a word of an annotator or a reward
    nothing is cut and nothing corrected."""
    load(con, **PAIR)
    assert sampled(con, mining=CERTAIN) == sampled(con)
    rewarded = PAIR | {"steps": [*FAILED[:1], FAILED[1] | {"reward": -1.0}, *FAILED[2:], *SOLVED]}
    load(con, **rewarded)
    samples = sampled(con, mining=CERTAIN)
    assert [row["step_index"] for row in samples["ct_samples"]] == [0]
    assert reported(samples["sft_samples"], "correction") == [("correction", "solved", 1, "f B", "Action right")]


def test_a_pair_needs_the_same_instance_a_solved_attempt_that_stands_and_another_prompt(con: duckdb.DuckDBPyConnection) -> None:
    other_seed = PAIR | {"episodes": [PAIR["episodes"][0], episode("solved", seed=2)]}
    withheld = PAIR | {"routes": route_rows(failed="ct", solved="withheld")}
    kept_out = PAIR | {"routes": route_rows(failed="withheld", solved="sft")}
    for tables in (other_seed, withheld, kept_out):
        load(con, **tables)
        assert reported(sampled(con, mining=EVERYTHING)["sft_samples"], "correction", "reflection") == []
    same_prompt = PAIR | {"steps": [*FAILED, *(row | {"messages": FAILED[i]["messages"]} for i, row in enumerate(SOLVED))]}
    load(con, **same_prompt)
    assert reported(sampled(con, mining=EVERYTHING)["sft_samples"], "correction", "reflection") == []


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"annotations": [annotation("failed", 2, "override", withdrawn=False), annotation("failed", 0, "accept")]}, 2),
        ({"annotations": [annotation("failed", 1, "beyond_repair", None)]}, 1),
        ({"annotations": [annotation("failed", 1, "override", mode="intervene")]}, 4),
        ({"annotations": [annotation("failed", 1, "override", withdrawn=True)]}, 4),
        ({"steps": [*FAILED[:2], FAILED[2] | {"reward": -0.5}, FAILED[3]]}, 2),
        ({"steps": [FAILED[0] | {"reward": 0.2}, FAILED[1] | {"reward": 0.1}, *FAILED[2:]]}, 2),
    ],
)
def test_annotations_and_step_rewards_tell_the_first_wrong_step(con: duckdb.DuckDBPyConnection, changes: dict[str, Any], kept: int) -> None:
    alone = {"episodes": PAIR["episodes"][:1], "steps": FAILED, "routes": route_rows(failed="ct")}
    load(con, **(alone | changes))
    left_out: Counter[str] = Counter()
    rows = sampled(con, mining=FailureMiningConfig(ct_objectives=("until_first_error",)), left_out=left_out)["ct_samples"]
    assert [row["step_index"] for row in rows] == list(range(kept))
    assert left_out == Counter({"until_first_error": len(FAILED) - kept})


def test_several_that_failed_after_the_same_beginning_give_one_pair_which_names_them_all(con: duckdb.DuckDBPyConnection) -> None:
    failed_again = [row | {"episode_id": "failed_again", "action": row["action"] if i != 1 else "other"} for i, row in enumerate(FAILED)]
    episodes = [*PAIR["episodes"], episode("failed_again", attempt=2, outcome="failure", reward=0.0)]
    load(con, episodes=episodes, steps=[*FAILED, *failed_again, *SOLVED], routes=route_rows(failed="ct", solved="sft", failed_again="ct"))
    (row,) = (row for row in sampled(con, mining=EVERYTHING)["sft_samples"] if row["origin"] == "correction")
    assert (row["episode_id"], row["prompt_episode_ids"], row["prompt_step_indices"]) == ("solved", ["failed", "failed_again"], [1, 1])
