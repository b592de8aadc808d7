"""Requests as the gateway reads them: messages of OpenAI's chat in the form of its records, pictures as the bytes that were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agent.gateway.records import Called, Said, Shown
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
    """Raises ApiError for a picture that cannot be read, or too large ones."""
    pictures = Pictures(max_image_pixels)
    messages = tuple(_said(message, pictures) for message in asked.messages)
    system = [said.text for said in messages if said.role == "system"]
    tools = [tool.model_dump(mode="json") for tool in asked.tools]
    return Read(messages, pictures.by_id, hashlib.sha256(canonical_json([system, tools])).hexdigest()[:16])


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
    return "\n".join(message.text for message in messages)
