"""Tutorials: the same for the same seed, right in what they teach, in the format the policy is asked in. That they are not tasks in other
words is tests/benchmarks/test_lessons_beside_tasks.py's business.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from agent.grammars.compact import CompactGrammar
from agent.grammars.elements import ANSWER_ROLES, source_of_text
from agent.prompts.prompt import PromptBuilder
from assets.seed_data.browsing_lessons import BROWSING_LESSONS, follow, open_entry, read, search
from assets.seed_data.curricula import CURRICULA
from assets.seed_data.lessons import Lesson
from assets.seed_data.practice_page import Move, PracticePage, Widget
from assets.seed_data.practice_screen import PracticeScreen, draw_screen
from assets.seed_data.text_sampler import TextSampler
from assets.seed_data.tutorials import tutorials, worked_example
from assets.seed_data.vocabulary import words
from sandbox.actions import Click, Finished, TypeText


def test_the_same_seed_gives_the_same_texts_and_more_of_them_begin_alike() -> None:
    assert tutorials(40, 3) == tutorials(60, 3)[:40]
    assert tutorials(40, 3) != tutorials(40, 4) and tutorials(40, 3) != tutorials(40, 3, ("web", "shell"))
    assert len(set(tutorials(300, 0))) > 290


ALL_LESSONS = [make for curriculum in CURRICULA.values() for make, _ in curriculum.lessons]


@pytest.mark.parametrize("make", ALL_LESSONS, ids=lambda make: make.__name__)
def test_each_answer_is_the_action_that_is_carried_out_and_becomes_history(make: Callable[[TextSampler], Lesson]) -> None:
    grammar = CompactGrammar()
    for index in range(60):
        lesson = make(TextSampler(random.Random(index)))
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


def test_a_phrase_refers_to_one_widget_alone() -> None:
    """Whoever reads the phrase on the screen finds the widget that was meant, and no other that it could mean."""
    sorts = {"order": 0, "neighbour": 0, "state": 0, "kind": 0, "name": 0}
    for index in range(300):
        screen = draw_screen(sampler := TextSampler(random.Random(index)))
        for widget in screen.free:
            for phrase in screen.phrases(sampler, widget):
                found, sort = referents(phrase, screen)
                assert found == [widget], (phrase, [(each.role, each.text) for each in screen.shown])
                sorts[sort] += 1
    assert min(sorts.values()) > 50


def referents(phrase: str, screen: PracticeScreen) -> tuple[list[Widget], str]:
    """All that a phrase could mean, read without regard to how it was written; and its sort."""
    shown = screen.shown

    def named(text: str) -> list[Widget]:
        wanted = text.strip('"').lower()
        return [widget for widget in shown if widget.text.lower() == wanted and not widget.is_secret]

    def of(role: str) -> list[Widget]:
        return [widget for widget in shown if widget.role == role]

    if match := re.fullmatch(r"the (1st|2nd|3rd|4th|first|second|third|fourth|last) (\w+)", phrase):
        places = {"1st": 0, "first": 0, "2nd": 1, "second": 1, "3rd": 2, "third": 2, "4th": 3, "fourth": 3, "last": -1}
        return [of(match[2])[places[match[1]]]], "order"
    if match := re.fullmatch(r"the (\w+) that is (checked|selected)", phrase):
        return [widget for widget in of(match[1]) if match[2] in widget.states], "state"
    if match := re.fullmatch(r"the (input|textarea|select)", phrase):
        return of(match[1]), "kind"
    if match := re.fullmatch(r"the (\w+) (after|below|next to) (.+)", phrase):
        places = [shown.index(widget) + 1 for widget in named(match[3])]
        return [shown[place] for place in places if place < len(shown) and shown[place].role == match[1]], "neighbour"
    for wording in (r"the (?P<role>\w+) called (?P<name>.+)", r"the (?P<role>\w+) (?P<name>.+)", r"(?P<name>.+), a (?P<role>\w+)"):
        match = re.fullmatch(wording, phrase)
        if match and (found := [widget for widget in named(match["name"]) if widget.role == match["role"]]):
            return found, "name"
    return named(phrase), "name"


def test_the_practice_page_behaves_like_a_form() -> None:
    field, secret, box = Widget("input"), Widget("input", is_secret=True), Widget("checkbox", "a")
    options = [Widget("radio", "x"), Widget("radio", "y")]
    header = Widget("header", "More")
    hidden = Widget("button", "Go", shows_when=lambda: "expanded" in header.states)
    page = PracticePage([field, secret, box, *options, header, hidden])
    moves = [
        Move("click", field),
        Move("type", field, "one"),
        Move("triple_click", field),
        Move("type", field, "two"),
        Move("click", secret),
        Move("type", secret, "abc"),
        Move("click", box),
        Move("click", options[0]),
        Move("click", options[1]),
        Move("click", header),
    ]
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
            lesson = make(TextSampler(random.Random(index), words("browsing")))
            for move in lesson.moves:
                page, action = lesson.page.observe(lesson.instruction), lesson.page.action(move)
                seen.add(action.kind)
                if isinstance(action, Finished) and action.answer:
                    answers += 1
                    assert source_of_text(action.answer, page, ANSWER_ROLES), (make.__name__, action.answer)
                lesson.page.carry_out(move)
    assert answers > 300 and seen == {"click", "type", "select", "scroll", "finished", "tool"}


def test_what_else_is_asked_of_a_page_follows_as_turns_of_its_conversation() -> None:
    grammar, builder, num_more = CompactGrammar(), PromptBuilder("compact"), 0
    for make in (read, follow, open_entry, search):
        for index in range(40):
            lesson = make(TextSampler(random.Random(index), words("browsing")))
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
