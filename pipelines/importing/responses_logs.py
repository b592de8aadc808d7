"""Logs of OpenAI's responses with its computer tool: JSON lines of {"request": …, "response": …}. A request that names the response before
it goes on with that one's conversation; one whose input repeats everything is read as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.gateway.records import Called, Said, Shown
from pipelines.importing.conversations import LoggedCall, Turn, called, conversation_entries, display_of, fields_of, request_and_response
from pipelines.importing.trajectories import Importer
from sandbox.importing.fields import BadRecord, Fields, listed

OF_REQUEST = (
    *("model", "truncation", "reasoning", "temperature", "top_p", "tool_choice", "parallel_tool_calls", "max_output_tokens", "stream"),
    *("store", "include", "metadata", "text", "user", "service_tier", "background", "extra_headers", "extra_body", "conversation"),
    *("max_tool_calls", "prompt_cache_key", "safety_identifier", "context_management"),
)
OF_RESPONSE = (
    *(
        "object",
        "created_at",
        "completed_at",
        "model",
        "status",
        "error",
        "incomplete_details",
        "instructions",
        "usage",
        "tools",
        "output_text",
    ),
    *("previous_response_id", "billing", "moderation", "top_logprobs", "prompt_cache_retention", "prompt", "frequency_penalty"),
    *("presence_penalty", "prompt_cache_options", *OF_REQUEST),
)
BY_MODEL = ("reasoning", "computer_call", "function_call")


def read_call(record: Any, call: LoggedCall) -> None:
    """Satisfies CallReader."""
    fields, response = request_and_response(record, call)
    before = fields.any("previous_response_id")
    call.continues = str(before) if before else None
    system = fields.any("instructions")
    call.turns = [Turn(said=Said(role="system", pieces=(system,)))] if isinstance(system, str) else []
    asked = fields.any("input")
    call.turns += _turns([{"role": "user", "content": asked}] if isinstance(asked, str) else listed(asked), call)
    call.display = _display(listed(fields.any("tools")), call)
    call.aside(fields, *OF_REQUEST)
    call.unknown += fields.unknown()
    if response is not None:
        answer = fields_of(response, "response")
        call.ids += tuple(str(name) for name in (answer.any("id"),) if name)
        call.answer = _by_model(answer.take("output", list), call)
        call.aside(answer, *OF_RESPONSE)
        call.unknown += answer.unknown()


IMPORTER = Importer(name="openai-computer-use", entries=conversation_entries(read_call)(None), answers=conversation_entries(read_call))


def _display(tools: Sequence[Any], call: LoggedCall) -> tuple[int, int] | None:
    found = None
    for tool in tools:
        fields = fields_of(tool, "tools[]")
        if not str(fields.any("type")).startswith("computer"):
            call.lost["descriptions of tools"] += 1
        elif fields.any("display_width") is not None:
            found = display_of(fields, "display_width", "display_height")
    return found


def _is_by_model(item: Any) -> bool:
    return isinstance(item, dict) and (item.get("type") in BY_MODEL or item.get("role") == "assistant")


def _turns(items: Sequence[Any], call: LoggedCall) -> list[Turn]:
    """What the model said at one time is one turn: thoughts, texts and calls are items of their own here."""
    found: list[Turn] = []
    waiting: list[Any] = []
    for item in items:
        if _is_by_model(item):
            waiting.append(item)
            continue
        found += [_by_model(waiting, call)] if waiting else []
        waiting = []
        found += _by_others(fields_of(item, "input[]"), call)
    return found + ([_by_model(waiting, call)] if waiting else [])


def _by_others(fields: Fields, call: LoggedCall) -> list[Turn]:
    kind, role = str(fields.any("type") or "message"), fields.any("role")
    identity = str(fields.any("call_id") or "")
    fields.keep_aside("id", "status")
    call.aside(fields, "acknowledged_safety_checks", "current_url")
    if kind == "message":
        if role not in ("user", "system", "developer"):
            raise BadRecord(f"a message is from {role!r:.60}; known are user, system, developer and assistant")
        said = Said(role="user" if role == "user" else "system", pieces=_pieces(fields.any("content"), call))
    elif kind in ("computer_call_output", "function_call_output"):
        said = Said(role="tool", pieces=_pieces(fields.any("output"), call), call_id=identity)
    else:
        call.lost[f"an item of the type {kind[:40]}"] += 1
        return []
    call.unknown += fields.unknown()
    return [Turn(said=said)]


def _by_model(items: Sequence[Any], call: LoggedCall) -> Turn:
    thinking: list[str] = []
    pieces: list[str | Shown] = []
    calls: list[Called] = []
    for item in items:
        fields = fields_of(item, "output[]")
        kind = fields.any("type") or "message"
        fields.keep_aside("id", "status", "role", "phase")
        call.aside(fields, "pending_safety_checks", "encrypted_content")
        if kind == "reasoning":
            thinking += [str(piece) for piece in (*_pieces(fields.any("summary"), call), *_pieces(fields.any("content"), call))]
        elif kind == "message":
            pieces += _pieces(fields.any("content"), call)
        elif kind == "computer_call":
            actions = fields.any("actions") or [fields.any("action")]
            calls += [called(fields.any("call_id"), "computer", action) for action in listed(actions)]
            fields.keep_aside("action")
        elif kind == "function_call":
            calls.append(called(fields.any("call_id"), fields.any("name"), fields.any("arguments")))
        else:
            call.lost[f"an item of the type {str(kind)[:40]}"] += 1
            continue
        call.unknown += fields.unknown()
    return Turn(said=Said(role="assistant", pieces=tuple(pieces), calls=tuple(calls)), thinking="\n".join(thinking))


def _pieces(content: Any, call: LoggedCall) -> tuple[str | Shown, ...]:
    found: list[str | Shown] = []
    for part in listed(content):
        if isinstance(part, str):
            found.append(part)
            continue
        fields = fields_of(part, "content[]")
        kind = str(fields.any("type"))
        if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
            found.append(fields.take("text", str))
        elif kind in ("input_image", "computer_screenshot"):
            found.append(call.shown(fields.any("image_url")))
        else:
            call.lost[f"a part of the type {kind[:40]}"] += 1
            continue
        fields.keep_aside("detail")
        call.aside(fields, "annotations", "logprobs")
        call.unknown += fields.unknown()
    return tuple(found)
