"""What a person's decision at a step comes to: what is stored, what is carried out, what of it the policy wrote. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.episode.rows import SEVERAL
from agent.grammars.base import Grammar, ParsedResponse
from agent.policy.policy import Response
from annotation.service.editor.answers import composed, edited
from annotation.service.runs.proposals import Candidate
from annotation.storage.runs import Decided
from annotation.wire.runs import Decide
from sandbox.actions import ACTION, Action
from sandbox.session import Observation
from warehouse.core.errors import NotNow, UnreadableAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`base` is the policy's response that is carried out, unless `override`, a person's text, stands in its place. Without a base nothing
    is: the state is beyond repair."""

    decided: Decided
    base: Response | None
    override: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a decision is made on."""

    mode: str
    candidates: Sequence[Candidate]
    grammar: Grammar
    observation: Observation
    user_id: str


def choice_of(body: Decide, at: Situation) -> Choice:
    """Raises UnreadableAnswer for what cannot be carried out or learned from, NotNow for what the step does not offer."""
    if body.decision == "beyond_repair":
        nothing = Decided(decision=body.decision, candidate=None, response=None, executed=None, thought=None, action=None)
        return Choice(decided=nothing, base=None, override=None)
    if at.mode == "relabel" and not at.candidates:
        raise NotNow("the policy has not answered, and in this campaign its answer is what is carried out: ask it again")
    candidate = None if body.decision == "override" else _candidate(body, at)
    if body.decision == "accept" and candidate is not None:
        return chosen(body.decision, body.candidate, candidate.response.text, candidate.response, at)
    if body.action is None:
        raise UnreadableAnswer(f"{body.decision} needs an action: what is to be done instead")
    if candidate is None:
        text = composed(body.thought, body.action, at.grammar, at.observation)
    else:
        text = edited(candidate.response.text, body.thought, body.action, at.grammar, at.observation)
    known = _as_proposed(text, body, at)
    if known is not None and known.is_whole:
        return chosen("accept", known.rank, known.response.text, known.response, at)
    if known is not None:
        return chosen("edit", known.rank, text, known.response, at)
    return chosen(body.decision, body.candidate if candidate else None, text, candidate.response if candidate else None, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A candidate that does what a person wrote; `is_whole`: and thinks nothing else."""

    rank: int
    response: Response
    is_whole: bool


def _as_proposed(text: str, body: Decide, at: Situation) -> _Known | None:
    """The candidate whose action a person's answer is, however they came to it: one with their thought before one with another, then the
    one that they edit, then the policy's order. Who overrides without a thought of their own takes the candidate's."""
    wrote = at.grammar.parse(text, at.observation)
    if wrote.invalid is not None:
        return None
    same = []
    for rank, candidate in enumerate(at.candidates):
        parsed = at.grammar.parse(candidate.response.text, at.observation)
        if parsed.invalid is None and parsed.actions == wrote.actions:
            is_whole = _words(parsed.thought) == _words(wrote.thought)
            same.append((not is_whole, rank != body.candidate, rank, candidate.response))
    if not same:
        return None
    differs, _, rank, response = min(same, key=lambda found: found[:3])
    has_no_thought = body.decision == "override" and _is_grammars(body.thought, wrote, at)
    return _Known(rank=rank, response=response, is_whole=not differs or has_no_thought)


def _is_grammars(thought: str | None, wrote: ParsedResponse, at: Situation) -> bool:
    """Whether a thought is none, or what the grammar itself says to the action."""
    words = _words(thought)
    if not words or len(wrote.actions) != 1:
        return not words
    own = at.grammar.parse(at.grammar.format(None, wrote.actions[0], at.observation), at.observation).thought
    return words == _words(own)


def _words(thought: str | None) -> list[str]:
    return (thought or "").split()


def chosen(decision: str, rank: int | None, text: str, proposal: Response | None, at: Situation) -> Choice:
    """The choice of a text. `proposal` is the candidate it is, or came from. Raises UnreadableAnswer."""
    parsed = at.grammar.parse(text, at.observation)
    if parsed.invalid is not None:
        raise UnreadableAnswer(f"this cannot be carried out: {parsed.invalid.reason}. Edit it, or choose another")
    first = at.candidates[0].response if at.candidates else None
    if at.mode == "relabel" and first is not None:
        base, override = first, None
    else:
        # Without a proposal, what the person wrote is all there is.
        base = proposal or first or Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=at.user_id)
        override = None if text == base.text else text
    executed = base.text if override is None and base.text != text else None
    decided = Decided(
        decision=decision, candidate=rank, response=text, executed=executed, thought=parsed.thought, action=action_json(parsed.actions)
    )
    return Choice(decided=decided, base=base, override=override)


def action_json(actions: Sequence[Action]) -> dict[str, object]:
    plain = [ACTION.dump_python(action, mode="json") for action in actions]
    return dict(plain[0]) if len(plain) == 1 else {"kind": SEVERAL, "actions": plain}


def _candidate(body: Decide, at: Situation) -> Candidate:
    if body.candidate is None or not 0 <= body.candidate < len(at.candidates):
        raise NotNow(f"there is no candidate {body.candidate}: this step has {len(at.candidates)}, counted from 0")
    return at.candidates[body.candidate]
