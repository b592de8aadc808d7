"""The compact grammar of the embedded quickstart policy: elements as numbered lines, answers that repeat a line and name its number.

    "Ok" <button> [2]                                         an element line (agent reads)
    Thought click "Ok" <button> [2] Action click [2]          an answer (agent writes)

Role and number stand after the name, so that a model which has found the name copies the rest of the line by induction; states stand
before it, so that what it reads of a name knows them. A text to type or to answer with that stands on the page is first read there:

    Thought type "Year" <text> [7] "1984" <text> [8] Action type "1984"
    Thought finished "Year" <text> [7] "1984" <text> [8] Action finished "1984"

The lines have no coordinates. So where a drag begins or ends beside an element, the point is so far to the right of its click point and so
far below it:

    Thought drag "s" <text> [1] "L" <text> [2] Action drag [1] [2] +15 -4

The prompt around the lines is agent/prompts/prompt.py's business; the lines are elements.py's, the escapes between quotes quoting.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError

from agent.grammars.base import (
    BadText,
    Layout,
    NotRepresentable,
    ParsedResponse,
    from_pixels,
    invalid_response,
    read_json,
    storable,
    to_pixels,
    validation_reason,
)
from agent.grammars.elements import ANSWER_ROLES, MAX_ELEMENTS, element_index_at, element_index_near, source_of_text, spoken_element
from agent.grammars.quoting import escape, unescape
from sandbox.actions import (
    Action,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    InvalidAction,
    KeyDown,
    KeyUp,
    LongPress,
    MouseDown,
    MouseUp,
    MoveTo,
    Navigate,
    NavigateBack,
    OpenApp,
    PressBack,
    PressHome,
    Scroll,
    SelectOption,
    ToolCall,
    TypeText,
    Wait,
)
from sandbox.session import Observation

MAX_HISTORY_TEXT_CHARS = 48
SHELL_TOOL = "execute_bash"
"""The tool call that has a verb of its own: `run "ls"`."""
MAX_MARKS = 20
"""So many last words `Action` of an answer are tried as the one that heads the action."""
_CLICKS: dict[str, tuple[Literal["left", "middle", "right"], int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
_CLICK_VERBS = {meaning: verb for verb, meaning in _CLICKS.items()}
_TOKEN = re.compile(r'(?:"(?P<text>(?:[^"\\]|\\.)*)"|\[\s*(?P<index>\d{1,6})\s*\]|(?P<word>[^\s"\[\]]+))\s*', re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?")
_OFFSET = re.compile(r"[+-]\d{1,6}")
_ACTION_WORD = re.compile(r"(?:^|(?<=\s))Action\s*[:：]?\s", re.DOTALL)
_THOUGHT_WORD = re.compile(r"\s*Thought\s*[:：]?(?:\s|$)")
_QUOTED = re.compile(r'"\s*((?:[^"\\]|\\.)*?)\s*"', re.DOTALL)
_ANY_QUOTED = re.compile(r'"[^"]*"')
_ELEMENT = re.compile(r'"([^"\\]*)" <(\w+)> \[(\d+)\]')
_ELEMENT_NUMBER = re.compile(r"\[(\d{1,4})\]")


@dataclass(slots=True)
class _Reader:
    """The tokens after a verb, read from left to right."""

    observation: Observation
    tokens: list[tuple[str, str]]

    def next_text(self, what: str) -> str:
        if self.tokens and self.tokens[0][0] == "index":
            raise BadText(f"[{self.tokens[0][1]}] cannot stand here; {what} can, in double quotes")
        if not self.tokens or self.tokens[0][0] != "text":
            raise BadText(f'{what} must stand in double quotes, e.g. "hello"')
        return unescape(self.tokens.pop(0)[1])

    def next_word(self) -> str | None:
        return self.tokens.pop(0)[1] if self.tokens and self.tokens[0][0] == "word" else None

    def has_point(self) -> bool:
        return bool(self.tokens) and self.tokens[0][0] != "text"

    def next_point(self) -> tuple[int, int]:
        """`[2]` is the click point of element 2, `[2] +15 -4` a point beside it, `34 56` a point in pixels."""
        if self.tokens and self.tokens[0][0] == "index":
            index = int(self.tokens.pop(0)[1])
            if not 1 <= index <= min(len(self.observation.elements), MAX_ELEMENTS):
                raise BadText(f"no element [{index}]; there are {min(len(self.observation.elements), MAX_ELEMENTS)}")
            element, offset = self.observation.elements[index - 1], self._offset()
            if offset is None:
                return element.x_px, element.y_px
            return self._on_screen(element.x_px + offset[0], element.y_px + offset[1])
        words = [value for kind, value in self.tokens[:2] if kind == "word" and _NUMBER.fullmatch(value)]
        if len(words) < 2:
            raise BadText("an element number such as [2] or a point such as 34 56 is missing")
        del self.tokens[:2]
        return self._on_screen(float(words[0]), float(words[1]))

    def _offset(self) -> tuple[int, int] | None:
        """Pixels to the right and down; None where no two signed numbers follow."""
        words = [value for kind, value in self.tokens[:2] if kind == "word" and _OFFSET.fullmatch(value)]
        if len(words) < 2:
            return None
        del self.tokens[:2]
        return int(words[0]), int(words[1])

    def _on_screen(self, x_px: float, y_px: float) -> tuple[int, int]:
        width, height = self.observation.width_px, self.observation.height_px
        return to_pixels(x_px, y_px, scale_x=width, scale_y=height, observation=self.observation)

    def end(self, verb: str) -> None:
        if self.tokens:
            raise BadText(f"{verb}: nothing may follow, but there is {self.tokens[0][1]!r}"[:120])


def _point(reader: _Reader) -> dict[str, Any]:
    x, y = reader.next_point()
    return {"x": x, "y": y}


def _maybe_point(reader: _Reader) -> dict[str, Any]:
    return _point(reader) if reader.has_point() else {}


def _press_button(reader: _Reader) -> dict[str, Any]:
    button = reader.next_word() if reader.tokens and reader.tokens[0][1] in ("left", "middle", "right") else None
    return {"button": button or "left", **_maybe_point(reader)}


def _drag(reader: _Reader) -> dict[str, Any]:
    (x, y), (to_x, to_y) = reader.next_point(), reader.next_point()
    return {"x": x, "y": y, "to_x": to_x, "to_y": to_y}


def _scroll(reader: _Reader) -> dict[str, Any]:
    direction = reader.next_word()
    if direction not in get_args(Direction):
        raise BadText(f"scroll needs a direction first (up, down, left, right){f', not {direction!r}' if direction else ''}"[:120])
    return {"direction": direction, **_maybe_point(reader)}


def _keys(reader: _Reader) -> tuple[str, ...]:
    keys = []
    while (word := reader.next_word()) is not None:
        key = unescape(word)
        keys.append(key if len(key) == 1 else key.lower())
    if not keys:
        raise BadText("a key is missing, e.g. press enter")
    return tuple(keys)


def _one_key(reader: _Reader) -> dict[str, Any]:
    keys = _keys(reader)
    if len(keys) > 1:
        raise BadText(f"one key only, not {len(keys)}")
    return {"key": keys[0]}


def _seconds(reader: _Reader) -> dict[str, Any]:
    word = reader.next_word()
    if word is None:
        return {}
    if not _NUMBER.fullmatch(word):
        raise BadText(f"wait takes seconds, not {word!r}"[:120])
    return {"seconds": float(word)}


def _run(reader: _Reader) -> dict[str, Any]:
    return {"name": SHELL_TOOL, "arguments": {"command": reader.next_text("the command")}}


def _tool(reader: _Reader) -> dict[str, Any]:
    name = reader.next_text("the tool's name")
    arguments = read_json(reader.next_text("the arguments"), "the tool's arguments") if reader.tokens else {}
    return {"name": name, "arguments": arguments}


_VERBS: dict[str, tuple[type[Action], Callable[[_Reader], dict[str, Any]]]] = {
    **dict.fromkeys(_CLICKS, (Click, _point)),
    "drag": (Drag, _drag),
    "move_to": (MoveTo, _point),
    "mouse_down": (MouseDown, _press_button),
    "mouse_up": (MouseUp, _press_button),
    "scroll": (Scroll, _scroll),
    "type": (TypeText, lambda reader: {"text": reader.next_text("the text")}),
    "press": (Hotkey, lambda reader: {"keys": _keys(reader)}),
    "key_down": (KeyDown, _one_key),
    "key_up": (KeyUp, _one_key),
    "select": (SelectOption, lambda reader: {**_point(reader), "option": reader.next_text("the option")}),
    "navigate": (Navigate, lambda reader: {"url": reader.next_text("the address")}),
    "navigate_back": (NavigateBack, lambda _: {}),
    "wait": (Wait, _seconds),
    "long_press": (LongPress, _point),
    "open_app": (OpenApp, lambda reader: {"name": reader.next_text("the app's name")}),
    "press_home": (PressHome, lambda _: {}),
    "press_back": (PressBack, lambda _: {}),
    "run": (ToolCall, _run),
    "tool": (ToolCall, _tool),
    "finished": (Finished, lambda reader: {"answer": reader.next_text("the answer")} if reader.tokens else {}),
    "call_user": (CallUser, lambda reader: {"question": reader.next_text("the question")} if reader.tokens else {}),
}


def _read_action(text: str, observation: Observation) -> Action:
    """The action that the whole text spells. Raises BadText, or ValidationError for values outside an action's bounds."""
    tokens, position, text = [], 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            problem = "cannot read a quote that never ends" if text[position] == '"' else "cannot read"
            raise BadText(f"{problem}: {text[position : position + 20]!r}")
        kind = match.lastgroup or "word"
        tokens.append((kind, match.group(kind)))
        position = match.end()
    if not tokens:
        raise BadText("no action after the thought")
    kind, verb = tokens.pop(0)
    if kind != "word" or verb not in _VERBS:
        raise BadText(f"unknown action {verb!r}; known are {', '.join(_VERBS)}"[:400])
    model, read = _VERBS[verb]
    reader = _Reader(observation=observation, tokens=tokens)
    fields = read(reader)
    reader.end(verb)
    if verb in _CLICKS:
        fields["button"], fields["count"] = _CLICKS[verb]
    return model(**fields)


