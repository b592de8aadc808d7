"""Samples of routed episodes and annotations: which steps become what, with which loss, and what never does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.routing.samples import PART_ROWS, ROUTED_TABLES, demonstration_rows, sample_parts, sample_row, tutorial_rows
from warehouse.storage.catalogue import TABLES

PROMPT = [{"role": "user", "content": "Click.", "screenshot_id": None, "loss": 0.0}]
IT = {"iteration": "0001", "stage": "s"}


def step(episode_id: str, index: int, response: str = "Action click [1]") -> dict[str, Any]:
    return IT | {
        "episode_id": episode_id,
        "step_index": index,
        "policy_id": "p",
        "observation": "",
        "screenshot_id": None,
        "messages": PROMPT,
        "response": response,
        "thought": None,
        "action": "{}",
        "prompt_token_ids": [],
        "response_token_ids": [],
        "response_logprobs": [],
        "reward": 0.0,
        "latency_ms": 1.0,
    }


def episode(episode_id: str, purpose: str = "rollout", **changes: Any) -> dict[str, Any]:
    return (
        IT
        | {
            "episode_id": episode_id,
            "purpose": purpose,
            "task_id": "task-a",
            "task_name": "a",
            "domain": "pointing",
            "seed": 1,
            "split": "train",
            "attempt": 0,
            "policy_id": "p",
            "temperature": 1.0,
            "instruction": "Click.",
            "outcome": "success",
            "reward": 1.0,
            "num_steps": 1,
            "num_retries": 0,
            "error": None,
            "duration_ms": 1.0,
            "environment": "env",
        }
        | changes
    )


def annotation(episode_id: str, index: int, decision: str, response: str | None = "Action click [2]", **changes: Any) -> dict[str, Any]:
    return (
        IT
        | {
            "annotation_id": f"annotation-{episode_id}-{index}",
            "episode_id": episode_id,
            "step_index": index,
            "annotator": "oracle",
            "origin": "scripted",
            "mode": "relabel",
            "decision": decision,
            "proposal": "Action click [1]",
            "response": response,
            "messages": PROMPT,
            "withdrawn": False,
        }
        | changes
    )


def routes(**destinations: str) -> list[dict[str, Any]]:
    reasons = {"sft": "V=1: verifier", "ct": "V=0: verifier", "withheld": "duplicate 0.00 < 0.10"}
    says = {"sft": True, "ct": False}
    return [
        IT | {"episode_id": episode_id, "route": where, "reason": reasons[where], "decided_verdict": says.get(where)}
        for episode_id, where in destinations.items()
    ]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def load(con: duckdb.DuckDBPyConnection, **tables: list[dict[str, Any]]) -> None:
    for name in ("episodes", "steps", "routes", "annotations"):
        con.register(name, pa.Table.from_pylist(tables.get(name, []), schema=TABLES[name].schema))


def sampled(con: duckdb.DuckDBPyConnection, iteration: str = "0001", **settings: Any) -> dict[str, list[dict[str, Any]]]:
    """All parts of what an iteration gives, by table."""
    return {table: [row for part in sample_parts(con, table, iteration, **settings) for row in part.to_pylist()] for table in ROUTED_TABLES}


def test_each_step_becomes_one_sample_where_its_episode_went(con: duckdb.DuckDBPyConnection) -> None:
    load(
        con,
        episodes=[episode("good"), episode("bad"), episode("dup")],
        steps=[step("good", 0), step("good", 1), step("bad", 0), step("bad", 1, response="  "), step("dup", 0)],
        routes=routes(good="sft", bad="ct", dup="withheld"),
    )
    samples = sampled(con)
    assert [(row["episode_id"], row["step_index"]) for row in samples["sft_samples"]] == [("good", 0), ("good", 1)]
    assert [(row["episode_id"], row["step_index"]) for row in samples["ct_samples"]] == [("bad", 0)], "an empty answer teaches nothing"
    good, bad = samples["sft_samples"][0], samples["ct_samples"][0]
    assert [m["loss"] for m in good["messages"]] == [0.0, 1.0] and [m["loss"] for m in bad["messages"]] == [0.0, 1.0]
    assert good["messages"][-1] == {"role": "assistant", "content": "Action click [1]", "screenshot_id": None, "loss": 1.0}
    assert good["verdict"] is True and bad["verdict"] is False and good["origin"] == bad["origin"] == "rollout"
    assert sampled(con, "0002") == {"ct_samples": [], "sft_samples": []}


def test_annotated_steps_join_sft_whatever_v_but_never_from_a_withheld_episode(con: duckdb.DuckDBPyConnection) -> None:
    load(
        con,
        episodes=[episode(name, "annotation") for name in ("good", "bad", "dup")],
        steps=[step("good", 0), step("good", 1), step("bad", 0), step("bad", 1), step("dup", 0)],
        routes=routes(good="sft", bad="ct", dup="withheld"),
        annotations=[
            annotation("good", 0, "accept", "Action click [1]"),
            annotation("bad", 0, "override"),
            annotation("dup", 0, "override"),
            annotation("bad", 1, "beyond_repair", None),
        ],
    )
    samples = sampled(con)
    made = {(row["episode_id"], row["step_index"]): row for row in samples["sft_samples"]}
    assert made.keys() == {("good", 0), ("good", 1), ("bad", 0)}
    assert made["good", 0]["origin"] == "annotation" and made["good", 1]["origin"] == "rollout", "no step comes in twice"
    corrected = made["bad", 0]
    assert corrected["verdict"] is False and corrected["annotation_id"] == "annotation-bad-0"
    assert [(m["content"], m["loss"]) for m in corrected["messages"]] == [("Click.", 0.0), ("Action click [2]", 1.0)]
    assert [(row["episode_id"], row["step_index"]) for row in samples["ct_samples"]] == [("bad", 0), ("bad", 1)]


def test_sft_holds_v0_only_by_annotation_and_withdrawn_annotations_give_nothing(con: duckdb.DuckDBPyConnection) -> None:
    load(
        con,
        episodes=[episode("bad", "annotation"), episode("fail")],
        steps=[step("bad", 0), step("bad", 1), step("fail", 0)],
        routes=routes(bad="ct", fail="ct"),
        annotations=[annotation("bad", 0, "override", withdrawn=True), annotation("bad", 1, "override")],
    )
    rows = [row | IT for row in sampled(con)["sft_samples"]]
    con.register("sft_samples", pa.Table.from_pylist(rows, schema=TABLES["sft_samples"].schema))
    assert con.execute("select step_index from sft_samples").fetchall() == [(1,)]
    assert con.execute("select count(*) from sft_samples where not verdict and annotation_id is null").fetchone() == (0,)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_on_any_history_each_trained_step_is_there_once_and_no_withheld_one(seed: int, num: int) -> None:
    rng = random.Random(seed)
    names = [f"e{i}" for i in range(num)]
    purpose = {name: rng.choice(["rollout", "annotation"]) for name in names}
    annotations = [
        annotation(name, index, rng.choice(["accept", "override", "beyond_repair"]), withdrawn=rng.random() < 0.2)
        for name in names
        if purpose[name] == "annotation"
        for index in range(3)
        if rng.random() < 0.6
    ]
    with duckdb.connect() as con:
        load(
            con,
            episodes=[episode(name, purpose[name]) for name in names],
            steps=[step(name, index) for name in names for index in range(3)],
            routes=routes(**{name: rng.choice(["sft", "ct", "withheld"]) for name in names}),
            annotations=annotations,
        )
        for table, rows in sampled(con).items():
            con.register(table, pa.Table.from_pylist([row | IT for row in rows], schema=TABLES[table].schema))
        checks = {
            "V=0 joins SFT only by annotation": "from sft_samples where not verdict and annotation_id is null",
            "nothing is withheld and trained on": "from (from sft_samples union all from ct_samples) join routes using (episode_id) "
            "where route = 'withheld'",
            "no step is in SFT twice": "from (from sft_samples select episode_id, step_index group by all having count(*) > 1)",
            "no withdrawn annotation": "from sft_samples s join annotations a using (annotation_id) where a.withdrawn",
            "loss on the answer alone": "from sft_samples where list_sum([m.loss for m in messages[:-2]]) > 0 or messages[-1].loss <> 1",
            "every failed step is in CT": "from steps join routes using (episode_id) anti join ct_samples using (episode_id, step_index) "
            "where route = 'ct'",
            "ids are unique": "from (from (from sft_samples union all from ct_samples) select sample_id group by all having count(*) > 1)",
        }
        assert {name: con.execute(f"select count(*) {sql}").fetchone() for name, sql in checks.items()} == dict.fromkeys(checks, (0,))


def test_rows_fit_the_catalogue_and_ids_are_unique_and_stable(con: duckdb.DuckDBPyConnection) -> None:
    load(con, episodes=[episode("a"), episode("b")], steps=[step("a", 0), step("a", 1), step("b", 0)], routes=routes(a="sft", b="ct"))
    samples = sampled(con)
    assert samples == sampled(con)
    for table, rows in samples.items():
        pa.Table.from_pylist([row | IT for row in rows], schema=TABLES[table].schema)
        assert all(row.keys() | IT.keys() == {column.name for column in TABLES[table].columns} for row in rows)
    ids = [row["sample_id"] for rows in samples.values() for row in rows]
    assert len(set(ids)) == len(ids) == 3


def test_demonstrations_and_tutorials() -> None:
    episodes = [episode("won", "seed"), episode("lost", "seed", outcome="failure"), episode("eval", "seed", split="eval")]
    rows = demonstration_rows(episodes, [step(name, 0) for name in ("won", "lost", "eval")])
    assert [(row["episode_id"], row["origin"], row["verdict"]) for row in rows] == [("won", "demonstration", True)]
    text = [{"role": "user", "content": "How to?", "loss": 0.5}, {"role": "assistant", "content": "So.", "loss": 1.0}]
    tutorials = tutorial_rows([text, text, [*text, text[0]]])
    assert len(tutorials) == 2 and tutorials[0]["domain"] == "general" and tutorials[0]["verdict"] is None
    assert [m["loss"] for m in tutorials[0]["messages"]] == [0.5, 1.0]
    with pytest.raises(TypeError, match="no column"):
        sample_row("sft", origin="rollout", domain="d", messages=[], response="r", episode="e")


def test_parts_are_bounded_and_together_what_each_step_gives_alone(con: duckdb.DuckDBPyConnection) -> None:
    """Each id is made of the same content as ever, whatever came in one part with it."""
    went = {f"e{i:02d}": "sft" if i % 3 else "ct" for i in range(30)}
    answers = [f"Action click [{index}]" for index in range(300)]
    steps = [step(name, index, answer) for name in went for index, answer in enumerate(answers)]
    load(con, episodes=[episode(name) for name in went], steps=steps, routes=routes(**went))
    for table, kind in (("ct_samples", "ct"), ("sft_samples", "sft")):
        expected = [
            sample_row(
                kind,
                origin="rollout",
                domain="pointing",
                messages=PROMPT,
                response=answer,
                episode_id=name,
                step_index=index,
                verdict=kind == "sft",
            )
            for name, route in went.items()
            if route == kind
            for index, answer in enumerate(answers)
        ]
        parts = list(sample_parts(con, table, "0001"))
        assert [row for part in parts for row in part.to_pylist()] == expected, "in the order in which they are stored"
        assert max(part.num_rows for part in parts) <= PART_ROWS
    assert len(parts) > 1
