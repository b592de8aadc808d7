"""Answers as people read and write them: a response taken apart into thought and action, and put together again, in every grammar.

Pure functions. What a click on the screen means is at_point.py's, what may be typed next completion.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.grammars.base import Grammar, NotRepresentable, ParsedResponse
from agent.grammars.thought_action import TOOL_CALL_START
from annotation.service.editor.unreadable import Write, looks_like_an_action, why_unreadable
from annotation.wire.runs import ActionView, Point
from sandbox.actions import Action, Finished
from sandbox.session import Observation
from warehouse.core.errors import UnreadableAnswer

_ACTION_HEAD = "Action: "
_COMPACT_MARK = re.compile(r"(?:^|(?<=\s))Action\s*[:：]?\s")
_CHAT_MARK = re.compile(r"Action[ \t]*[:：]\s*")
_THINK = re.compile(r"<(think\w*)>(.*?)(?:</\1>|$)", re.DOTALL)


def action_view(text: str, grammar: Grammar, observation: Observation) -> ActionView:
    """A response as pages show it. What the grammar cannot read is shown as it stands, with the reason."""
    parsed = grammar.parse(text, observation)
    if (invalid := parsed.invalid) is not None:
        return ActionView(text=text, thought=parsed.thought, action=_raw_action(text, grammar), problem=invalid.reason)
    try:
        written = written_actions(parsed, grammar, observation)
    except NotRepresentable:
        written = _raw_action(text, grammar)
    return ActionView(
        text=text,
        thought=parsed.thought,
        action=written,
        kind=parsed.actions[0].kind,
        line=line_of(parsed, grammar, observation),
        points=points_of(parsed.actions),
    )


def view_of_action(action: Action, grammar: Grammar, observation: Observation) -> ActionView:
    """An action with the grammar's own thought, where it has one. Raises NotRepresentable."""
    return action_view(grammar.format(None, action, observation), grammar, observation)


def line_of(parsed: ParsedResponse, grammar: Grammar, observation: Observation) -> str:
    """What was done, in one line: as in the history of a prompt."""
    try:
        return "; ".join(grammar.describe(action, observation) for action in parsed.actions)
    except NotRepresentable:
        return "; ".join(action.kind for action in parsed.actions)


def points_of(actions: Sequence[Action]) -> tuple[Point, ...]:
    """Where actions point, in pixels of the screen."""
    points = []
    for action in actions:
        at = action.model_dump()
        if at.get("x") is not None and at.get("y") is not None:
            points.append(Point(x=at["x"], y=at["y"], to_x=at.get("to_x"), to_y=at.get("to_y")))
    return tuple(points)


def written_actions(parsed: ParsedResponse, grammar: Grammar, observation: Observation) -> str:
    """The actions alone, as the grammar writes them. Raises NotRepresentable."""
    return "\n".join(_writer(grammar, observation)(action) for action in parsed.actions)


def composed(thought: str | None, action: str, grammar: Grammar, observation: Observation) -> str:
    """The response of a thought and an action as a person wrote them, in the grammar's canonical form. Raises UnreadableAnswer."""
    parsed = grammar.parse(_joined(None, action, grammar), observation)
    if (invalid := parsed.invalid) is not None:
        raise UnreadableAnswer(why_unreadable(action, invalid.reason, observation, _writer(grammar, observation)))
    if parsed.actions == (Finished(answer=action.strip()),) and looks_like_an_action(action, observation):
        reason = "without a tool call this would end the task, with these words as its answer"
        raise UnreadableAnswer(why_unreadable(action, reason, observation, _writer(grammar, observation)))
    words = thought.strip() if thought else None
    try:
        if len(parsed.actions) == 1:
            text = grammar.format(words, parsed.actions[0], observation)
        else:
            text = _joined(words, written_actions(parsed, grammar, observation), grammar)
    except NotRepresentable as error:
        raise UnreadableAnswer(f"the action cannot be written: {error}") from error
    if grammar.parse(text, observation).actions != parsed.actions:
        raise UnreadableAnswer("the thought holds words that read as an action: write it in other words")
    return text


def edited(proposal: str, thought: str | None, action: str, grammar: Grammar, observation: Observation) -> str:
    """The same of a proposal that a person changed. A thought which the grammar had made of the proposal's own action, and which was left
    as it was, is rebuilt from the changed one. Raises UnreadableAnswer."""
    before = grammar.parse(proposal, observation)
    words = thought.split() if thought else []
    if words and words == (before.thought or "").split() and before.invalid is None and len(before.actions) == 1:
        own = grammar.parse(grammar.format(None, before.actions[0], observation), observation).thought
        thought = None if words == (own or "").split() else thought
    return composed(thought, action, grammar, observation)


def canonical(text: str, grammar: Grammar, observation: Observation) -> str | None:
    """An answer as the grammar writes it, so that spacing does not count; None for one that cannot be read. Where thoughts are free prose
    they do not count either."""
    parsed = grammar.parse(text, observation)
    if parsed.invalid is not None:
        return None
    thought = parsed.thought if grammar.layout == "elements" else None
    try:
        if len(parsed.actions) == 1:
            return grammar.format(thought, parsed.actions[0], observation)
        return written_actions(parsed, grammar, observation)
    except NotRepresentable:
        return None


def _writer(grammar: Grammar, observation: Observation) -> Write:
    return lambda action: _without_thought(grammar.format(None, action, observation), grammar)


def _joined(thought: str | None, action: str, grammar: Grammar) -> str:
    """A response made of two texts. Other grammars of the same envelope are known by their layout and name."""
    if grammar.name == "compact":
        return f"Thought {' '.join((thought or '').split())} Action {action.strip()}"
    if grammar.name == "uitars2":
        return f"<think>{thought}</think>\n{action}" if thought else action
    return f"Thought: {thought}\n{_ACTION_HEAD}{action}" if thought else f"{_ACTION_HEAD}{action}"


def _without_thought(text: str, grammar: Grammar) -> str:
    if grammar.name == "compact":
        # The last mark, unless it stands between quotes: there the grammar's own thought repeats what was before it.
        marks = [mark for mark in _COMPACT_MARK.finditer(text) if text.count('"', mark.end()) % 2 == 0]
        return text[marks[-1].end() :] if marks else text
    return text.removeprefix(_ACTION_HEAD)


def _raw_action(text: str, grammar: Grammar) -> str:
    """Of an answer that cannot be read: what was probably meant to be the action, for a person to correct."""
    if grammar.name == "compact":
        return _without_thought(text + " ", grammar).strip()
    if grammar.name == "uitars2":
        rest = _THINK.sub("", text)
        start = TOOL_CALL_START.search(rest)
        return rest[start.start() :].strip() if start else rest.strip()
    marks = list(_CHAT_MARK.finditer(text))
    return text[marks[-1].end() :].strip() if marks else text.strip()