class CompactGrammar:
    """Codec of the compact grammar. Every action can be written; points that are not an element's own are written in pixels."""

    name = "compact"
    layout: Layout = "elements"

    def parse(self, text: str, observation: Observation) -> ParsedResponse:
        """The action is what follows the last `Action` from which all the rest can be read: an `Action` inside quotes never can."""
        text = storable(text)
        body = text.strip()
        marks = list(_ACTION_WORD.finditer(body + " "))[-MAX_MARKS:]
        reason = None
        for start, end in [(mark.start(), mark.end()) for mark in reversed(marks)] or [(0, 0)]:
            try:
                action = _read_action(body[end:], observation)
            except BadText as error:
                reason = reason or str(error)
            except ValidationError as error:
                reason = reason or validation_reason(error)
            else:
                return ParsedResponse(thought=self._thought(body[:start]), actions=(action,))
        if not marks:
            return invalid_response(text, "no `Action`; write: Thought … Action click [2]", self._thought(body))
        return invalid_response(text, reason or "no action", self._thought(body[: marks[-1].start()]))

    @staticmethod
    def _thought(text: str) -> str | None:
        """The words before `Action`, quotes closed up as `format` writes them."""
        mark = _THOUGHT_WORD.match(text)
        words = " ".join(text[mark.end() if mark else 0 :].split())
        return _QUOTED.sub(r'"\1"', words) or None

    def format(self, thought: str | None, action: Action, observation: Observation) -> str:
        """Without a thought, the grammar's own: the line of the element that is acted on, or the bare verb."""
        written = self.write_action(action, observation)
        words = " ".join(thought.split()) if thought else self._own_thought(action, observation)
        return f"Thought {words} Action {written}"

    def describe(self, action: Action, observation: Observation) -> str:
        match action:
            case InvalidAction(reason=reason):
                return f"invalid: {escape(' '.join(reason.split())[:MAX_HISTORY_TEXT_CHARS], keep_quotes=True).strip()}"
            case Click(x=x, y=y) if (index := element_index_at(x, y, observation)) is not None:
                return f"{_CLICK_VERBS[action.button, action.count]} {spoken_element(observation, index)}"
            case TypeText(text=text):
                return f'type "{escape(text[:MAX_HISTORY_TEXT_CHARS])}"'
            case ToolCall(name=name, arguments={"command": str(command)}) if name == SHELL_TOOL:
                return f'run "{escape(command[:MAX_HISTORY_TEXT_CHARS])}"'
            case _:
                return self.write_action(action, observation)

    def _own_thought(self, action: Action, observation: Observation) -> str:
        """`click "Ok" <button> [2]` where the action has elements, else the verb alone."""
        words = [self.write_action(action, observation).split(" ", 1)[0]]
        if isinstance(action, TypeText):
            words += [spoken_element(observation, index) for index in source_of_text(action.text, observation)]
        elif isinstance(action, Finished) and action.answer:
            words += [spoken_element(observation, index) for index in source_of_text(action.answer, observation, ANSWER_ROLES)]
        fields = action.model_dump()
        for x, y in ((fields.get("x"), fields.get("y")), (fields.get("to_x"), fields.get("to_y"))):
            index = None if x is None or y is None else _index_of(x, y, observation, is_drag=isinstance(action, Drag))
            if index is not None:
                words.append(spoken_element(observation, index))
        return " ".join(words)

    def write_action(self, action: Action, observation: Observation) -> str:
        """The action alone, as it stands after `Action`. Raises NotRepresentable."""

        def at(x: int | None, y: int | None, *, is_drag: bool = False) -> str:
            if x is None or y is None:
                return ""
            index = element_index_at(x, y, observation)
            if index is not None:
                return f" [{index}]"
            width, height = observation.width_px, observation.height_px
            x, y = from_pixels(x, y, scale_x=width, scale_y=height, observation=observation)
            index = element_index_near(x, y, observation) if is_drag else None
            if index is not None:
                element = observation.elements[index - 1]
                return f" [{index}] {x - element.x_px:+d} {y - element.y_px:+d}"
            return f" {x} {y}"

        match action:
            case Click(x=x, y=y, button=button, count=count):
                if (button, count) not in _CLICK_VERBS:
                    raise NotRepresentable(f"compact grammar: {count} clicks of the {button} button; allowed are {', '.join(_CLICKS)}")
                return f"{_CLICK_VERBS[button, count]}{at(x, y)}"
            case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
                return f"drag{at(x, y, is_drag=True)}{at(to_x, to_y, is_drag=True)}"
            case MoveTo(x=x, y=y) | LongPress(x=x, y=y):
                return f"{action.kind}{at(x, y)}"
            case MouseDown(x=x, y=y, button=button) | MouseUp(x=x, y=y, button=button):
                return f"{action.kind}{'' if button == 'left' else ' ' + button}{at(x, y)}"
            case Scroll(direction=direction, x=x, y=y):
                return f"scroll {direction}{at(x, y)}"
            case Hotkey(keys=keys):
                return f"press {' '.join(_key(key) for key in keys)}"
            case KeyDown(key=key) | KeyUp(key=key):
                return f"{action.kind} {_key(key)}"
            case SelectOption(x=x, y=y, option=option):
                return f'select{at(x, y)} "{escape(option)}"'
            case Wait(seconds=seconds):
                return "wait" if seconds == Wait().seconds else f"wait {max(seconds, 1e-6):.6f}".rstrip("0").rstrip(".")
            case ToolCall(name=name, arguments={"command": str(command)}) if name == SHELL_TOOL and len(action.arguments) == 1:
                return f'run "{escape(command)}"'
            case ToolCall(name=name, arguments=arguments):
                return f'tool "{escape(name)}" "{escape(json.dumps(arguments, sort_keys=True))}"'
            case TypeText(text=text):
                return f'type "{escape(text)}"'
            case Navigate(url=url):
                return f'navigate "{escape(url)}"'
            case OpenApp(name=name):
                return f'open_app "{escape(name)}"'
            case Finished(answer=text) | CallUser(question=text):
                return f'{action.kind} "{escape(text)}"' if text else action.kind
            case NavigateBack() | PressHome() | PressBack():
                return action.kind
            case InvalidAction(reason=reason):
                raise NotRepresentable(f"compact grammar: an invalid action ({reason}) cannot be written")


