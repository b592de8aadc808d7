"""Requests as the gateway reads them: messages of OpenAI's chat in the form of its records, pictures as the bytes that were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agent.gateway.records import Called, Said, Shown, arguments_of
from models.server.problems import wrong
from models.server.prompts import Pictures
from models.server.wire import ChatMessage, ChatRequest, ImagePart, TextPart
from warehouse.core.identity import canonical_json


@dataclass(frozen=True, slots=True)
class Read:
    """A conversation, its pictures by id, and the digest of who asks: system prompt and tools."""

    messages: tuple[Said, ...]
    pictures: Mapping[str, bytes]
    agent: str


def read(asked: ChatRequest, max_image_pixels: int) -> Read:
    """Raises ApiError for a picture that cannot be read, too large ones, and values that no JSON can carry on."""
    pictures = Pictures(max_image_pixels)
    messages = tuple(_said(message, pictures) for message in asked.messages)
    _refuse_unwritable("messages", [message.model_dump() for message in messages])
    for name, value in asked.model_dump(exclude={"messages"}, exclude_unset=True).items():
        _refuse_unwritable(name, value)
    system = [said.text for said in messages if said.role == "system"]
    tools = [tool.model_dump(mode="json") for tool in asked.tools]
    return Read(messages, pictures.by_id, hashlib.sha256(canonical_json([system, tools])).hexdigest()[:16])


def _refuse_unwritable(name: str, value: Any) -> None:
    """Python's JSON reads NaN, 1e999 and halves of surrogate pairs, which neither the log nor the upstream takes."""
    try:
        canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise wrong(f"{name}: numbers must be finite and texts Unicode ({error})", param=name) from error


def _said(message: ChatMessage, pictures: Pictures) -> Said:
    parts = [message.content] if isinstance(message.content, str) else message.content or []
    pieces = [_piece(part, pictures) for part in parts]
    calls = tuple(Called(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in message.tool_calls or ())
    role = "system" if message.role == "developer" else message.role
    return Said(role=role, pieces=tuple(pieces), calls=calls, call_id=message.tool_call_id, name=message.name)


def _piece(part: str | TextPart | ImagePart, pictures: Pictures) -> str | Shown:
    if isinstance(part, ImagePart):
        return Shown(screenshot_id=pictures.add(part.image_url.url))
    return part if isinstance(part, str) else part.text


def chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The request in OpenAI's chat form, of one that came in another. Raises ApiError in the words of the chat form."""
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise wrong(f"{where}: {first['msg']}", param=where) from error


def texts_of(messages: Sequence[Said]) -> str:
    """What was said: texts, calls, names, and each text of a call's arguments as it reads without JSON's escapes."""
    texts = ((message.text, message.name or "", *texts_in([arguments_of(call) for call in message.calls])) for message in messages)
    return "\n".join(text for of_message in texts for text in of_message)


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, keys included. Numbers are left out: bounds and seeds look like card numbers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_in([*value, *value.values()])
    elif isinstance(value, Sequence):
        for one in value:
            yield from texts_in(one)
