"""Each quality filter on small episodes written down as table rows, and the rows of `verdicts` made of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.grammars.registry import GRAMMARS
from sandbox.actions import Action, Click, TypeText
from sandbox.session import Element, Observation
from tests.warehouse import quality_reference
from tests.warehouse.judging import CLICK_OK, Row, by_judge, episode_row, judged, step_row, steps_of, verdicts_of
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.quality.config import QualityConfig
from warehouse.quality.contradictions import Said, contradictions_in
from warehouse.quality.verdict_rows import VERDICTS_SCHEMA
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import Warehouse

CONFIG = QualityConfig()


def test_typed_words_may_stand_in_any_prompt_so_far_and_in_no_later_one() -> None:
    def step(index: int, shown: str, typed: str = "") -> Row:
        action = {"kind": "type", "text": typed} if typed else {"kind": "wait", "seconds": 1.0}
        prompt = [{"role": "user", "content": shown, "screenshot_id": None, "loss": 0.0}]
        return step_row(index, action=json.dumps(action), messages=prompt)

    found = verdict("leak", [step(0, "Alphabet"), step(1, "nothing", "ALPHABET lateword"), step(2, "lateword"), step(3, "", "lateword")])
    assert found["reasons"] == ["step 1: 'lateword' was nowhere to be read"]


def verdict(name: str, steps: list[Row], config: QualityConfig = CONFIG, **episode: Any) -> Row:
    return by_judge(judged([episode_row(**episode)], steps, config), name)["episode-1"]


def passes(name: str, steps: list[Row], config: QualityConfig = CONFIG, **episode: Any) -> bool:
    return bool(verdict(name, steps, config, **episode)["passed"])


def test_a_good_episode_passes_every_filter() -> None:
    rows = judged([episode_row()], [step_row(0), step_row(1)])
    assert [row["judge"] for row in rows] == [
        "verifier",
        "contamination",
        "contradiction",
        "duplicate",
        "format",
        "leak",
        "loop",
        "no_op",
        "repeats",
        "settled",
        "too_long",
        "too_short",
    ]
    assert all(row["passed"] and row["score"] == 1.0 for row in rows)
    assert all(row["reasons"] == [] for row in rows[1:])


def test_format_counts_invalid_actions_and_gives_their_reason() -> None:
    bad = step_row(1, action=json.dumps({"kind": "invalid", "text": "clik", "reason": "unknown verb 'clik'"}))
    found = verdict("format", [step_row(0), bad])
    assert not found["passed"] and found["score"] == 0.5 and found["reasons"] == ["step 1: unknown verb 'clik'"]
    assert passes("format", [step_row(0), bad], QualityConfig(min_valid_fraction=0.5))
    assert not passes("format", [step_row(0, action="{not json")])
    several = {"kind": "several", "actions": [{"kind": "wait"}, {"kind": "invalid", "text": "?", "reason": "no such verb"}]}
    assert verdict("format", [step_row(0, action=json.dumps(several))])["reasons"] == ["step 0: no such verb"]


def test_no_op_needs_elements_and_pixels_unchanged() -> None:
    same = [step_row(index, observation='<button> "Ok" [1]', screenshot_id="screen-1") for index in range(3)]
    found = verdict("no_op", same)
    assert not found["passed"] and found["score"] == 0.0 and found["reasons"] == ["step 0 changed nothing", "step 1 changed nothing"]
    assert passes("no_op", [row | {"screenshot_id": f"screen-{i}"} for i, row in enumerate(same)])
    assert verdict("no_op", [row | {"action": json.dumps({"kind": "wait", "seconds": 1})} for row in same])["score"] == 1.0
    assert verdict("no_op", same[:1])["score"] == 1.0, "what the last action changed is unknown"


def test_loop_finds_any_period_and_repeats_any_screens() -> None:
    found = verdict("loop", [step_row(i, observation=screen) for i, screen in enumerate("ABABAB")])
    assert not found["passed"] and found["score"] == pytest.approx(2 / 6) and "step 2 repeats step 0" in found["reasons"]
    scrolling = [step_row(i, observation=f"page {i}") for i in range(6)]
    assert passes("loop", scrolling), "the same action on new screens is not a loop"
    assert passes("repeats", scrolling)
    often = verdict("repeats", scrolling, QualityConfig(max_repeats=3))
    assert not often["passed"] and often["score"] == 0.5 and often["reasons"] == ["steps 0 to 5 repeat one action 6 times"]


def test_settled_names_steps_on_screens_that_load_or_show_nothing() -> None:
    steps = [step_row(0, observation='"Loading…" <text>'), step_row(1, observation=""), step_row(2), step_row(3)]
    found = verdict("settled", steps)
    assert found["passed"] and found["score"] == 0.5, "only recorded, unless a share is asked for"
    assert found["reasons"] == ["step 0 was taken on a screen that is still loading", "step 1 was taken on a screen that shows nothing"]
    assert not passes("settled", steps, QualityConfig(min_settled_fraction=0.9))
    waits = [row | {"action": json.dumps({"kind": "wait", "seconds": 1})} for row in steps[:2]]
    assert verdict("settled", [*waits, *steps[2:]])["score"] == 1.0, "to wait is right"
    assert verdict("settled", [step_row(0, observation="")])["score"] == 1.0, "a session that shows no screens at all"


def test_lengths() -> None:
    many = [step_row(i) for i in range(20)]
    assert not passes("too_long", many, reward=0.0)
    assert passes("too_long", many), "it is the task's only solved episode"
    assert passes("too_long", many[:8], reward=0.0)
    assert not passes("too_short", [])
    empty = verdict("too_short", [step_row(0), step_row(1, response="  ")])
    assert not empty["passed"] and empty["reasons"] == ["step 1 is empty"]


@pytest.mark.parametrize(
    ("thought", "done", "contradicts"),
    [
        ('click "Ok" <button> [1]', {"kind": "click"}, False),
        ("triple_click the line", {"kind": "click"}, False),
        ("type", {"kind": "type"}, False),
        ("type", {"kind": "click"}, True),
        ('type "click me" <button>', {"kind": "click"}, True),
        ("click the field <input>", {"kind": "type"}, True),
        ("scroll, then wait", {"kind": "several", "actions": [{"kind": "scroll"}, {"kind": "wait"}]}, False),
        ("drag it", {"kind": "several", "actions": [{"kind": "click"}, {"kind": "wait"}]}, True),
    ],
)
def test_contradiction_of_thought_and_action(thought: str, done: Row, contradicts: bool) -> None:
    assert passes("contradiction", [step_row(thought=thought, action=json.dumps(done))]) is not contradicts
    kinds = tuple(one["kind"] for one in done.get("actions", [done]))
    assert (contradictions_in([Said(None, ("click",)), Said(thought, kinds)])[1] is not None) is contradicts


BUTTON = Element(role="button", text="Ok", x_px=500, y_px=500, width_px=100, height_px=40)
OBSERVATION = Observation(instruction="Do it.", elements=(BUTTON,), screenshot=None, width_px=1000, height_px=1000, time_ms=0.0)
CLICK, TYPE = Click(x=500, y=500), TypeText(text="x")


@pytest.mark.parametrize("name", GRAMMARS)
def test_contradiction_in_every_grammar(name: str) -> None:
    """As a policy of that grammar writes it, and as the steps have it."""
    grammar = GRAMMARS[name]

    def of(thought: str, *done: Action) -> tuple[Row, Said]:
        response = grammar.format(thought, done[0], OBSERVATION)
        read = grammar.parse(response, OBSERVATION)
        assert read.actions == done[:1]
        row = step_row(response=response, thought=read.thought, action=done[0].model_dump_json())
        return row, Said(read.thought, tuple(action.kind for action in read.actions))

    good = [of("click the button", CLICK), of("click [1]", CLICK), of("type a word", TYPE), of("Now I'll press the Ok button.", CLICK)]
    good.append(of("Click the field and type", TYPE))
    bad = [of("type a word", CLICK), of("click the button", TYPE), of("click [3]", TYPE), of("Scrolling down to see more", CLICK)]
    bad += [of("I will double-click the icon.", TYPE), of("Wait for the page to load.", CLICK)]
    assert contradictions_in([said for _, said in good]) == [None] * len(good)
    assert None not in contradictions_in([said for _, said in bad])
    found = verdict("contradiction", [row | {"step_index": index} for index, (row, _) in enumerate([*good, *bad])])
    assert found["judge_version"] == "4" and not found["passed"]
    assert [reason.partition(":")[0] for reason in found["reasons"]] == [f"step {len(good) + index}" for index in range(len(bad))]
    assert found["reasons"][0] == f"step {len(good)}: the thought says type, the action click"


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_names_no_verb_is_not_asked(name: str) -> None:
    grammar = GRAMMARS[name]
    thoughts = ("The button is at the bottom.", "I need to type my name first.", "Wait, that was wrong.", None)
    steps = [
        step_row(index, response=grammar.format(thought, CLICK, OBSERVATION), thought=thought, action=CLICK.model_dump_json())
        for index, thought in enumerate(thoughts)
    ]
    assert not by_judge(judged([episode_row()], steps), "contradiction"), "as little as `balance` where nothing is ranked"
    asked = [
        *steps,
        *(
            step_row(4 + i, response=f"Thought: x\nAction: {i}", thought="Click it", action=json.dumps(done))
            for i, done in enumerate([{"kind": "click"}, {"kind": "scroll"}])
        ),
    ]
    found = verdict("contradiction", asked)
    assert found["score"] == 0.5 and found["reasons"] == ["step 5: the thought says click, the action scroll"]


def test_grammars_that_write_the_same_actions_get_the_same_verdicts() -> None:
    """Whatever the text, of what was thought and done alone: in the compact grammar and in one that writes pixels."""
    clicks = [Click(x=100 * k, y=40) for k in range(1, 4)]
    seen = replace(OBSERVATION, elements=tuple(replace(BUTTON, x_px=click.x, y_px=click.y) for click in clicks))
    draw = random.Random(1)
    thoughts = ("click it", "type it", "It is there.")
    moves = [[(draw.choice(thoughts), draw.choice((*clicks, TYPE))) for _ in range(4)] for _ in range(12)]
    moves += moves[:4]

    def verdicts(name: str) -> list[Row]:
        steps = []
        for number, of_episode in enumerate(moves):
            for index, (thought, action) in enumerate(of_episode):
                response = GRAMMARS[name].format(thought, action, seen)
                read = GRAMMARS[name].parse(response, seen)
                assert read.actions == (action,)
                row = {"response": response, "thought": read.thought, "action": read.actions[0].model_dump_json()}
                steps.append(step_row(index, f"episode-{number:02}", **row, observation=f"page {index % 3}"))
        episodes = [episode_row(f"episode-{number:02}") for number in range(len(moves))]
        return judged(episodes, steps, QualityConfig(min_trajectory_novelty=0.2, max_repeats=1, min_fresh_fraction=1.0))

    compact = verdicts("compact")
    assert all(verdicts(name) == compact for name in GRAMMARS)
    failed = {row["judge"] for row in compact if not row["passed"]}
    assert failed >= {"contradiction", "duplicate", "near_duplicate", "loop", "repeats"}, "else it proves little"


def test_leak_of_hidden_data_and_of_words_that_were_nowhere() -> None:
    shown = [{"role": "user", "content": 'so:\n{"color": "red", "answer": "blue"}', "screenshot_id": None, "loss": 0.0}]
    assert verdict("leak", [step_row(messages=shown)])["reasons"] == [
        'step 0: hidden data \'{"color": "red", "answer":\'',
        "step 0: hidden data '\"answer\":'",
    ]
    typed = step_row(action=json.dumps({"kind": "type", "text": "secretword"}))
    found = verdict("leak", [typed])
    assert not found["passed"] and found["reasons"] == ["step 0: 'secretword' was nowhere to be read"]
    assert passes("leak", [typed], reward=0.0, outcome="failure"), "a wrong guess is not a leak"
    assert passes("leak", [typed | {"action": json.dumps({"kind": "type", "text": "42 BUTTON"})}])
    unread = typed | {"action": json.dumps({"kind": "invalid", "text": "secretword", "reason": "unparseable"})}
    assert passes("leak", [unread]), "what was not done leaks nothing"
    image = [{"role": "user", "content": "look", "screenshot_id": "screen-1", "loss": 0.0}]
    assert passes("leak", [typed | {"messages": image}]), "it may have been read from the pixels"
    earlier = [{"role": "user", "content": "The SecretWord of the day.", "screenshot_id": None, "loss": 0.0}]
    assert passes("leak", [step_row(0, messages=earlier), typed | {"step_index": 1}]), "it was read a step before"


def test_leaks_are_looked_for_wherever_v_may_be_1() -> None:
    failed = episode_row(reward=0.0, outcome="failure")
    typed = [step_row(action=json.dumps({"kind": "type", "text": "secretword"}))]
    of_a_person = {
        "iteration": "0001",
        "stage": "human_annotations",
        "annotation_id": "a",
        "episode_id": "episode-1",
        "step_index": 0,
        "annotator": "user",
        "origin": "human",
        "mode": "intervene",
        "decision": "override",
        "proposal": "",
        "response": "Action",
        "messages": [],
        "withdrawn": False,
    }
    assert by_judge(judged([failed], typed), "leak")["episode-1"]["passed"]
    for hidden in ({"unverified": ["d"]}, {"annotations": [of_a_person]}):
        assert not by_judge(judged([failed], typed, **hidden), "leak")["episode-1"]["passed"], "another may call it good"


def test_contamination_and_balance() -> None:
    assert passes("contamination", [step_row()])
    assert verdict("contamination", [step_row()], split="holdout")["reasons"] == ["the instance belongs to the holdout split"]
    episodes = [episode_row(name, instruction=name, reward=float(name != "c")) for name in "abcd"]
    rows = judged(episodes, [step for row in episodes for step in steps_of(row)], QualityConfig(max_solved_per_task=2))
    found = by_judge(rows, "balance")
    assert {name: row["passed"] for name, row in found.items()} == {"a": True, "b": True, "d": False}
    assert found["d"]["reasons"] == ["number 3 of the solved episodes of this task, at most 2 are kept"]


def test_patterns_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigError, match=r"\(\?=lookahead\)"):
        judged([episode_row()], [step_row()], QualityConfig(leak_patterns=("(?=lookahead)",)))
    assert passes("leak", [step_row()], QualityConfig(leak_patterns=()))


def test_crashed_and_foreign_episodes_have_no_verdict() -> None:
    episodes = [episode_row("a", outcome="crashed", reward=None), episode_row("b", split="eval"), episode_row("c")]
    rows = judged(episodes, [step_row(0, e["episode_id"]) for e in episodes])
    assert by_judge(rows, "verifier").keys() == {"b", "c"}
    assert by_judge(rows, "duplicate")["c"]["passed"], "crashed and foreign ones are not originals"


def test_rows_fit_the_catalogue() -> None:
    episodes = [episode_row("e1"), episode_row("e2", reward=-1.0, outcome="failure")]
    rows = judged(episodes, [step for row in episodes for step in steps_of(row, 2)])
    table = TABLES["verdicts"]
    assert [table.schema.field(name).type for name in VERDICTS_SCHEMA.names] == VERDICTS_SCHEMA.types
    for row in rows:
        assert row["kind"] in (table.column("kind").values or ()) and row["origin"] in (table.column("origin").values or ())
    verifier = by_judge(rows, "verifier")
    assert verifier["e1"]["passed"] and not verifier["e2"]["passed"] and verifier["e2"]["score"] == 0.0


@pytest.mark.usefixtures("tables_place")
def test_history_is_judged_again_from_the_tables_alone(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    episodes = [episode_row("a"), episode_row("b", iteration="0002"), episode_row("c", iteration="0003")]
    steps = {row["episode_id"]: steps_of(row, 2) for row in episodes}
    for row in episodes:
        place = {"iteration": row["iteration"], "stage": "rollouts"}
        bare = {name: value for name, value in row.items() if name not in place}
        warehouse.replace_partition("episodes", [bare], **place)
        own = [{name: value for name, value in step.items() if name not in place} for step in steps[row["episode_id"]]]
        warehouse.replace_partition("steps", own, **place)
    rows = verdicts_of(warehouse, "0002")
    warehouse.replace_partition("verdicts", rows, iteration="0002", stage="verdicts")
    assert rows.to_pylist() == judged(episodes[:2], [*steps["a"], *steps["b"]], iteration="0002"), "later iterations are not looked at"
    assert by_judge(rows.to_pylist(), "duplicate")["b"]["reasons"] == ["1.00 like a"]
    assert by_judge(verdicts_of(warehouse, "0002", QualityConfig(min_novelty=0.0)).to_pylist(), "duplicate")["b"]["passed"]
    assert verdicts_of(warehouse, "0009").num_rows == 0
    assert not any(warehouse.home.scratch.glob("quality-*"))


LINES = [f'"line {i}" <text> [{i}]' for i in range(12)]
ACTIONS: list[dict[str, Any]] = [
    {"kind": "click", "x": 10, "y": 20, "button": "left", "count": 1},
    {"kind": "click", "x": 13, "y": 20, "button": "left", "count": 1},
    {"kind": "type", "text": "secretword x"},
    {"kind": "type", "text": "OK ok"},
    {"kind": "wait", "seconds": 1.0},
    {"kind": "finished", "answer": "answerword"},
    {"kind": "finished", "answer": None},
    {"kind": "invalid", "text": "z", "reason": "why 'z'"},
    {"kind": "several", "actions": [{"kind": "click", "x": 1, "y": 2}, {"kind": "type", "text": "manyletters"}]},
    {"kind": "tool", "name": "t", "arguments": {"x": 1}},
]
RESPONSES = (CLICK_OK, "  ", "no such")
THOUGHTS = (
    "Click it",
    "I'll type hello",
    "Wait, no",
    "wait for it",
    "Scroll down, then click",
    "It is there",
    'click "scroll"',
    '"Ok" click',
    "",
    None,
)
CONTENTS = ("Click hello", '{"a": 1}', "SecretWord here\nWOB_X", "answerword  \n", None)


def random_rows(rng: random.Random) -> tuple[list[Row], list[Row]]:
    """Episodes that trip over every filter, many of them alike."""
    episodes, steps = [], []
    for i in range(rng.choice([1, 6, 40])):
        outcome = rng.choice(["success", "failure", "crashed", "success"])
        purpose = rng.choice(["rollout", "rollout", "annotation", "evaluation"])
        row = episode_row(
            f"e{rng.randrange(1000)}-{i}",
            iteration=rng.choice(["0001", "0002"]),
            stage=f"{purpose}s",
            purpose=purpose,
            outcome=outcome,
            reward={"success": 1.0, "failure": rng.choice([0.0, -1.0, 0.5]), "crashed": None}[outcome],
            task_id=rng.choice("ab"),
            split=rng.choice(["train"] * 5 + ["eval"]),
            instruction=rng.choice(["One.", "Two things.", None]),
        )
        episodes.append(row)
        for index in range(rng.choice([0, 1, 1, 2, 2, 3, 12])):
            action: str = json.dumps(rng.choice(ACTIONS), separators=(",", ":"))
            messages = [
                {"role": "user", "content": rng.choice(CONTENTS), "screenshot_id": rng.choice([None, None, "s1", ""]), "loss": 0.0}
                for _ in range(rng.choice([1, 2]))
            ]
            steps += steps_of(
                row,
                1,
                step_index=index,
                messages=messages,
                response=rng.choice(RESPONSES),
                thought=rng.choice(THOUGHTS),
                observation=rng.choice(["", "\n".join(LINES), "\n".join(LINES[:-1]), "\n".join(LINES[:5]), '"Loading..." <text>']),
                screenshot_id=rng.choice([None, None, "s1", "s2"]),
                action=rng.choice([action] * 9 + ["{not json", "[1]"]),
            )
    return episodes, steps


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**32))
def test_the_queries_agree_with_plain_python_whatever_the_order_and_the_parts(seed: int) -> None:
    rng = random.Random(seed)
    episodes, steps = random_rows(rng)
    iteration = rng.choice([None, "0002"])
    config = rng.choice([CONFIG, QualityConfig(min_novelty=0.0, max_repeats=2, max_solved_per_task=2, min_settled_fraction=0.9)])
    expected = quality_reference.verdict_rows(episodes, steps, config, iteration=iteration)
    rng.shuffle(episodes)
    rng.shuffle(steps)
    assert judged(episodes, steps, config, iteration=iteration, part_episodes=rng.choice([7, 1000])) == expected
    assert all(0 <= row["score"] <= 1 and row["passed"] == (row["score"] >= row["threshold"]) for row in expected)
