"""Calls of tools: how a checkpoint's chat template writes them, the grammar that demands one, and calls read from an answer as it comes.

The form is found out by having the template write a call that is known: what stands before its JSON opens a call, what stands after it
closes it. So no model is named here. A template that writes calls other than as JSON is refused. What tools are is wire.py's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.policy.policy import Message
from models.engine.grammar import json_rule
from models.families.chat import ChatMessage
from models.families.templates import TemplateCodec
from models.server.wire import Function
from warehouse.core.errors import ModelError, RequestRefused

NAME, KEY, VALUE, CALL_ID = "probe_of_calls", "probe_key", "probe value", "probe0001"
"""Of the call that a template is tried with. Mistral's wants ids of nine characters."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How calls are written: `opening`, a JSON object with the function's name and arguments under two keys, `closing`."""

    opening: str
    closing: str
    name_key: str
    arguments_key: str
    is_list: bool
    is_special: bool
    """Whether special tokens open or close a call, which are kept when an answer is decoded."""
    special_ids: Mapping[str, int]

    def grammar(self, functions: Sequence[Function]) -> str:
        """One call of one of these functions, in llguidance's form of Lark. Raises RequestRefused for parameters that are too large."""
        calls = " | ".join(f"call_{index}" for index in range(len(functions)))
        lines = [f"start: {self._literal(self.opening + '[' * self.is_list)} ({calls}) {self._literal(']' * self.is_list + self.closing)}"]
        for index, function in enumerate(functions):
            head = f'{{"{self.name_key}": {json.dumps(function.name)}, "{self.arguments_key}": '
            schema = {"type": "object"} | function.parameters
            lines.append(f'call_{index}: {json.dumps(head)} arguments_{index} "}}"')
            lines.append(f"arguments_{index}: {json_rule(schema, 'tools')}")
        return "\n".join(lines)

    def _literal(self, text: str) -> str:
        """A text inside a grammar; special tokens by their number."""
        found = sorted((place, token) for token in self.special_ids if (place := text.find(token)) >= 0)
        if not found:
            return json.dumps(text) if text else ""
        place, token = found[0]
        return f"{self._literal(text[:place])} <[{self.special_ids[token]}]> {self._literal(text[place + len(token) :])}"


