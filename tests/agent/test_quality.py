"""Each quality filter on small episodes written down as table rows, and the rows of `verdicts` made of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.quality import FILTERS, Context, FilterResult, QualityConfig, quality, trajectory
from agent.verdicts import iteration_verdicts, verdict_rows
from warehouse.catalogue import TABLES
from warehouse.home import Home
from warehouse.tables import Warehouse

CONFIG = QualityConfig()
CLICK_OK = 'Thought click "Ok" <button> [1] Action click [1]'


def episode_row(episode_id: str = "episode-1", **changes: Any) -> dict[str, Any]:
    row = {
        "iteration": "0001", "episode_id": episode_id, "purpose": "rollout", "task_id": "task-a", "split": "train",
        "instruction": 'Click the "Ok" button.', "outcome": "success", "reward": 1.0,
    }
    return row | changes


def step_row(index: int = 0, episode_id: str = "episode-1", **changes: Any) -> dict[str, Any]:
    row = {
        "episode_id": episode_id, "step_index": index, "screenshot_id": None,
        "observation": f'"Ok" <button> [1]\n"screen {index}" <text> [2]',
        "messages": [{"role": "user", "content": 'Click the "Ok" button.', "screenshot_id": None, "loss": 0.0}], "response": CLICK_OK,
        "thought": 'click "Ok" <button> [1]', "action": json.dumps({"kind": "click", "x": 10, "y": 20, "button": "left", "count": 1}),
    }
    return row | changes


def judge(
    name: str, steps: list[dict[str, Any]], *, config: QualityConfig = CONFIG, context: Context | None = None, **episode: Any
) -> FilterResult:
    results = quality(trajectory(episode_row(**episode), steps), config, context or Context())
    return next(result for result in results if result.judge == name)


def test_a_good_episode_passes_every_filter() -> None:
    results = quality(trajectory(episode_row(), [step_row(0), step_row(1)]), CONFIG, Context())
    assert len(results) == len(FILTERS) == len({result.judge for result in results})
    assert all(result.passed and result.score == 1.0 and not result.reasons for result in results)


def test_format_counts_invalid_actions_and_gives_their_reason() -> None:
    bad = step_row(1, action=json.dumps({"kind": "invalid", "text": "clik", "reason": "unknown verb 'clik'"}))
    result = judge("format", [step_row(0), bad])
    assert not result.passed and result.score == 0.5 and result.reasons == ("step 1: unknown verb 'clik'",)
    assert judge("format", [step_row(0), bad], config=QualityConfig(min_valid_fraction=0.5)).passed
    assert not judge("format", [step_row(0, action="{not json")]).passed
    several = {"kind": "several", "actions": [{"kind": "wait"}, {"kind": "invalid", "text": "?", "reason": "no such verb"}]}
    assert judge("format", [step_row(0, action=json.dumps(several))]).reasons == ("step 0: no such verb",)


def test_no_op_needs_elements_and_pixels_unchanged() -> None:
    same = [step_row(index, observation="<button> \"Ok\" [1]", screenshot_id="screen-1") for index in range(3)]
    result = judge("no_op", same)
    assert not result.passed and result.score == 0.0 and result.reasons == ("step 0 changed nothing", "step 1 changed nothing")
    moved = [row | {"screenshot_id": f"screen-{i}"} for i, row in enumerate(same)]
    assert judge("no_op", moved).passed
    waits = [row | {"action": json.dumps({"kind": "wait", "seconds": 1})} for row in same]
    assert judge("no_op", waits).score == 1.0
    assert judge("no_op", same[:1]).score == 1.0, "what the last action changed is unknown"


def test_loop_finds_any_period() -> None:
    screens = ["A", "B", "A", "B", "A", "B"]
    result = judge("loop", [step_row(i, observation=screen) for i, screen in enumerate(screens)])
    assert not result.passed and result.score == pytest.approx(2 / 6) and "step 2 repeats step 0" in result.reasons
    scrolling = [step_row(i, observation=f"page {i}") for i in range(6)]
    assert judge("loop", scrolling).passed, "the same action on new screens is no loop"


def test_lengths() -> None:
    many = [step_row(i) for i in range(20)]
    assert not judge("too_long", many).passed
    assert judge("too_long", many, context=Context(typical_steps={"task-a": 7.0})).passed
    assert judge("too_long", many[:8]).passed
    assert not judge("too_short", []).passed
    empty = judge("too_short", [step_row(0), step_row(1, response="  ")])
    assert not empty.passed and empty.reasons == ("step 1 is empty",)


@pytest.mark.parametrize(
    ("response", "contradicts"),
    [
        (CLICK_OK, False),
        ('Thought click "Ok" <button> [1] Action click [3]', True),
        ('Thought click "[7]" <button> [1] Action click [1]', False),
        ('Thought type Action type "hello [4]"', False),
        ('Thought type Action click [2]', True),
        ("Action click [2]", False),
        ("Thought: I should press the button.\nAction: click(start_box='(1,2)')", False),
        ('Thought drag "a" <item> [1] "b" <item> [4] Action drag [1] [4]', False),
    ],
)
def test_contradiction_of_thought_and_action(response: str, contradicts: bool) -> None:
    assert judge("contradiction", [step_row(response=response)]).passed is not contradicts


def test_leak_of_hidden_data_and_of_words_that_were_nowhere() -> None:
    shown = [{"role": "user", "content": '{"color": "red", "answer": "blue"}', "screenshot_id": None, "loss": 0.0}]
    assert not judge("leak", [step_row(messages=shown)]).passed
    typed = step_row(action=json.dumps({"kind": "type", "text": "secretword"}))
    result = judge("leak", [typed])
    assert not result.passed and "'secretword' was nowhere to be read" in result.reasons[0]
    assert judge("leak", [typed], reward=0.0, outcome="failure").passed, "a wrong guess is no leak"
    assert judge("leak", [typed | {"action": json.dumps({"kind": "type", "text": "42 BUTTON"})}]).passed
    unread = typed | {"action": json.dumps({"kind": "invalid", "text": "secretword", "reason": "unparseable"})}
    assert judge("leak", [unread]).passed, "what was not done leaks nothing"
    image = [{"role": "user", "content": "look", "screenshot_id": "screen-1", "loss": 0.0}]
    assert judge("leak", [typed | {"messages": image}]).passed, "it may have been read from the pixels"


def test_contamination() -> None:
    assert judge("contamination", [step_row()]).passed
    assert judge("contamination", [step_row()], split="holdout").reasons == ("the instance belongs to the holdout split",)


def results_by(rows: list[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    return {row["episode_id"]: row for row in rows if row["judge"] == name}


def test_duplicates_are_later_episodes_with_the_same_actions_on_like_screens() -> None:
    episodes = [episode_row("e1"), episode_row("e2", seed=5), episode_row("e3"), episode_row("e4", instruction="Another.")]
    steps = [
        step_row(0, "e1"), step_row(0, "e2"), step_row(0, "e4"),
        step_row(0, "e3", observation="\n".join(f'<button> "{word}" [{i}]' for i, word in enumerate("abcdef", 1))),
    ]
    found = results_by(verdict_rows(episodes, steps, CONFIG), "duplicate")
    assert [found[e]["passed"] for e in ("e1", "e2", "e3", "e4")] == [True, False, True, True]
    assert found["e2"]["reasons"] == ["1.00 like e1"]


def test_duplicates_reach_back_but_an_annotated_episode_only_to_annotated_ones() -> None:
    episodes = [
        episode_row("z-early"), episode_row("a-late", iteration="0002"), episode_row("b-annotated", iteration="0002", purpose="annotation"),
        episode_row("c-evaluated", iteration="0002", purpose="evaluation"), episode_row("z-early", iteration="0002"),
    ]
    steps = [step_row(0, row["episode_id"]) for row in episodes]
    rows = verdict_rows(episodes, steps, CONFIG, iteration="0002")
    found = results_by(rows, "duplicate")
    assert found.keys() == {"a-late", "b-annotated"}
    assert not found["a-late"]["passed"] and found["b-annotated"]["passed"]


def test_crashed_and_foreign_episodes_are_no_originals_and_have_no_verdict() -> None:
    episodes = [episode_row("a", outcome="crashed", reward=None), episode_row("b", split="eval"), episode_row("c")]
    rows = verdict_rows(episodes, [step_row(0, e["episode_id"]) for e in episodes], CONFIG)
    assert results_by(rows, "verifier").keys() == {"b", "c"}
    assert results_by(rows, "duplicate")["c"]["passed"]


def test_rows_fit_the_catalogue_and_come_from_arrow_or_mappings_alike() -> None:
    episodes = [episode_row("e1"), episode_row("e2", reward=-1.0, outcome="failure")]
    steps = [step_row(i, e["episode_id"]) for e in episodes for i in range(2)]
    rows = verdict_rows(episodes, steps, CONFIG)
    step_schema = pa.schema([field for field in TABLES["steps"].schema if field.name in steps[0]])
    assert verdict_rows(pa.Table.from_pylist(episodes), pa.Table.from_pylist(steps, schema=step_schema), CONFIG) == rows
    table = TABLES["verdicts"]
    full = pa.Table.from_pylist([row | {"iteration": "0001", "stage": "verdicts"} for row in rows], schema=table.schema)
    assert full.num_rows == 2 * (1 + len(FILTERS))
    for row in rows:
        assert row["kind"] in (table.column("kind").values or ()) and row["origin"] in (table.column("origin").values or ())
    verifier = results_by(rows, "verifier")
    assert verifier["e1"]["passed"] and not verifier["e2"]["passed"] and verifier["e2"]["score"] == 0.0


def test_history_is_judged_again_from_the_tables_alone(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    episodes = [episode_row("a"), episode_row("b", iteration="0002"), episode_row("c", iteration="0003")]
    steps = [step_row(index, row["episode_id"]) for row in episodes for index in range(2)]
    for row in episodes:
        rest = {
            "task_name": "a", "domain": "d", "seed": 1, "attempt": 0, "policy_id": "p", "temperature": 1.0, "num_steps": 2,
            "num_retries": 0, "duration_ms": 1.0, "environment": "e",
        }  # fmt: skip
        more = {
            "policy_id": "p", "prompt_token_ids": [], "response_token_ids": [], "response_logprobs": [], "reward": 0.0, "latency_ms": 1.0,
        }  # fmt: skip
        own = [step | more for step in steps if step["episode_id"] == row["episode_id"]]
        warehouse.replace_partition("episodes", [row | rest], iteration=row["iteration"], stage="rollouts")
        warehouse.replace_partition("steps", own, iteration=row["iteration"], stage="rollouts")
    rows = iteration_verdicts(warehouse, "0002", CONFIG)
    assert rows == verdict_rows(episodes[:2], steps[:4], CONFIG, iteration="0002"), "later iterations are not looked at"
    assert not results_by(rows, "duplicate")["b"]["passed"]
    strict = iteration_verdicts(warehouse, "0002", QualityConfig(min_fresh_fraction=1.0, min_novelty=0.0))
    assert results_by(strict, "duplicate")["b"]["passed"]
    assert iteration_verdicts(warehouse, "0009", CONFIG) == []


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_verdicts_do_not_depend_on_row_order_and_scores_are_shares(seed: int, num: int) -> None:
    rng = random.Random(seed)
    episodes = [
        episode_row(
            f"e{i}", purpose=rng.choice(["rollout", "annotation"]), iteration=rng.choice(["0001", "0002"]), reward=rng.choice([0.0, 1.0]),
            split=rng.choice(["train", "train", "eval"]), instruction=rng.choice(["One.", "Two."]),
        )
        for i in range(num)
    ]
    steps = [step_row(k, e["episode_id"], observation=rng.choice(["A", "B"])) for e in episodes for k in range(rng.randint(0, 4))]
    rows = verdict_rows(episodes, steps, CONFIG)
    rng.shuffle(episodes)
    rng.shuffle(steps)
    assert verdict_rows(episodes, steps, CONFIG) == rows
    assert all(0 <= row["score"] <= 1 and row["passed"] == (row["score"] >= row["threshold"]) for row in rows)