def elements_named(response: str, observation: str) -> list[str]:
    """The lines of a screen, as it is stored, whose numbers stand in the action of an answer; none where it names points."""
    _, _, written = _ANY_QUOTED.sub('""', response).rpartition("Action")
    numbers = _ELEMENT_NUMBER.findall(written)
    lines = {}
    for line in observation.split("\n") if numbers else ():
        if found := _ELEMENT_NUMBER.search(line.rsplit(">", 1)[-1]):
            lines[found.group(1)] = line
    return [lines[number] for number in numbers if number in lines]


def read_elements(response: str, observation: str) -> list[tuple[str, str, str]]:
    """(name, role, number) of those elements; none where one of their lines cannot be read."""
    found = [_ELEMENT.search(line) for line in elements_named(response, observation)]
    return [(each[1], each[2], each[3]) for each in found if each is not None] if all(found) else []


GRAMMAR = CompactGrammar()


def _index_of(x: int, y: int, observation: Observation, *, is_drag: bool) -> int | None:
    """The element that a point is named by."""
    index = element_index_at(x, y, observation)
    return element_index_near(x, y, observation) if index is None and is_drag else index


def _key(key: str) -> str:
    if not key or (len(key) > 1 and key != key.lower()):
        raise NotRepresentable(f"compact grammar: key {key!r}; allowed are lower-case names such as enter, and single characters")
    return escape(key).replace(" ", "\\s").replace("[", "\\u005b").replace("]", "\\u005d")
