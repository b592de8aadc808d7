"""UI-TARS-2: thoughts in think tags, actions as `<seed:tool_call>` functions; GUI, game and SDK tools in one grammar.

    <thinkt>the button is at the bottom</thinkt>
    <seed:tool_call>
    <function=click>
    <parameter=point><point>500 900</point></parameter>
    </function>
    </seed:tool_call>

One tool call may hold several functions. A turn without a tool call is the answer. GUI and game functions are those of calls.py; any other
function must be a declared tool. Source: the public client of UI-TARS-2 (reference: system prompt "T5" and its GUI adapter).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from agent.grammars.base import (
    THINK_TAGS,
    BadText,
    Layout,
    NotRepresentable,
    ParsedResponse,
    from_pixels,
    invalid_response,
    read_json,
    storable,
    validation_reason,
    without_wrappers,
)
from agent.grammars.calls import Point, canonical_name, read_call, write_call
from agent.grammars.points import escape_text, unescape_text
from agent.grammars.thought_action import (
    ACTION_ANYWHERE,
    ACTION_LINE,
    MAX_ACTIONS,
    MAX_DESCRIBED_CHARS,
    TOOL_CALL_START,
    RawCall,
    clean_thought,
    has_headers,
    read_calls,
    read_calls_to,
    split_thought,
)
from agent.grammars.uitars1 import UNITS
from sandbox.actions import Action, Finished, InvalidAction, ToolCall
from sandbox.session import Observation

ParameterType = Literal["string", "integer", "number", "boolean", "json"]
Tools = Mapping[str, Mapping[str, ParameterType]]
"""Tools by name, with the types of their parameters; a parameter that is not listed is a string."""

SDK_TOOLS: Tools = {
    "Search": {"query": "string"},
    "LinkReader": {"url": "string", "description": "string"},
    "execute_bash": {"command": "string"},
    "str_replace_editor": {
        "command": "string",
        "path": "string",
        "file_text": "string",
        "old_str": "string",
        "new_str": "string",
        "insert_line": "integer",
        "view_range": "json",
    },
    "JupyterCI": {"code": "string", "timeout": "number"},
}
DEFAULT_THINK_TOKEN = "thinkt"

_FUNCTION = re.compile(r"<function=\s*([\w.\-]+)\s*>")
_FUNCTION_END = re.compile(r"</function>|<function=|</seed:tool_call>|$")
_PARAMETER = re.compile(r"<parameter=\s*([\w.\-]+)\s*>(.*?)</parameter>", re.DOTALL)
_TAG = re.compile(r"</?(?:seed:tool_call|function|parameter)\b[^<>]*>?")
_PYTHON_TYPES: dict[ParameterType, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "json": (dict, list),
}
_BARE_CALL = re.compile(r"^[ \t]*`{0,3}(?=([A-Za-z_]\w{0,60})\()", re.MULTILINE)
_AFTER_CALLS = re.compile(r"(?:[\s.,;`]|(?:#|//)[^\n]*(?:\n|$))*")


class UiTars2Grammar:
    """Codec of the tool-call grammar. `tools` are the functions beside the GUI's own that a policy may call, MCP tools among them;
    `think_token` is the word in the think tags that it writes."""

    layout: Layout = "chat"

    def __init__(self, *, think_token: str = DEFAULT_THINK_TOKEN, tools: Tools = SDK_TOOLS) -> None:
        if not re.fullmatch(r"\w{1,64}", think_token):
            raise ValueError(
                f"think token {think_token!r} is not allowed: use 1 to 64 letters, digits and underscores, e.g. {DEFAULT_THINK_TOKEN}"
            )
        self.name = "uitars2" if think_token == DEFAULT_THINK_TOKEN else f"uitars2:{think_token}"
        self._think_token = think_token
        self._tools = tools
        self._think_tags = f"{think_token}|{THINK_TAGS}"

    def parse(self, text: str, observation: Observation) -> ParsedResponse:
        """Think tags of other names, a missing envelope, boxes for points, the older Thought/Action form and bare calls are understood."""
        text = storable(text)
        thinking, rest = split_thought(text, self._think_tags)
        thought = clean_thought(thinking)
        try:
            before, calls = _find_calls(rest)
            actions = tuple(self._action(name, values, observation) for name, values in calls)
        except BadText as error:
            return invalid_response(text, str(error), thought)
        except ValidationError as error:
            return invalid_response(text, validation_reason(error), thought)
        if actions:
            return ParsedResponse(thought=thought or clean_thought(before), actions=actions)
        answer = without_wrappers(rest).strip()
        if not answer:
            return invalid_response(text, "neither a tool call nor an answer", thought)
        if has_headers(answer):  # a thought whose action is missing, and no answer to the task
            return invalid_response(text, "no action after the thought; write a tool call", thought or clean_thought(answer))
        return ParsedResponse(thought=thought, actions=(Finished(answer=answer),))

    def format(self, thought: str | None, action: Action, observation: Observation) -> str:
        words = self._writable_thought(thought)
        head = f"<{self._think_token}>{words}</{self._think_token}>\n" if words else ""
        if isinstance(action, Finished) and self.parse(head + action.answer, observation).actions == (action,):
            return head + action.answer
        name, parameters = self._write(action, observation)
        for key, value in parameters.items():
            if _TAG.search(value):
                raise NotRepresentable(f"uitars2 grammar: parameter {key} of {name} holds a tag of the grammar itself; leave it out")
        lines = [f"<parameter={key}>{value}</parameter>" for key, value in parameters.items()]
        return head + "\n".join(("<seed:tool_call>", f"<function={name}>", *lines, "</function>", "</seed:tool_call>"))

    def describe(self, action: Action, observation: Observation) -> str:
        if isinstance(action, InvalidAction):
            return f"invalid: {action.reason}"
        try:
            name, parameters = self._write(action, observation)
        except NotRepresentable:
            return action.kind
        return f"{name}({', '.join(f'{key}={value}' for key, value in parameters.items())})"[:MAX_DESCRIBED_CHARS]

    def _writable_thought(self, thought: str | None) -> str:
        """The thought without anything that would read as a tag."""
        return re.sub(rf"</?(?:seed:)?{self._think_token}\s*>", "", without_wrappers(_TAG.sub("", thought))).strip() if thought else ""

    def _action(self, name: str, values: Mapping[str, str], observation: Observation) -> Action:
        if name in self._tools:
            types = self._tools[name]
            return ToolCall(name=name, arguments={key: _typed(key, value, types.get(key, "string")) for key, value in values.items()})
        if canonical_name(name) is None:
            raise BadText(f"unknown function {name[:40]!r}; tools are {', '.join(self._tools)}")
        return read_call(name, {key: unescape_text(value) for key, value in values.items()}, (UNITS, UNITS), observation)

    def _write(self, action: Action, observation: Observation) -> tuple[str, dict[str, str]]:
        if isinstance(action, ToolCall):
            return action.name, self._write_arguments(action)
        name, parameters = write_call(action)
        written = {}
        for key, value in parameters.items():
            if isinstance(value, Point):
                x, y = from_pixels(value.x_px, value.y_px, scale_x=UNITS, scale_y=UNITS, observation=observation)
                written[key] = f"<point>{x} {y}</point>"
            else:
                written[key] = escape_text(value)
        return name, written

    def _write_arguments(self, call: ToolCall) -> dict[str, str]:
        if call.name not in self._tools:
            raise NotRepresentable(f"uitars2 grammar: tool {call.name!r} is not declared; declared are {', '.join(self._tools)}")
        written = {}
        for key, value in call.arguments.items():
            kind = self._tools[call.name].get(key, "string")
            is_kind = isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
            if not is_kind or not re.fullmatch(r"[\w.\-]+", key):
                raise NotRepresentable(f"uitars2 grammar: {call.name} takes {key!r} as {kind}, not {value!r:.60}")
            written[key] = value if isinstance(value, str) else json.dumps(value)
        return written


GRAMMAR = UiTars2Grammar()


def _find_calls(text: str) -> tuple[str, list[RawCall]]:
    """What stands before the calls, and the calls: functions, else an `Action:`, else lines at the end that are known calls and nothing
    else. No calls where the text has none. Raises BadText."""
    if native := ACTION_LINE.search(text) or (None if TOOL_CALL_START.search(text) else ACTION_ANYWHERE.search(text)):
        return text[: native.start()], read_calls(text[native.end() :])
    if functions := TOOL_CALL_START.search(text):
        return text[: functions.start()], _read_functions(text)
    return _bare_calls(without_wrappers(text))


def _bare_calls(text: str) -> tuple[str, list[RawCall]]:
    """The calls in lines at the end, maybe in a code fence, with a full stop or a comment. Raises BadText for a text that is a call and
    cannot be read, or begins with one that is known: nobody answers a task so."""
    for number, line in enumerate(_BARE_CALL.finditer(text)):
        is_whole = number == 0 and clean_thought(text[: line.start()]) is None
        is_known = canonical_name(line.group(1)) is not None
        if not is_known and not is_whole:
            continue
        try:
            calls, end = read_calls_to(text[line.end() :])
        except BadText:
            if is_whole and is_known:
                raise
            continue
        if _AFTER_CALLS.fullmatch(text, line.end() + end):
            return text[: line.start()], calls
        if is_whole and is_known:
            raise BadText(f"text after {line.group(1)}(…); write a tool call and nothing else")
    return text, []


def _read_functions(text: str) -> list[RawCall]:
    """All functions with their parameters as written. Raises BadText for one that is cut off, and where there is none."""
    calls: list[RawCall] = []
    for match in _FUNCTION.finditer(text):
        end = _FUNCTION_END.search(text, match.end())
        body = text[match.end() : end.start() if end else len(text)]
        values = {parameter.group(1): parameter.group(2) for parameter in _PARAMETER.finditer(body)}
        if _TAG.search(_PARAMETER.sub("", body)):
            raise BadText(f"half-written {match.group(1)[:40]}: a parameter is cut off")
        calls.append((match.group(1), values))
        if len(calls) == MAX_ACTIONS:
            break
    if not calls:
        raise BadText("half-written tool call: no function in it")
    return calls


def _typed(key: str, written: str, kind: ParameterType) -> Any:
    """A tool's parameter as its declared type. Raises BadText."""
    if kind == "string":
        return written
    value = read_json(written, f"parameter {key}")
    if not isinstance(value, _PYTHON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise BadText(f"parameter {key} must be {kind}, not {written[:40]!r}")
    return value
