"""The chat layout of the UI-TARS grammars: standing text, turns, the last five screens, what is fed back, what is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.episode.episode import EpisodeRequest
from agent.grammars.elements import is_output_cut
from agent.grammars.registry import GRAMMARS
from agent.policy.action_source import StepContext, prompt_for
from agent.prompts.memory import Memory
from agent.prompts.prompt import OUTPUT_LIMITS, PromptBuilder
from agent.prompts.texts import Mode
from sandbox.actions import Wait
from sandbox.session import Element, Observation
from sandbox.tasks.task import Task

CHAT = [name for name, grammar in GRAMMARS.items() if grammar.layout == "chat"]


def screen(index: int) -> Observation:
    button = Element(role="button", text=f"Go {index}", x_px=250, y_px=160, width_px=40, height_px=20)
    return Observation(
        instruction="Press all buttons.", elements=(button,), screenshot=b"screen %d" % index, width_px=500, height_px=320, time_ms=0.0
    )


def lived(builder: PromptBuilder, num_steps: int) -> Memory:
    memory = builder.start("Press all buttons.")
    for index in range(num_steps):
        answer = f"Thought: Button {index} is next. It is grey.\nAction: click(point='<point>250 150</point>')"
        memory = builder.remember(memory, screen(index), answer, builder.grammar.parse(answer, screen(index)))
    return memory


@pytest.mark.parametrize("name", CHAT)
@pytest.mark.parametrize("mode", ["computer", "mobile", "game"])
def test_the_standing_text_teaches_the_grammar(name: str, mode: Mode) -> None:
    builder = PromptBuilder(name, mode=mode)
    messages = builder.build(builder.start("Press all buttons."), screen(0))
    opening = "\n".join(message.content for message in messages[:-1])
    assert "Press all buttons." in opening and "click" in opening and "{" not in opening
    assert ("navigate" in opening) == (name == "uitars2" and mode == "computer")
    assert messages[-1].screenshot_id == screen(0).screenshot_id and messages[-1].role == "user"
    assert [message.role for message in messages] == (["system", "user", "user"] if name == "uitars2" else ["user", "user"])


@pytest.mark.parametrize("name", CHAT)
def test_the_last_five_screens_are_pictures_and_all_text_stays(name: str) -> None:
    builder = PromptBuilder(name)
    messages = builder.build(lived(builder, 8), screen(8))
    turns = messages[2:] if name == "uitars2" else messages[1:]
    assert [turn.role for turn in turns] == ["user", "assistant"] * 8 + ["user"]
    assert [turn.screenshot_id for turn in turns[::2]] == [None] * 4 + [screen(index).screenshot_id for index in range(4, 9)]
    assert [turn.content for turn in turns[:8:2]] == ["[screen not shown]"] * 4
    assert all("Button" in turn.content for turn in turns[1::2])
    assert all(message.loss == 0.0 for message in messages)


@pytest.mark.parametrize("name", CHAT)
def test_what_a_tool_printed_is_read_in_every_turn(name: str) -> None:
    builder = PromptBuilder(name)
    printed = replace(screen(0), screenshot=None, output='total  4\n\nan "odd" file')
    answer = builder.grammar.format("I look.", Wait(seconds=1.0), printed)
    memory = builder.remember(builder.start("Count."), printed, answer, builder.grammar.parse(answer, printed))
    many = "\n".join(["x" * 300] * 70)
    (*_, first, _, last) = builder.build(memory, replace(screen(1), output=many))
    assert first.content == '[screen not shown]\noutput "total 4"\noutput "an \\qodd\\q file"'
    assert last.content.split("\n") == ["10 more output", *[f'output "{"x" * 200}"'] * 60] and last.screenshot_id is not None
    assert is_output_cut(many, OUTPUT_LIMITS["chat"]) and not is_output_cut(printed.output, OUTPUT_LIMITS["chat"])


def test_older_steps_keep_intention_and_outcome() -> None:
    builder = PromptBuilder("doubao", window=3)
    messages = builder.build(lived(builder, 6), screen(6))
    assert messages[1].content == "Before this you took 3 steps. Button 0 is next. ; Button 1 is next. ; Button 2 is next."
    assert sum(message.role == "assistant" for message in messages) == 3


def test_a_bad_answer_is_fed_back() -> None:
    builder = PromptBuilder("uitars1")
    memory = builder.remember(builder.start("x"), screen(0), "Action: fly()", builder.grammar.parse("Action: fly()", screen(0)))
    last = builder.build(memory, screen(1))[-1]
    assert last.content.startswith("That was not carried out: unknown action 'fly'") and last.screenshot_id


def test_models_that_cannot_see_get_the_elements() -> None:
    builder = PromptBuilder("doubao", max_screenshots=0, list_elements=True)
    last = builder.build(lived(builder, 2), screen(2))[-1]
    assert last.content == "[screen not shown]\n\"Go 2\" <button> [1] click(point='<point>500 500</point>')" and last.screenshot_id is None


def test_too_long_a_chat_loses_its_oldest_turns_first() -> None:
    whole = PromptBuilder("doubao")
    short = PromptBuilder("doubao", max_tokens=1800)
    memory = lived(whole, 20)
    messages = short.build(memory, screen(20))
    num_turns = sum(message.role == "assistant" for message in messages)
    assert 0 < num_turns < 20
    assert messages[1].content.startswith(f"Before this you took {20 - num_turns} steps.")
    assert messages[-2].content == whole.build(memory, screen(20))[-2].content


def test_the_engine_gets_the_pictures_that_are_named() -> None:
    builder = PromptBuilder("doubao")
    memory = lived(builder, 7)
    task = Task(source="form", name="x", domain="forms", max_steps=9)
    context = StepContext(
        request=EpisodeRequest(purpose="rollout", task=task, seed=0, policy_id="p"),
        step_index=7,
        observation=screen(7),
        memory=memory,
        messages=builder.build(memory, screen(7)),
        actions=(),
        max_new_tokens=8,
    )
    named = [message.screenshot_id for message in context.messages if message.screenshot_id]
    assert sorted(prompt_for(context).images) == sorted(str(name) for name in named) and len(named) == 5
