"""Logs of OpenAI's chat completions: JSON lines of {"request": …, "response": …}, or of requests whose messages hold the answers."""

from __future__ import annotations

from typing import Any

from agent.gateway.records import Called, Said, Shown
from pipelines.importing.conversations import LoggedCall, Turn, called, conversation_entries, fields_of, request_and_response
from pipelines.importing.trajectories import Importer
from sandbox.importing.fields import BadRecord, Fields, listed

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
OF_REQUEST = (
    *("model", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "temperature", "top_p", "max_tokens"),
    *("max_completion_tokens", "n", "stop", "seed", "stream", "stream_options", "response_format", "frequency_penalty", "presence_penalty"),
    *(
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "user",
        "metadata",
        "store",
        "reasoning_effort",
        "service_tier",
        "extra_body",
        "extra_headers",
    ),
    *("verbosity", "prompt_cache_key", "safety_identifier", "modalities", "prediction"),
)
OF_RESPONSE = ("object", "created", "model", "usage", "service_tier", "system_fingerprint", "prompt_logprobs", "moderation")
OF_CHOICE = ("index", "finish_reason", "logprobs", "stop_reason", "token_ids")
OF_MESSAGE = ("name", "refusal", "audio", "annotations")


def read_call(record: Any, call: LoggedCall) -> None:
    """Satisfies CallReader."""
    fields, response = request_and_response(record, call)
    call.turns = [turn_of(message, call) for message in fields.take("messages", list)]
    call.aside(fields, *OF_REQUEST)
    call.unknown += fields.unknown()
    if response is not None:
        call.answer = _answer(response, call)


IMPORTER = Importer(name="openai-chat", entries=conversation_entries(read_call)(None), answers=conversation_entries(read_call))


def _answer(response: Any, call: LoggedCall) -> Turn:
    fields = fields_of(response, "response")
    call.ids += tuple(str(name) for name in (fields.any("id"),) if name)
    choices = fields.take("choices", list)
    if not choices:
        raise BadRecord("`response.choices` is empty")
    if len(choices) > 1:
        call.lost["answers beside the first"] += len(choices) - 1
    choice = fields_of(choices[0], "response.choices[]")
    answer = turn_of(choice.any("message"), call)
    call.aside(choice, *OF_CHOICE)
    call.aside(fields, *OF_RESPONSE)
    call.unknown += [*choice.unknown(), *fields.unknown()]
    return answer


def turn_of(message: Any, call: LoggedCall) -> Turn:
    """Raises BadRecord."""
    fields = fields_of(message, "messages[]")
    role = ROLES.get(str(fields.any("role")))
    if role is None:
        raise BadRecord(f"a message is from {fields.any('role')!r:.60}; known are {', '.join(ROLES)}")
    thinking = fields.any("reasoning_content", "reasoning")
    pieces = [piece for part in listed(fields.any("content")) if (piece := _piece(part, call)) is not None]
    calls = [_called(one, call) for one in listed(fields.any("tool_calls"))]
    if (legacy := fields.any("function_call")) is not None:
        calls.append(_named(fields_of(legacy, "messages[].function_call"), "", "arguments", call))
    said = Said(role=role, pieces=tuple(pieces), calls=tuple(calls), call_id=_text(fields.any("tool_call_id")))
    call.aside(fields, *OF_MESSAGE)
    call.unknown += fields.unknown()
    return Turn(said=said, thinking=thinking if isinstance(thinking, str) else "")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _piece(part: Any, call: LoggedCall) -> str | Shown | None:
    if isinstance(part, str):
        return part
    fields = fields_of(part, "messages[].content[]")
    kind = fields.any("type")
    call.aside(fields, "cache_control", "annotations")
    if kind == "text":
        text = fields.take("text", str)
        call.unknown += fields.unknown()
        return text
    if kind == "image_url":
        image = fields.any("image_url")
        call.unknown += fields.unknown()
        return call.shown(_url(fields_of(image, fields.dotted("image_url")), call) if isinstance(image, dict) else image)
    call.lost[f"a part of the type {str(kind)[:40]}"] += 1
    return None


def _url(image: Fields, call: LoggedCall) -> Any:
    url = image.any("url")
    call.aside(image, "detail")
    call.unknown += image.unknown()
    return url


def _called(value: Any, call: LoggedCall) -> Called:
    fields = fields_of(value, "messages[].tool_calls[]")
    identity, kind = fields.any("id"), str(fields.any("type") or "function")
    fields.keep_aside("index")
    inner = fields_of(fields.any("function" if kind == "function" else kind), f"messages[].tool_calls[].{kind[:40]}")
    made = _named(inner, identity, "arguments" if kind == "function" else "input", call)
    call.unknown += fields.unknown()
    return made


def _named(fields: Fields, identity: Any, arguments: str, call: LoggedCall) -> Called:
    made = called(identity, fields.any("name"), fields.any(arguments))
    call.unknown += fields.unknown()
    return made
