"""Logs of Anthropic's messages with its computer tool: JSON lines of {"request": …, "response": …}, or of requests whose messages hold the
answers. Pictures are base64 blocks; results of tools are blocks of the user's messages."""

from __future__ import annotations

from typing import Any

from agent.gateway.records import Called, Said, Shown
from pipelines.importing.conversations import LoggedCall, Turn, called, conversation_entries, display_of, fields_of, request_and_response
from pipelines.importing.trajectories import Importer
from sandbox.importing.fields import BadRecord, Fields, listed

OF_REQUEST = (
    *("model", "max_tokens", "tool_choice", "temperature", "top_p", "top_k", "stop_sequences", "stream", "metadata", "service_tier"),
    *("thinking", "betas", "container", "context_management", "mcp_servers", "extra_headers", "extra_body", "output_config"),
)
OF_RESPONSE = ("type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container", "context_management", "diagnostics")


def read_call(record: Any, call: LoggedCall) -> None:
    """Satisfies CallReader."""
    fields, response = request_and_response(record, call)
    system = [text for block in listed(fields.any("system")) if isinstance(text := _block(block, call), str)]
    call.turns = [Turn(said=Said(role="system", pieces=tuple(system)))] if system else []
    for message in fields.take("messages", list):
        call.turns += _turns(message, call)
    call.display = _display(listed(fields.any("tools")), call)
    call.aside(fields, *OF_REQUEST)
    call.unknown += fields.unknown()
    if response is not None:
        answer = fields_of(response, "response")
        call.ids += tuple(str(name) for name in (answer.any("id"),) if name)
        (call.answer,) = _turns({"role": answer.any("role"), "content": answer.any("content") or []}, call)
        call.aside(answer, *OF_RESPONSE)
        call.unknown += answer.unknown()


IMPORTER = Importer(name="anthropic-computer-use", entries=conversation_entries(read_call)(None), answers=conversation_entries(read_call))


def _display(tools: list[Any], call: LoggedCall) -> tuple[int, int] | None:
    """Of the computer tool; the other tools' descriptions are counted."""
    found = None
    for tool in tools:
        fields = fields_of(tool, "tools[]")
        if str(fields.any("type")).startswith("computer"):
            found = display_of(fields, "display_width_px", "display_height_px")
        else:
            call.lost["descriptions of tools"] += 1
    return found


def _turns(message: Any, call: LoggedCall) -> list[Turn]:
    """Results of tools are turns of their own, before what the user says besides."""
    fields = fields_of(message, "messages[]")
    role = fields.any("role")
    if role not in ("user", "assistant"):
        raise BadRecord(f"a message is from {role!r:.60}; known are user and assistant")
    found: list[Turn] = []
    thinking: list[str] = []
    pieces: list[str | Shown] = []
    calls: list[Called] = []
    for block in listed(fields.any("content")):
        kind = block.get("type") if isinstance(block, dict) else "text"
        if kind == "tool_result":
            found.append(_result(fields_of(block, "messages[].content[]"), call))
        elif kind == "thinking":
            thought = fields_of(block, "messages[].content[]")
            thinking.append(thought.take("thinking", str, ""))
            thought.keep_aside("type", "signature")
            call.unknown += thought.unknown()
        elif kind == "tool_use":
            tool = fields_of(block, "messages[].content[]")
            calls.append(called(tool.any("id"), tool.any("name"), tool.any("input")))
            tool.keep_aside("type", "cache_control", "caller", "toolset_name")
            call.unknown += tool.unknown()
        elif (piece := _block(block, call)) is not None:
            pieces.append(piece)
    call.unknown += fields.unknown()
    if role == "assistant" or pieces:
        found.append(Turn(said=Said(role=role, pieces=tuple(pieces), calls=tuple(calls)), thinking="\n".join(thinking)))
    return found


def _result(fields: Fields, call: LoggedCall) -> Turn:
    pieces = [piece for block in listed(fields.any("content")) if (piece := _block(block, call)) is not None]
    identity = fields.any("tool_use_id")
    fields.keep_aside("type", "cache_control")
    call.aside(fields, "is_error")
    call.unknown += fields.unknown()
    return Turn(said=Said(role="tool", pieces=tuple(pieces), call_id=str(identity or "")))


def _block(block: Any, call: LoggedCall) -> str | Shown | None:
    """A text or a picture; anything else is counted by its type."""
    if isinstance(block, str):
        return block
    fields = fields_of(block, "messages[].content[]")
    kind = fields.any("type")
    fields.keep_aside("cache_control")
    call.aside(fields, "citations")
    if kind == "text":
        text = fields.take("text", str)
        call.unknown += fields.unknown()
        return text
    if kind == "image":
        source = fields_of(fields.any("source"), "messages[].content[].source")
        if source.any("type") != "base64":
            raise BadRecord(
                f"a picture's source is of the type {source.any('type')!r:.60}: only base64, which the log itself holds, is read"
            )
        source.keep_aside("media_type")
        shown = call.shown_base64(source.any("data"))
        call.unknown += [*fields.unknown(), *source.unknown()]
        return shown
    call.lost[f"a block of the type {str(kind)[:40]}"] += 1
    return None
