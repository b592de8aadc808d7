"""OpenAI's responses: a request in the form of chat completions, and answers and streams in its own. The whole conversation comes with each
request: nothing is looked up by the id of an earlier answer. What is not carried out is refused, as in models/server/wire.py."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.gateway.gathering import Gathering
from models.gateway.reading import chat_request
from models.server.problems import wrong
from models.server.wire import ChatRequest


class _Item(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Item):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], Field(description="accepted and not used")] = []
    logprobs: Annotated[list[Any] | None, Field(description="accepted and not used")] = None


class ImagePart(_Item):
    type: Literal["input_image"]
    image_url: str
    detail: Annotated[str | None, Field(description="accepted and not used")] = None


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class OutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]
    id: str | None = None
    status: str | None = None


class Tool(_Item):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Format(_Item):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(_Item):
    format: Format = Format()
    verbosity: Annotated[str | None, Field(description="accepted and not used")] = None


class NamedTool(_Item):
    type: Literal["function"]
    name: str


class ResponsesRequest(_Item):
    """A request of POST /v1/responses."""

    model: str | None = None
    input: str | list[CallItem | OutputItem | MessageItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextFormat = TextFormat()
    stream: bool | None = False
    store: Annotated[bool | None, Field(description="accepted; answers are recorded, and not looked up by id")] = None
    previous_response_id: Annotated[None, Field(description="send the whole conversation as input")] = None
    include: Annotated[list[str] | None, Field(description="accepted and not used")] = None
    metadata: Annotated[dict[str, str] | None, Field(description="accepted and not used")] = None
    reasoning: Annotated[dict[str, Any] | None, Field(description="accepted and not used")] = None
    truncation: Literal["disabled"] | None = None
    user: Annotated[str | None, Field(description="accepted and not used")] = None
    prompt_cache_key: Annotated[str | None, Field(description="accepted and not used")] = None
    safety_identifier: Annotated[str | None, Field(description="accepted and not used")] = None
    service_tier: Literal["auto", "default"] | None = None


def chat_of(asked: ResponsesRequest) -> ChatRequest:
    """Raises ApiError."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    items = [MessageItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    for item in items:
        _add(messages, item)
    choice = asked.tool_choice
    return chat_request(
        {
            "messages": messages,
            "max_tokens": asked.max_output_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "stream": asked.stream,
            "stream_options": {"include_usage": True} if asked.stream else None,
            "tools": [_tool(tool) for tool in asked.tools] or None,
            "tool_choice": {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "response_format": _format(asked.text.format),
        }
    )


def _add(messages: list[dict[str, Any]], item: CallItem | OutputItem | MessageItem) -> None:
    """Calls stand beside the assistant's message before them, as chat completions have them in one."""
    if isinstance(item, CallItem):
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif isinstance(item, OutputItem):
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
    else:
        messages.append({"role": item.role, "content": _content(item.content)})


def _content(content: str | list[Any]) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.image_url}}


def _tool(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}}


def _format(format: Format) -> dict[str, Any] | None:
    if format.type != "json_schema":
        return None if format.type == "text" else {"type": format.type}
    if format.schema_ is None:
        raise wrong("text.format has type json_schema and no schema", param="text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": format.name or "", "schema": format.schema_}}


class ResponsesWriter:
    """Answers of one request. A message and each call are items of the output, in their order."""

    def __init__(self, asked: ChatRequest) -> None:
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        self._model, self._asked = asked.model or "policy", asked
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._is_open = False

    def whole(self, data: Mapping[str, Any]) -> dict[str, Any]:
        gathered = Gathering.of(data)
        choice = gathered.first
        items = [_message(choice.text)] if choice.text or not choice.calls else []
        items += [_function_call(call["id"], call["name"], call["arguments"]) for _, call in sorted(choice.calls.items())]
        return self._response(items, gathered)

    def _response(self, items: list[dict[str, Any]], gathered: Gathering | None) -> dict[str, Any]:
        is_cut = gathered is not None and gathered.first.finish == "length"
        asked = self._asked
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": "in_progress" if gathered is None else "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "metadata": {},
            "output": items,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "tool_choice": asked.choice if isinstance(asked.choice, str) else {"type": "function", "name": asked.choice.function.name},
            "tools": [{"type": "function", **tool.function.model_dump(mode="json")} for tool in asked.tools],
            "usage": None if gathered is None else _usage(gathered),
        }

    def opening(self) -> Iterator[str]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response([], None))

    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content"):
                yield from self._begin_message()
                self._items[-1]["content"][0]["text"] += text
                yield self._at("response.output_text.delta", content_index=0, delta=text, logprobs=[])
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                if call.get("id"):
                    yield from self._begin(_function_call(call["id"], function.get("name") or "", ""))
                if arguments := function.get("arguments"):
                    self._items[-1]["arguments"] += arguments
                    yield self._at("response.function_call_arguments.delta", delta=arguments)

    def _begin_message(self) -> Iterator[str]:
        if self._is_open and self._items[-1]["type"] == "message":
            return
        yield from self._begin(_message(""))
        yield self._at("response.content_part.added", content_index=0, part=_text(""))

    def _begin(self, item: dict[str, Any]) -> Iterator[str]:
        yield from self._stop()
        self._items.append(item)
        self._is_open = True
        shown = item | {"status": "in_progress"} | ({"content": []} if item["type"] == "message" else {})
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)

    def _stop(self) -> Iterator[str]:
        if not self._is_open:
            return
        self._is_open, item = False, self._items[-1]
        if item["type"] == "message":
            text = item["content"][0]["text"]
            yield self._at("response.output_text.done", content_index=0, text=text, logprobs=[])
            yield self._at("response.content_part.done", content_index=0, part=_text(text))
        else:
            yield self._at("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def closing(self, gathered: Gathering) -> Iterator[str]:
        if not self._items:
            yield from self._begin_message()
        yield from self._stop()
        response = self._response(self._items, gathered)
        yield self._event(f"response.{response['status']}", response=response)

    def problem(self, body: str) -> Iterator[str]:
        error = json.loads(body)["error"]
        yield self._event("error", code=error.get("code"), message=error["message"], param=error.get("param"))

    def _at(self, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        number, self._number = self._number, self._number + 1
        return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **fields}, ensure_ascii=False)}\n\n"


def _message(text: str) -> dict[str, Any]:
    name = f"msg_{secrets.token_hex(8)}"
    return {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": [_text(text)]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    item_id = f"fc_{secrets.token_hex(8)}"
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def _usage(gathered: Gathering) -> dict[str, Any]:
    num_prompt = int(gathered.usage.get("prompt_tokens") or len(gathered.prompt_token_ids))
    num_written = int(gathered.usage.get("completion_tokens") or len(gathered.first.token_ids))
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": num_written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_written,
    }