def form_of(codec: TemplateCodec) -> ToolForm:
    """How the template of a codec writes tool calls. Raises ModelError for one that writes none, or in an unknown form."""
    tool = {
        "type": "function",
        "function": {"name": NAME, "description": "", "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}}},
    }
    asked = (Message(role="user", content="hello"),)
    call = {"id": CALL_ID, "type": "function", "function": {"name": NAME, "arguments": {KEY: VALUE}}}
    prompt = codec.rendered(asked, tools=[tool])
    if prompt == codec.rendered(asked):
        raise ModelError("the checkpoint's chat template ignores tools")
    whole = codec.rendered((*asked, ChatMessage(role="assistant", content="", fields={"tool_calls": [call]})), tools=[tool])
    if not whole.startswith(prompt):
        raise ModelError("the checkpoint's chat template puts tool calls elsewhere than after its generation prompt")
    written = whole.removeprefix(prompt)
    for start, character in enumerate(written):
        if character in "[{" and (found := _call_at(written, start)) is not None:
            value, end = found
            closing = written[end:]
            ends = [place for token in codec.eos_token_ids if (place := closing.find(codec.text_of(token))) >= 0]
            closing = closing[: min(ends)] if ends else closing.rstrip()
            (only,) = value if isinstance(value, list) else [value]
            specials = {text: token for text, token in codec.special_tokens().items() if text in written[:start] + closing}
            return ToolForm(
                opening=written[:start],
                closing=closing,
                is_list=isinstance(value, list),
                is_special=bool(specials),
                special_ids=specials,
                name_key=next(key for key, part in only.items() if part == NAME),
                arguments_key=next(key for key, part in only.items() if part == {KEY: VALUE}),
            )
    raise ModelError(f"the checkpoint's chat template writes tool calls in an unknown form: {written[:200]!r}; only JSON is supported")


def _call_at(text: str, start: int) -> tuple[Any, int] | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError:
        return None
    calls = value if isinstance(value, list) else [value]
    is_call = len(calls) == 1 and isinstance(calls[0], dict) and NAME in calls[0].values() and {KEY: VALUE} in calls[0].values()
    return (value, end) if is_call else None


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    """A JSON object, as text."""


class CallReader:
    """Text of an answer goes in as it comes; what is said, and calls, come out. What opens like a call and is none is said."""

    def __init__(self, form: ToolForm, *, is_single: bool) -> None:
        self._form, self._is_single = form, is_single
        self._opening, self._closing = form.opening.strip(), form.closing.strip()
        self._held = ""
        self._is_plain = self._is_over = False
        self.num_calls = 0

    def add(self, text: str, *, is_end: bool = False) -> tuple[str, list[Call]]:
        """The text and the calls that are certain now; at the end, all."""
        self._held += text
        said, calls = "", list[Call]()
        while not self._is_over and (step := self._step(is_end=is_end)) is not None:
            said, calls = said + step[0], calls + step[1]
        return said, calls

    def _step(self, *, is_end: bool) -> tuple[str, list[Call]] | None:
        """What the beginning of the held text is; None where that cannot be said yet, or nothing is left."""
        if not self._held:
            return None
        place = self._opens_at()
        if place is None:
            keep = 0 if is_end else _overlap(self._held, self._opening)
            return self._release(len(self._held) - keep) if keep < len(self._held) else None
        if place:
            return self._release(place)
        found = self._call(is_end=is_end)
        if found is not None:
            calls, end = found
            self._held = self._held[end:]
            self.num_calls += len(calls)
            if self._is_single:
                self._is_over, calls = True, calls[:1]
            return "", calls
        if is_end or (self._closing and self._closing in self._held[len(self._opening) :]):
            return self._release(len(self._opening) or len(self._held))
        return None

    def _opens_at(self) -> int | None:
        """Where a call may begin. Without a text that opens it, only a whole answer can be one."""
        if self._opening:
            place = self._held.find(self._opening)
            return place if place >= 0 else None
        if not self._is_plain and (not (start := self._held.lstrip()) or start[0] in "[{"):
            return 0
        self._is_plain = True
        return None

    def _call(self, *, is_end: bool) -> tuple[list[Call], int] | None:
        """The call at the beginning of the held text, and where it ends."""
        start = len(self._opening)
        start += len(self._held[start:]) - len(self._held[start:].lstrip())
        try:
            value, end = _DECODER.raw_decode(self._held, start)
        except (ValueError, RecursionError):
            return None
        rest = self._held[end:].lstrip()
        if rest.startswith(self._closing):
            end = len(self._held) - len(rest) + len(self._closing)
        elif not is_end or rest:
            return None
        if not self._opening and (not is_end or self._held[end:].strip()):
            return None
        calls = [self._read(one) for one in (value if isinstance(value, list) else [value])]
        known = [call for call in calls if call is not None]
        return (known, end) if known and len(known) == len(calls) else None

    def _read(self, value: Any) -> Call | None:
        if not isinstance(value, dict):
            return None
        name, arguments = value.get(self._form.name_key), value.get(self._form.arguments_key, {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        return Call(name, json.dumps(arguments, ensure_ascii=False))

    def _release(self, num: int) -> tuple[str, list[Call]]:
        said, self._held = self._held[:num], self._held[num:]
        return said, []


def _overlap(text: str, opening: str) -> int:
    """Characters at the end of a text that may be the beginning of `opening`."""
    return max((size for size in range(1, min(len(opening), len(text) + 1)) if text.endswith(opening[:size])), default=0)


def template_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of an earlier answer as templates read it: with arguments as an object. Raises RequestRefused for others."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRefused(f"the arguments of the call of {name} must be a JSON object, not {arguments[:80]!r}", "messages")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}
