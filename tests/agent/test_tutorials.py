"""Tutorials: the same for the same seed, right in what they teach, in the format the policy is asked in, and none of a task's wording."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from agent.browsing_lessons import BROWSING_LESSONS, follow, open_entry, read, search
from agent.curricula import CURRICULA
from agent.grammars.compact import CompactGrammar
from agent.grammars.elements import ANSWER_ROLES, source_of_text
from agent.lessons import Lesson, fact, mark_several
from agent.pen import Pen
from agent.practice_page import Move, PracticePage, Widget
from agent.prompt import PromptBuilder
from agent.tutorials import drill, tutorials, worked_example
from agent.vocabulary import words
from sandbox.actions import Click, Finished, TypeText

TASK_WORDING = re.compile(
    r"^(Click (on|the|button)|Close the dialog|Select .* (and click|from the list)|Focus into|Expand the section|Solve the math|"
    r"Enter (the|an item|\"|.* into)|Type |Press the button|Find the email|Switch between|Drag |Choose an? .* from|Buy )|"
    r"into the text ?fields?|and press (Submit|login)|and click Submit|"
    r"^What is the (?!result)|^Remove the |^In the library, |^The page shows |Finish with the answer|[Tt]hen press Send",
)


def test_the_same_seed_gives_the_same_texts_and_more_of_them_begin_alike() -> None:
    assert tutorials(40, 3) == tutorials(60, 3)[:40]
    assert tutorials(40, 3) != tutorials(40, 4) and tutorials(40, 3) != tutorials(40, 3, ("web", "shell"))
    assert len(set(tutorials(300, 0))) > 290


@pytest.mark.slow
def test_no_instruction_is_worded_like_a_benchmark_task() -> None:
    for messages in (*tutorials(3000, 1, ("web", "shell")), *tutorials(2000, 1, ("browsing",))):
        instruction = messages[0].content.split("\n")[0]
        assert not TASK_WORDING.search(instruction), instruction


ALL_LESSONS = [make for curriculum in CURRICULA.values() for make, _ in curriculum.lessons]


@pytest.mark.parametrize("make", ALL_LESSONS, ids=lambda make: make.__name__)
def test_each_answer_is_the_action_that_is_carried_out_and_becomes_history(make: Callable[[Pen], Lesson]) -> None:
    grammar = CompactGrammar()
    for index in range(60):
        lesson = make(Pen(random.Random(index)))
        lines: list[str] = []
        steps = worked_example(lesson, PromptBuilder("compact"))
        for move in lesson.moves:
            prompt, answer = next(steps)
            observation = lesson.page.observe(lesson.instruction)
            action = lesson.page.action(move)
            assert grammar.parse(answer.content, observation).actions == (action,)
            assert (prompt.role, answer.role, answer.loss) == ("user", "assistant", 1.0)
            shown = prompt.content.split("\n")
            assert shown[1 : 1 + min(4, len(lines))] == lines[-4:] or len(lines) > 4
            lines.append(grammar.describe(action, observation))
            if isinstance(action, TypeText):
                assert "focused" in move.widget.states
        assert next(steps, None) is None
        assert lesson.crux is None or 0 <= lesson.crux < len(lesson.moves)


def test_lessons_end_in_the_state_they_ask_for() -> None:
    for index in range(60):
        lesson = mark_several(Pen(random.Random(index)))
        wanted = {move.widget.text for move in lesson.moves if move.widget.role == "checkbox" and "checked" not in move.widget.states}
        for _ in worked_example(lesson, PromptBuilder("compact")):
            pass
        assert {widget.text for widget in lesson.page.widgets if "checked" in widget.states} == wanted


def test_facts_are_true_and_drills_ask_for_nothing_but_their_results() -> None:
    rng = random.Random(0)
    for _ in range(200):
        problem, value = fact(rng)
        left, sign, right = problem.split()
        assert int(value) == {"+": int(left) + int(right), "-": int(left) - int(right), "x": int(left) * int(right)}[sign]
    assert [message.role for message in drill(rng)] == ["user", "assistant"] * 10


def test_the_practice_page_behaves_like_a_form() -> None:
    field, secret, box = Widget("input"), Widget("input", is_secret=True), Widget("checkbox", "a")
    options = [Widget("radio", "x"), Widget("radio", "y")]
    header = Widget("header", "More")
    hidden = Widget("button", "Go", shows_when=lambda: "expanded" in header.states)
    page = PracticePage([field, secret, box, *options, header, hidden])
    moves = [
        Move("click", field), Move("type", field, "one"), Move("triple_click", field), Move("type", field, "two"),
        Move("click", secret), Move("type", secret, "abc"), Move("click", box), Move("click", options[0]), Move("click", options[1]),
        Move("click", header),
    ]  # fmt: skip
    for move in moves:
        page.action(move)
        page.carry_out(move)
    seen = {(element.role, element.text): element.states for element in page.observe("").elements}
    assert seen[("input", "two")] == () == seen[("radio", "x")]
    assert ("input", "***") in seen
    assert seen[("checkbox", "a")] == ("checked",) == seen[("radio", "y")]
    assert seen[("header", "More")] == ("expanded",)
    assert ("button", "Go") in seen
    assert isinstance(page.action(Move("click", hidden)), Click)


@pytest.mark.parametrize("name", CURRICULA)
def test_the_words_are_plain_and_sorted(name: str) -> None:
    assert list(words(name)) == sorted(set(words(name)))
    assert all(re.fullmatch(r"[A-Za-z]{2,}|[1-9][a-z]{2}|u00[0-9a-f]{2}", word) for word in words(name))


def test_on_a_practice_site_every_answer_can_be_read_where_it_is_given() -> None:
    """Pages lead on, the list moves, fields take what is typed; what is answered with stands on the page that is open by then."""
    answers, seen = 0, set()
    for make, _ in BROWSING_LESSONS:
        for index in range(80):
            lesson = make(Pen(random.Random(index), words("browsing")))
            for move in lesson.moves:
                page, action = lesson.page.observe(lesson.instruction), lesson.page.action(move)
                seen.add(action.kind)
                if isinstance(action, Finished) and action.answer:
                    answers += 1
                    assert source_of_text(action.answer, page, ANSWER_ROLES), (make.__name__, action.answer)
                lesson.page.carry_out(move)
    assert answers > 300 and seen == {"click", "type", "scroll", "finished", "tool"}


def test_what_else_is_asked_of_a_page_follows_as_turns_of_its_conversation() -> None:
    grammar, builder, num_more = CompactGrammar(), PromptBuilder("compact"), 0
    for make in (read, follow, open_entry, search):
        for index in range(40):
            lesson = make(Pen(random.Random(index), words("browsing")))
            again = worked_example(lesson, builder, goes_on=True)
            for place, (prompt, *turns) in enumerate(again):
                page = lesson.page.observe(lesson.instruction)
                asked = lesson.also.get(place, ())
                assert [turn.role for turn in turns] == ["assistant", *["user", "assistant"] * len(asked)]
                assert [turn.content for turn in turns[1::2]] == [question for question, _ in asked]
                for (_, move), turn in zip(asked, turns[2::2], strict=True):
                    num_more += 1
                    assert grammar.parse(turn.content, page).actions == (lesson.page.action(move),)
                    assert turn.content != turns[0].content or "finished" in turn.content, "another link, or a line that says the same"
                assert all(turn.loss == 1.0 for turn in (prompt, *turns))
    assert num_more > 200


def test_a_placeholder_is_gone_once_something_is_typed() -> None:
    field = Widget("input", "Search for", is_hint=True)
    page = PracticePage([field])
    for move in (Move("triple_click", field), Move("type", field, "Lima")):
        assert field.states <= {"focused"}
        page.carry_out(move)
    assert field.text == "Lima"
