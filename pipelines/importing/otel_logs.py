"""Traces of agents as OTLP in JSON (what a collector's file exporter and an OTLP/HTTP exporter of JSON write), with spans of model calls by
OpenTelemetry's semantic conventions for generative AI: `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions` as
attributes. Spans that are not a call of a model are counted by what they are.

Source: opentelemetry.io/docs/specs/semconv/gen-ai (messages as attributes, from 1.37 on), and the JSON encoding of OTLP 1.x.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.gateway.records import Called, Said, Shown
from pipelines.importing.conversations import LoggedCall, Part, Turn, called, conversation_entries, fields_of
from pipelines.importing.trajectories import Importer
from sandbox.importing.fields import BadRecord, listed
from sandbox.importing.reading import NotPlain, parse_json

CALLS = ("chat", "generate_content", "text_completion")
"""`gen_ai.operation.name` of a call of a model."""
MAX_SPANS = 100_000
"""In one record."""
INPUT, OUTPUT, SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
OF_SPAN = (
    *("parentSpanId", "parent_span_id", "traceState", "trace_state", "flags", "kind", "endTimeUnixNano", "end_time_unix_nano", "links"),
    *("droppedAttributesCount", "dropped_attributes_count", "droppedEventsCount", "dropped_events_count"),
    *("droppedLinksCount", "dropped_links_count"),
)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant", "tool": "tool"}


def spans_of(record: Any) -> Iterator[Part]:
    """Satisfies CallsOf: the spans of model calls in one export, in the order of their beginning. Raises BadRecord."""
    spans, others = _spans(record)
    calls = [(place, span) for place, span in spans if span["attributes"].get("gen_ai.operation.name") in CALLS]
    others.update(f"a span {_kind(span)}" for _, span in spans if span["attributes"].get("gen_ai.operation.name") not in CALLS)
    if not calls:
        raise BadRecord(f"it holds no call of a model (gen_ai.operation.name {', '.join(CALLS)}), but {_counted(others)}")
    for index, (place, span) in enumerate(sorted(calls, key=lambda one: one[1]["start"])):
        yield Part(place=place, value=span | {"beside": dict(others) if index == 0 else {}}, text=json.dumps(span, ensure_ascii=False))


def _counted(others: Mapping[str, int]) -> str:
    return ", ".join(f"{num} times {name}" for name, num in others.items()) or "no span at all"


def _kind(span: Mapping[str, Any]) -> str:
    operation = span["attributes"].get("gen_ai.operation.name")
    return f"of the operation {str(operation)[:40]}" if operation else "of no operation of generative AI"


def _spans(record: Any) -> tuple[list[tuple[str, dict[str, Any]]], Counter[str]]:
    found: list[tuple[str, dict[str, Any]]] = []
    others: Counter[str] = Counter()
    record = fields_of(record)
    for resource in listed(record.any("resourceSpans", "resource_spans")):
        held = fields_of(resource, "resourceSpans[]")
        held.keep_aside("resource", "schemaUrl")
        for scope in listed(held.any("scopeSpans", "scope_spans")):
            inner = fields_of(scope, "scopeSpans[]")
            for span in listed(inner.any("spans")):
                found.append((f"/{len(found) + 1}", _span(span)))
                if len(found) > MAX_SPANS:
                    raise BadRecord(f"it holds more than {MAX_SPANS} spans: export them in smaller batches")
    others.update(f"`{name}`" for name in record.unknown())
    return found, others


def _span(span: Any) -> dict[str, Any]:
    fields = fields_of(span, "spans[]")
    events = [str(fields_of(event, "events[]").any("name")) for event in listed(fields.any("events"))]
    start = fields.any("startTimeUnixNano", "start_time_unix_nano")
    status = fields_of(fields.any("status") or {}, "spans[].status")
    is_error = status.any("code") in (2, "STATUS_CODE_ERROR")
    status.keep_aside("message")
    fields.keep_aside(*OF_SPAN)
    return {
        "id": str(fields.any("spanId", "span_id") or ""),
        "trace": str(fields.any("traceId", "trace_id") or ""),
        "name": str(fields.any("name") or ""),
        "start": int(start) if isinstance(start, int) or (isinstance(start, str) and start.isdecimal() and len(start) < 20) else 0,
        "attributes": _attributes(fields.any("attributes")),
        "events": events,
        "is_error": is_error,
        "unknown": [*fields.unknown(), *status.unknown()],
    }


def _attributes(listed_: Any) -> dict[str, Any]:
    found = {}
    for one in listed(listed_):
        fields = fields_of(one, "attributes[]")
        found[str(fields.any("key"))] = _value(fields.any("value"))
    return found


def _value(value: Any) -> Any:
    """An AnyValue of OTLP. Raises BadRecord."""
    if not isinstance(value, Mapping):
        return None
    for kind, given in value.items():
        match kind:
            case "stringValue" | "boolValue" | "doubleValue" | "bytesValue":
                return given
            case "intValue":
                return _whole(given)
            case "arrayValue":
                return [_value(one) for one in listed(fields_of(given, "arrayValue").any("values"))]
            case "kvlistValue":
                return _attributes(fields_of(given, "kvlistValue").any("values"))
    return None


def _whole(given: Any) -> Any:
    """64 bits are a text in JSON. Raises BadRecord."""
    if not isinstance(given, str):
        return given
    if not re.fullmatch(r"-?[0-9]{1,19}", given):
        raise BadRecord(f"an intValue is {given!r:.60}, expected a whole number of 64 bits")
    return int(given)


def read_call(span: Any, call: LoggedCall) -> None:
    """Satisfies CallReader."""
    attributes = fields_of(span["attributes"])
    call.lost.update(span["beside"])
    call.lost.update(f"the event {name[:60]}" for name in span["events"])
    call.lost["`spans[].status` of a call that failed"] += span["is_error"]
    call.unknown += span["unknown"]
    response = attributes.any("gen_ai.response.id")
    call.ids = (str(response),) if response else ()
    system = [piece for part in _messages(attributes.any(SYSTEM), SYSTEM) if isinstance(piece := _piece(part, call), str)]
    call.turns = [Turn(said=Said(role="system", pieces=tuple(system)))] if system else []
    given = attributes.any(INPUT)
    if given is None:
        raise BadRecord(f"the span {span['name'][:60]!r} has no {INPUT}: let the instrumentation capture messages, as attributes of spans")
    for message in _messages(given, INPUT):
        call.turns += _turns(message, call)
    answers = _messages(attributes.any(OUTPUT), OUTPUT)
    if answers:
        (call.answer,) = _turns(answers[0], call)[-1:] or [Turn(said=Said(role="assistant"))]
        if len(answers) > 1:
            call.lost["answers beside the first"] += len(answers) - 1
    call.aside(attributes, *attributes.unknown())


_ENTRIES = conversation_entries(read_call, spans_of)
IMPORTER = Importer(name="otel-genai", entries=_ENTRIES(None), answers=_ENTRIES)


def _messages(value: Any, name: str) -> Sequence[Any]:
    """An attribute that holds messages: JSON in a text, or structured. Raises BadRecord."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except NotPlain as error:
            raise BadRecord(f"{name} {error}") from None
    return listed(value)


