"""Anthropic's messages: a request in OpenAI's chat form, and answers and streams in Anthropic's. Fields are those of its reference
of November 2026; what is not carried out is refused, as in models/server/wire.py."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.gateway.records import Called, arguments_of
from models.gateway.gathering import Gathering
from models.gateway.reading import chat_request
from models.server.problems import wrong
from models.server.wire import ChatRequest


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    cache_control: Annotated[dict[str, Any] | None, Field(description="accepted and not used")] = None


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: None = None


class Source(_Block):
    type: Literal["base64"]
    media_type: Annotated[str, Field(pattern=r"^image/[a-z+]+$")]
    data: str


class ImageBlock(_Block):
    type: Literal["image"]
    source: Source


class ToolUse(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Shown = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Shown] = ""
    is_error: Annotated[bool | None, Field(description="accepted; the content says what went wrong")] = None


class Turn(_Block):
    role: Literal["user", "assistant"]
    content: str | list[Annotated[TextBlock | ImageBlock | ToolUse | ToolResult, Field(discriminator="type")]]


class Tool(_Block):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(_Block):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(_Block):
    """JSON of a schema, which the answer is held to."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(_Block):
    format: OutputFormat | None = None


class MessagesRequest(_Block):
    """A request of POST /v1/messages."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)]
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[Literal[-1, 0] | None, Field(description="-1 or 0, all tokens: not carried out")] = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    output_format: Annotated[OutputFormat | None, Field(description="of the beta; output_config.format is the newer name")] = None
    output_config: OutputConfig | None = None
    metadata: Annotated[dict[str, Any] | None, Field(description="accepted and not used")] = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, Field(description="accepted and not used")] = None
    thinking: Annotated[dict[Literal["type"], Literal["disabled"]] | None, Field(description="disabled: not carried out")] = None


def chat_of(asked: MessagesRequest) -> ChatRequest:
    """Raises ApiError."""
    messages: list[dict[str, Any]] = []
    if asked.system is not None:
        text = asked.system if isinstance(asked.system, str) else "\n".join(block.text for block in asked.system)
        messages.append({"role": "system", "content": text})
    for turn in asked.messages:
        messages += _messages(turn)
    choice = asked.tool_choice
    fields = {
        "messages": messages,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stop": asked.stop_sequences,
        "stream": asked.stream,
        "tools": [_tool(tool) for tool in asked.tools] or None,
        "tool_choice": None if choice is None else _choice(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "stream_options": {"include_usage": True} if asked.stream else None,
        "response_format": _format(asked),
    }
    return chat_request(fields)


def _format(asked: MessagesRequest) -> dict[str, Any] | None:
    newer = asked.output_config.format if asked.output_config is not None else None
    if newer is not None and asked.output_format is not None:
        raise wrong("output_format and output_config.format are both given: leave out one", param="output_format")
    found = newer or asked.output_format
    return None if found is None else {"type": "json_schema", "json_schema": {"name": "answer", "schema": found.schema_}}


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own, before what the user says besides."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    for block in turn.content:
        if isinstance(block, ToolResult):
            content = block.content if isinstance(block.content, str) else [_part(part) for part in block.content]
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    parts = [_part(block) for block in turn.content if isinstance(block, (TextBlock, ImageBlock))]
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUse)]
    if parts or calls:
        yield {"role": turn.role, "content": parts or None} | ({"tool_calls": calls} if calls else {})


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image_url", "image_url": {"url": f"data:{block.source.media_type};base64,{block.source.data}"}}


def _call(block: ToolUse) -> dict[str, Any]:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}}


def _tool(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}}


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesWriter:
    """Answers of one request."""

    def __init__(self, asked: ChatRequest) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = asked.model or "policy"
        self._index, self._open = -1, ""

    def whole(self, data: Mapping[str, Any]) -> dict[str, Any]:
        gathered = Gathering.of(data)
        choice = gathered.first
        blocks: list[dict[str, Any]] = [{"type": "text", "text": choice.text}] if choice.text or not choice.calls else []
        for _, call in sorted(choice.calls.items()):
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": _input(Called(**call))})
        return self._message(blocks, STOPS.get(choice.finish or ""), _usage(gathered))

    def _message(self, content: list[dict[str, Any]], stop: str | None, usage: Mapping[str, int]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def opening(self) -> Iterator[str]:
        yield _event("message_start", message=self._message([], None, {"input_tokens": 0, "output_tokens": 0}))

    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content"):
                yield from self._begin("text", {"type": "text", "text": ""})
                yield _event("content_block_delta", index=self._index, delta={"type": "text_delta", "text": text})
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                if call.get("id"):
                    yield from self._begin(call["id"], {"type": "tool_use", "id": call["id"], "name": function.get("name"), "input": {}})
                if arguments := function.get("arguments"):
                    yield _event("content_block_delta", index=self._index, delta={"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, name: str, block: Mapping[str, Any]) -> Iterator[str]:
        if self._open == name:
            return
        yield from self._stop()
        self._open, self._index = name, self._index + 1
        yield _event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> Iterator[str]:
        if self._open:
            yield _event("content_block_stop", index=self._index)
        self._open = ""

    def closing(self, gathered: Gathering) -> Iterator[str]:
        if self._index < 0:
            yield from self._begin("text", {"type": "text", "text": ""})
        yield from self._stop()
        delta = {"stop_reason": STOPS.get(gathered.first.finish or ""), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(gathered))
        yield _event("message_stop")

    def problem(self, body: str) -> Iterator[str]:
        yield _event("error", **json.loads(body))


def _input(call: Called) -> dict[str, Any]:
    found = arguments_of(call)
    return found if isinstance(found, dict) else {"text": call.arguments}


def _usage(gathered: Gathering) -> dict[str, int]:
    usage, first = gathered.usage, gathered.first
    return {
        "input_tokens": int(usage.get("prompt_tokens") or len(gathered.prompt_token_ids)),
        "output_tokens": int(usage.get("completion_tokens") or len(first.token_ids)),
    }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"
