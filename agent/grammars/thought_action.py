"""The Thought/Action envelope that UI-TARS 1.0, 1.5 and Doubao share: a tolerant parser and the canonical writer. Think tags around a
thought are every chat grammar's.

    Thought: the button is at the bottom
    Action: click(start_box='<|box_start|>(500,900)<|box_end|>')

What differs between the three (how a point is written, and its scale) is in uitars1.py, uitars15.py and doubao.py; which functions there
are is in calls.py. Nothing is evaluated: a call is read character by character.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from pydantic import ValidationError

from agent.grammars.base import (
    THINK_TAGS,
    BadText,
    Layout,
    NotRepresentable,
    ParsedResponse,
    from_pixels,
    invalid_response,
    storable,
    validation_reason,
    without_wrappers,
)
from agent.grammars.calls import Point, Scale, canonical_name, read_call, write_call
from agent.grammars.points import escape_text, read_point, unescape_text
from sandbox.actions import Action, InvalidAction
from sandbox.session import Observation

MAX_ACTIONS = 20
MAX_DESCRIBED_CHARS = 120

_ACTION = r"\*{0,2}Action[ \t]*(?:\*{1,2}[ \t]*)?[:：]\*{0,2}"
_CALL_FOLLOWS = r"\s*(?:```\w*\s*|`)?(?=[A-Za-z_]\w*\s*\()"
ACTION_LINE = re.compile(rf"^[ \t]*{_ACTION}{_CALL_FOLLOWS}", re.MULTILINE)
ACTION_ANYWHERE = re.compile(rf"{_ACTION}{_CALL_FOLLOWS}")
_HEADER = re.compile(
    r"(?:^|(?<=\n))[ \t]*\*{0,2}(?:Thought|Reflection|Action_Summary)[ \t]*(?:\*{1,2}[ \t]*)?[:：]\*{0,2}[ \t]*"
    r"|(?<![ \t])[ \t]*\bAction_Summary[ \t]*[:：][ \t]*"
)
_UNUSED_ACTION = re.compile(r"(?<![ \t])[ \t]*\bAction[ \t]*[:：]\s*$")
_ACTION_HEADER = re.compile(rf"^[ \t]*{_ACTION}", re.MULTILINE)
_HALF_FENCE = re.compile(r"\A```\w*\n|```\w*\Z")
_CALL = re.compile(r"\b([A-Za-z_]\w{0,60})\s*\(")
_BETWEEN_CALLS = re.compile(rf"(?:[\s,;]|(?:#|//)[^\n]*(?:\n|$))*(?:{_ACTION}\s*)?")
_KEY = re.compile(r"(\w+)\s*=\s*")
_QUOTE_ENDS = re.compile(r"""\s*(?:\)|$|,\s*(?:\w+\s*=|['"(\[<]))""")
TOOL_CALL_START = re.compile(r"<(?:seed:)?tool_call\b|<function")
_OPEN_THOUGHT_ENDS = re.compile(rf"{TOOL_CALL_START.pattern}|{ACTION_ANYWHERE.pattern}")
_HEADER_IN_THOUGHT = re.compile(r"\s*\n\s*(?=(?:Thought|Action|Reflection|Action_Summary)[ \t]*[:：])")

RawCall = tuple[str, dict[str, str]]


def split_thought(text: str, tags: str = THINK_TAGS) -> tuple[str, str]:
    """What stands in think tags, and the rest. A tag that is never closed ends at the action, one that is never opened began at the start
    (chat templates write it into the prompt)."""
    opened = re.search(rf"<((?:seed:)?(?:{tags}))\s*>", text, re.IGNORECASE)
    if opened is None:
        closed = re.search(rf"</(?:seed:)?(?:{tags})\s*>", text, re.IGNORECASE)
        return (text[: closed.start()], text[closed.end() :]) if closed else ("", text)
    closed = re.compile(rf"</{re.escape(opened.group(1))}\s*>", re.IGNORECASE).search(text, opened.end())
    if closed is None:
        closed = _OPEN_THOUGHT_ENDS.search(text, opened.end())
        end = start = closed.start() if closed else len(text)
    else:
        start, end = closed.span()
    return text[opened.end() : start], text[: opened.start()] + text[end:]


def read_calls(text: str) -> list[RawCall]:
    """Every call at the start of the text, names as written. Raises BadText when the first is none, or is cut off."""
    return read_calls_to(text)[0]


def read_calls_to(text: str) -> tuple[list[RawCall], int]:
    """`read_calls`, and the character at which the last call ends."""
    calls: list[RawCall] = []
    position = 0
    while len(calls) < MAX_ACTIONS:
        between = _BETWEEN_CALLS.match(text, position)
        position = between.end() if between else position
        match = _CALL.match(text, position)
        if match is None or (calls and canonical_name(match.group(1)) is None):
            break
        values, position = _read_arguments(text, match.end(), match.group(1))
        calls.append((match.group(1), values))
    if not calls:
        raise BadText("no action; write: Action: name(parameter='value')")
    return calls, position


def _read_arguments(text: str, position: int, name: str) -> tuple[dict[str, str], int]:
    """The parameters up to the closing parenthesis, which may be missing at the very end. Positional ones are numbered."""
    values: dict[str, str] = {}
    num_positional = 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            if values:
                return values, position
            raise BadText(f"half-written {name}: the parameters are missing")
        if text[position] == ")":
            return values, position + 1
        key = _KEY.match(text, position)
        value, position = _read_value(text, key.end() if key else position, name)
        values[key.group(1) if key else str(num_positional)] = value
        num_positional += key is None


def _read_value(text: str, position: int, name: str) -> tuple[str, int]:
    if position < len(text) and text[position] in "'\"":
        return _read_quoted(text, position, name)
    depth = 0
    for end in range(position, len(text)):
        character = text[end]
        if depth == 0 and (
            character == ")" or (character == "," and (text[end - 1] in ")]>" or _KEY.match(text, end + 1 + _spaces(text, end + 1))))
        ):
            return text[position:end].strip(), end
        depth += (character in "([") - (character in ")]")
    raise BadText(f"half-written {name}: a parameter is cut off")


def _spaces(text: str, position: int) -> int:
    return len(text) - position - len(text[position:].lstrip(" "))


def _read_quoted(text: str, position: int, name: str) -> tuple[str, int]:
    """A quote ends where a parameter can end after it: an apostrophe inside a word does not. Only a whole point may lack its quote."""
    quote = text[position]
    for match in re.compile(rf"\\.|{quote}", re.DOTALL).finditer(text, position + 1):
        if match.group() == quote and _QUOTE_ENDS.match(text, match.end()):
            return unescape_text(text[position + 1 : match.start()]), match.end()
    rest = text[position + 1 :].rstrip()
    if rest.endswith((")", "]", ">")):
        try:
            read_point(rest)
        except BadText:
            pass
        else:
            return rest, len(text)
    raise BadText(f"half-written {name}: a quoted parameter is cut off")


class ThoughtActionGrammar(ABC):
    """Codec of one generation. Subclasses say how points are written and in which scale."""

    layout: Layout = "chat"

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def scale(self, observation: Observation) -> Scale:
        """Width and height of the screen in the grammar's units. Raises BadText where there is none."""

    @abstractmethod
    def write_point(self, x: int, y: int) -> str: ...

    @abstractmethod
    def parameter_name(self, name: str) -> str:
        """The generation's word for `point`, `start_point` or `end_point`."""

    def parse(self, text: str, observation: Observation) -> ParsedResponse:
        """A missing `Action:`, full-width colons, synonyms, boxes for points and several calls are understood."""
        text = storable(text)
        thinking, rest = split_thought(text)
        start, end = _find_action(rest)
        thought = clean_thought(f"{thinking}\n{rest[:start]}")
        try:
            calls = read_calls(rest[end:])
            scale = self.scale(observation)
            actions = tuple(read_call(name, values, scale, observation) for name, values in calls)
        except BadText as error:
            return invalid_response(text, str(error), thought)
        except ValidationError as error:
            return invalid_response(text, validation_reason(error), thought)
        return ParsedResponse(thought=thought, actions=actions)

    def format(self, thought: str | None, action: Action, observation: Observation) -> str:
        """Without a thought the action alone, as the grounding prompts want it."""
        line = f"Action: {self._write(action, observation)}"
        words = _HEADER_IN_THOUGHT.sub(" ", without_wrappers(thought)).strip() if thought else ""
        return f"Thought: {words}\n{line}" if words else line

    def describe(self, action: Action, observation: Observation) -> str:
        if isinstance(action, InvalidAction):
            return f"invalid: {action.reason}"
        try:
            return self._write(action, observation)[:MAX_DESCRIBED_CHARS]
        except NotRepresentable:
            return action.kind

    def _write(self, action: Action, observation: Observation) -> str:
        name, parameters = write_call(action)
        try:
            scale_x, scale_y = self.scale(observation)
        except BadText as error:
            raise NotRepresentable(str(error)) from None
        written = []
        for key, value in parameters.items():
            if isinstance(value, Point):
                x, y = from_pixels(value.x_px, value.y_px, scale_x=scale_x, scale_y=scale_y, observation=observation)
                written.append(f"{self.parameter_name(key)}='{self.write_point(x, y)}'")
            else:
                written.append(f"{key}='{escape_text(value)}'")
        return f"{name}({', '.join(written)})"


def _find_action(text: str) -> tuple[int, int]:
    """Where the thought ends and where the first call starts: after `Action:` at a line's start, else after any, else at a known call."""
    match = ACTION_LINE.search(text) or ACTION_ANYWHERE.search(text)
    if match:
        return match.start(), match.end()
    for call in _CALL.finditer(text):
        if canonical_name(call.group(1)):
            return call.start(), call.start()
    return len(text), len(text)


def clean_thought(text: str) -> str | None:
    """The thought without the words that head it, the tags around it and half of a code fence; None where nothing is left."""
    words = without_wrappers(text).strip()
    if words.count("```") % 2:
        words = _HALF_FENCE.sub("", words, count=1)
    return _HEADER.sub("", _UNUSED_ACTION.sub("", words)).strip() or None


def has_headers(text: str) -> bool:
    """Whether this is written as Thought/Action, or begins to be."""
    return any(found is not None for found in (_HEADER.match(text), _ACTION_HEADER.search(text), _UNUSED_ACTION.search(text)))
