"""What CT learns of an episode, objective by objective, on episodes of MiniWoB++ that the quickstart's oracle and its seed policy played in
Chromium (trajectories.json): the chats, and the weight of each of their tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pydantic import ValidationError

from agent.grammars.compact import read_elements
from agent.policy.policy import Message
from models.families.tokenizer import build_tokenizer, encode_chat
from pipelines import profiles
from tests.warehouse.test_samples import episode, load, routes, sampled
from tests.warehouse.test_samples import step as step_row
from warehouse.core.errors import ConfigError
from warehouse.routing.ct_objectives import OBJECTIVES, CtObjective, Taught
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.hindsight import NO_WORDINGS, achieved, with_instruction, wordings_of

PLAYED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("trajectories.json").read_text())
PROMPT_LOSS = 0.1


def trajectory(played: dict[str, Any], *, first_wrong: int | None = None) -> list[dict[str, Any]]:
    """The rows that an objective is given."""
    return [
        {
            "step_index": index,
            "messages": [{"role": "user", "content": text, "screenshot_id": None, "loss": 0.0} for text in each["prompt"]],
            "verdict": played["outcome"] == "success",
            "first_wrong": first_wrong,
            **{name: each[name] for name in ("response", "observation", "action")},
            **{name: played[name] for name in ("episode_id", "task_id", "instruction")},
        }
        for index, each in enumerate(played["steps"])
    ]


def of(task: str, outcome: str) -> list[list[dict[str, Any]]]:
    return [trajectory(each) for each in PLAYED if each["task"] == task and each["outcome"] == outcome]


WORDINGS = wordings_of((trajectory(each) for each in PLAYED if each["outcome"] == "success"), read_elements)
FAILED = of("login-user", "failure")[0]


def learned(taught: Taught) -> list[tuple[str, float]]:
    """Tokens that weigh anything, as a training run would have them."""
    tokenizer = build_tokenizer(word for row in FAILED for word in row["observation"].split())
    ids, weights = encode_chat(tokenizer, [Message(**message) for message in taught[1]], prompt_loss_weight=PROMPT_LOSS)
    return [(str(tokenizer.decode([token])), weight) for token, weight in zip(ids, weights, strict=True) if weight]


def made(objective: CtObjective, steps: list[dict[str, Any]]) -> list[Taught]:
    return list(OBJECTIVES[objective](steps, WORDINGS))


def test_answers_weigh_the_answer_alone() -> None:
    found = made("answers", FAILED)
    assert [step["step_index"] for step, _ in found] == list(range(len(FAILED)))
    for step, messages in found:
        assert [message["content"] for message in messages] == [step["messages"][0]["content"], step["response"]]
        assert {weight for _, weight in learned((step, messages))} == {1.0}


def test_all_tokens_weigh_the_prompt_too() -> None:
    (step, messages), *_ = made("all_tokens", FAILED)
    weights = Counter(weight for _, weight in learned((step, messages)))
    assert set(weights) == {PROMPT_LOSS, 1.0} and weights[PROMPT_LOSS] > weights[1.0]
    assert [message["content"] for message in messages] == [step["messages"][0]["content"], step["response"]]


def test_next_observation_weighs_what_the_environment_showed_and_nothing_else() -> None:
    found = made("next_observation", FAILED)
    assert len(found) == len(FAILED) - 1, "nothing is known of what came after the last step"
    for (step, messages), after in zip(found, FAILED[1:], strict=True):
        assert [message["loss"] for message in messages] == [0.0, 0.0, 1.0]
        assert messages[-2]["content"] == step["response"] and messages[-1]["content"] == after["observation"]
        assert {weight for _, weight in learned((step, messages))} == {PROMPT_LOSS}
    apart = [FAILED[0], FAILED[2]]
    assert made("next_observation", apart) == [], "what came two steps later is not what the action did"
    assert made("next_observation", [FAILED[0], FAILED[1] | {"observation": ""}]) == [], "a picture cannot be predicted"


def test_until_first_error_stops_where_the_reader_says() -> None:
    assert made("until_first_error", FAILED) == made("answers", FAILED), "nothing tells"
    marked = [row | {"first_wrong": 2} for row in FAILED]
    assert [step["step_index"] for step, _ in made("until_first_error", marked)] == [0, 1]


@pytest.mark.parametrize("task", ["click-dialog-2", "click-option"])
def test_hindsight_says_what_was_clicked(task: str) -> None:
    found = [(steps, taught) for steps in of(task, "failure") if (taught := made("hindsight", steps))]
    assert found
    for steps, taught in found:
        assert len(taught) == len(steps), "an episode is relabelled whole or not at all"
        for step, messages in taught:
            before = step["instruction"]
            prompt, answer = messages[0]["content"], messages[1]["content"]
            instruction = prompt.split("\n")[0]
            assert instruction != before and prompt.split("\n")[1:] == step["messages"][0]["content"].split("\n")[1:]
            assert answer == step["response"] and [message["loss"] for message in messages] == [0.0, 1.0]
        first = taught[0][0]
        (number,) = {part for part in first["response"].rpartition("Action")[2].split() if part.startswith("[")}
        (line,) = [line for line in first["observation"].split("\n") if line.endswith(number)]
        assert line.split('"')[1] in instruction, "it names the element that was clicked"


def test_hindsight_is_silent_where_it_cannot_be_truthful() -> None:
    assert made("hindsight", of("read-table", "failure")[0]) == [], "what has to be looked up stands in no instruction"
    for steps in of("click-link", "success"):
        assert made("hindsight", steps) == [] and achieved(steps, WORDINGS) is None, "it did what it was asked"
    steps = of("click-link", "failure")[0]
    assert not list(OBJECTIVES["hindsight"](steps, NO_WORDINGS)), "no solved attempt tells"
    points = [row | {"response": "Action click 10 20"} for row in steps]
    assert made("hindsight", points) == [], "an answer that names a point"
    assert "Fill" in steps[0]["response"] and "Fill" not in steps[0]["observation"]
    assert made("hindsight", steps) == [], "a thought of another element than the one that was clicked"
    assert with_instruction(steps[0]["messages"], "Another instruction", "x") is None


def test_hindsight_tells_fields_without_a_name_apart() -> None:
    """Of two text fields without a label, what was typed into the first is the username."""
    by_form: dict[str, list[bool]] = {}
    for steps in of("login-user", "failure"):
        fields = [row["response"].rpartition("Action")[2].split()[-1] for row in steps if '" " <input>' in row["response"]]
        by_form.setdefault(" ".join(fields), []).append(bool(made("hindsight", steps)))
    assert any(by_form.pop("[2] [4]")) and "[4] [2]" in by_form
    assert not any(any(each) for each in by_form.values())


def test_solved_attempts_that_disagree_tell_nothing() -> None:
    solved = of("click-link", "success")
    odd = [row | {"instruction": "Press what is not " + row["response"].split('"')[1]} for row in solved[0]]
    assert wordings_of(solved, read_elements).of_form and not wordings_of([*solved, odd], read_elements).of_form
    assert not wordings_of([solved[0]], read_elements).of_form, "one attempt does not tell a wording from its words"


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def stored(con: duckdb.DuckDBPyConnection) -> None:
    """All played episodes as tables: demonstrations solved, attempts routed to CT."""
    plain = [(each, index, row) for each in PLAYED for index, row in enumerate(trajectory(each))]
    columns = ("messages", "observation", "action", "response")
    load(
        con,
        episodes=[
            episode(each["episode_id"], each["purpose"], **{name: each[name] for name in ("task_id", "seed", "instruction", "outcome")})
            for each in PLAYED
        ],
        steps=[step_row(each["episode_id"], index) | {name: row[name] for name in columns} for each, index, row in plain],
        routes=routes(**{each["episode_id"]: "ct" for each in PLAYED if each["purpose"] == "rollout"}),
    )


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_stored_episodes_give_what_each_trajectory_gives(con: duckdb.DuckDBPyConnection, objective: CtObjective) -> None:
    stored(con)
    left_out: Counter[str] = Counter()
    mining = FailureMiningConfig(ct_objectives=(objective,))
    rows = sampled(con, mining=mining, left_out=left_out, read_elements=read_elements)["ct_samples"]
    attempts = [trajectory(each) for each in PLAYED if each["purpose"] == "rollout"]
    expected = {(s["episode_id"], s["step_index"]): messages for steps in attempts for s, messages in made(objective, steps)}
    assert {(row["episode_id"], row["step_index"]): row["messages"] for row in rows} == expected
    assert left_out[objective] == sum(map(len, attempts)) - len(expected)
    assert {row["verdict"] for row in rows} == {False}


def test_several_objectives_give_a_sample_of_each(con: duckdb.DuckDBPyConnection) -> None:
    stored(con)
    both = sampled(con, mining=FailureMiningConfig(ct_objectives=("answers", "next_observation")))["ct_samples"]
    each = [
        row["sample_id"]
        for objective in OBJECTIVES
        if objective in ("answers", "next_observation")
        for row in sampled(con, mining=FailureMiningConfig(ct_objectives=(objective,)))["ct_samples"]
    ]
    assert sorted(row["sample_id"] for row in both) == sorted(each)


def test_an_objective_that_weighs_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ct_refresh\.prompt_loss_weight is 0.*above 0"):
        profiles.load("quickstart", {"failure_mining.ct_objectives": ["answers", "next_observation"]})
    assert profiles.load("quickstart", {"failure_mining.ct_objectives": ["next_observation"], "ct_refresh.prompt_loss_weight": 0.1})
    with pytest.raises(ValidationError, match="each objective once"):
        FailureMiningConfig(ct_objectives=("answers", "answers"))