def _turns(message: Any, call: LoggedCall) -> list[Turn]:
    """Results of tools are turns of their own, before what is said besides."""
    fields = fields_of(message, "message")
    role = ROLES.get(str(fields.any("role")))
    if role is None:
        raise BadRecord(f"a message is from {fields.any('role')!r:.60}; known are {', '.join(ROLES)}")
    found: list[Turn] = []
    thinking: list[str] = []
    pieces: list[str | Shown] = []
    calls: list[Called] = []
    for part in listed(fields.any("parts")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        inner = fields_of(part, "parts[]")
        if kind == "tool_call":
            calls.append(called(inner.any("id"), inner.any("name"), inner.any("arguments")))
        elif kind == "tool_call_response":
            results = tuple(_result(inner.any("response", "result"), call))
            found.append(Turn(said=Said(role="tool", pieces=results, call_id=str(inner.any("id") or ""))))
        elif kind == "reasoning":
            thinking.append(str(inner.any("content") or ""))
        elif (piece := _piece(part, call)) is not None:
            pieces.append(piece)
    call.aside(fields, "finish_reason", "name")
    call.unknown += fields.unknown()
    if role == "assistant" or pieces:
        found.append(Turn(said=Said(role=role, pieces=tuple(pieces), calls=tuple(calls)), thinking="\n".join(thinking)))
    return found


def _result(value: Any, call: LoggedCall) -> Iterator[str | Shown]:
    """What a tool gave: a text, parts as messages have them, or any JSON, as text."""
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping) and "type" in part:
            if (piece := _piece(part, call)) is not None:
                yield piece
        elif part is not None:
            yield json.dumps(part, ensure_ascii=False)


def _piece(part: Any, call: LoggedCall) -> str | Shown | None:
    """A text or a picture; anything else is counted by its type."""
    if isinstance(part, str):
        return part
    fields = fields_of(part, "parts[]")
    kind = str(fields.any("type"))
    if kind == "text":
        text = fields.take("content", str)
        call.unknown += fields.unknown()
        return text
    mime, modality = str(fields.any("mime_type") or ""), fields.any("modality")
    if kind == "blob" and (mime.startswith("image/") or modality == "image"):
        shown = call.shown_base64(fields.any("content", "data"))
    elif kind == "uri" and str(fields.any("uri")).startswith("data:image/"):
        shown = call.shown(fields.any("uri"))
    else:
        call.lost[f"a part of the type {kind[:40]}"] += 1
        return None
    call.unknown += fields.unknown()
    return shown
