"""What an answer counts as that comes to what the policy proposed: by whatever way a person came to it, an accept or an edit of that."""

from __future__ import annotations

from typing import Any

import pytest

from agent.grammars.registry import GRAMMARS
from agent.policy.policy import Response
from annotation.service.editor.answers import view_of_action
from annotation.service.runs.choices import Choice, Situation, choice_of
from annotation.service.runs.proposals import Candidate
from annotation.wire.runs import Decide
from sandbox.actions import Action, Click, TypeText
from sandbox.session import Element, Observation

OBSERVATION = Observation(
    instruction="Click on two.",
    elements=tuple(
        Element(role="button", text=name, x_px=40, y_px=y, width_px=60, height_px=20)
        for name, y in (("one", 60), ("two", 90), ("six", 120))
    ),
    screenshot=None,
    width_px=160,
    height_px=210,
    time_ms=0.0,
)
ONE, TWO, SIX = (Click(x=40, y=y) for y in (60, 90, 120))
PROPOSED: tuple[tuple[str | None, Action], ...] = (("It is the second.", TWO), (None, ONE), ("I type it.", TypeText(text="two")))
GRAMMAR = pytest.mark.parametrize("name", GRAMMARS)


def decided(name: str, decision: str, action: Action, thought: str | None = None, *, mode: str = "intervene", **more: Any) -> Choice:
    grammar = GRAMMARS[name]
    candidates = [
        Candidate(response=Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id="p"), num_samples=1, score=None)
        for text in (*(grammar.format(words, proposed, OBSERVATION) for words, proposed in PROPOSED), "I would rather not say")
    ]
    at = Situation(mode=mode, candidates=candidates, grammar=grammar, observation=OBSERVATION, user_id="user-ann")
    written = view_of_action(action, grammar, OBSERVATION).action
    return choice_of(Decide.model_validate({"version": 1, "decision": decision, "action": written, "thought": thought, **more}), at)


def as_stored(choice: Choice) -> tuple[str, int | None, str | None]:
    return choice.decided.decision, choice.decided.candidate, choice.override


@GRAMMAR
def test_an_override_that_is_a_candidate_is_an_accept_of_it(name: str) -> None:
    assert as_stored(decided(name, "override", TWO, "It is the second.")) == ("accept", 0, None), "thought and action are its own"
    assert as_stored(decided(name, "override", TWO, "  It is\nthe second. ")) == ("accept", 0, None), "spacing does not count"
    clicked = decided(name, "override", TWO)
    assert as_stored(clicked) == ("accept", 0, None), "a click without a word"
    assert clicked.decided.thought == GRAMMARS[name].parse(clicked.decided.response or "", OBSERVATION).thought
    own = view_of_action(ONE, GRAMMARS[name], OBSERVATION).thought
    assert as_stored(decided(name, "override", ONE, own)) == ("accept", 1, None), "what the grammar says by itself is not a word either"
    assert as_stored(decided(name, "override", TypeText(text="two"))) == ("accept", 2, None)


@GRAMMAR
def test_one_with_another_thought_is_an_edit_of_it(name: str) -> None:
    reported = decided(name, "override", TWO, "The instruction names it.")
    assert as_stored(reported)[:2] == ("edit", 0) and reported.decided.thought == "The instruction names it."
    assert reported.override is not None and reported.base is not None and "It is the second." in reported.base.text


@GRAMMAR
def test_one_that_is_nobodys_stays_an_override(name: str) -> None:
    assert as_stored(decided(name, "override", SIX))[:2] == ("override", None)
    assert as_stored(decided(name, "override", Click(x=40, y=90, count=2), "It is the second."))[:2] == ("override", None)
    assert as_stored(decided(name, "override", TypeText(text="two!")))[:2] == ("override", None)


@GRAMMAR
def test_an_edit_counts_as_of_the_candidate_that_it_became(name: str) -> None:
    assert as_stored(decided(name, "edit", TWO, "It is the second.", candidate=0)) == ("accept", 0, None), "it ends as it began"
    assert as_stored(decided(name, "edit", TWO, "It is the second.", candidate=1)) == ("accept", 0, None), "it ends as another"
    assert as_stored(decided(name, "edit", TWO, "Because.", candidate=1))[:2] == ("edit", 0), "only the thought is new"
    assert as_stored(decided(name, "edit", ONE, "Because.", candidate=1))[:2] == ("edit", 1)
    assert as_stored(decided(name, "edit", SIX, "Because.", candidate=1))[:2] == ("edit", 1), "what no candidate does is an edit of its own"


@GRAMMAR
def test_relabelling_counts_the_same_and_carries_out_the_policys_choice(name: str) -> None:
    reported = decided(name, "override", ONE, mode="relabel")
    assert as_stored(reported) == ("accept", 1, None) and reported.base is not None
    assert "It is the second." in reported.base.text and reported.decided.executed == reported.base.text
