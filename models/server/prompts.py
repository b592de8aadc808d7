"""From a request's messages or text to the tokens that are asked with. Pictures come as data URLs; nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agent.policy.policy import Message
from models.families.chat import ChatMessage as Chatted
from models.families.chat import EncodedChat, Shown
from models.families.templates import Tools
from models.server.problems import wrong
from models.server.tools import template_call
from models.server.wire import ChatMessage, ImagePart
from warehouse.core.errors import ModelError, RequestRefused, UnreadablePicture
from warehouse.core.identity import bytes_id
from warehouse.storage.screenshots.pictures import header


class Encode(Protocol):
    def __call__(self, messages: Sequence[Message], images: Mapping[str, bytes], tools: Tools) -> EncodedChat: ...


def encode_messages(encode: Encode, asked: Sequence[ChatMessage], max_image_pixels: int, tools: Tools = ()) -> EncodedChat:
    """The tokens of a conversation, opened for the assistant's answer. Raises ApiError for a picture that cannot be read, also where the
    model reads none, and for a conversation that ends with the assistant."""
    messages, pictures = read_messages(asked, max_image_pixels)
    try:
        encoded = encode(messages, pictures, tools)
    except RequestRefused as error:
        raise wrong(str(error), param=error.param or "messages") from error
    except ModelError as error:
        raise wrong(str(error), param="messages") from error
    if pictures and not encoded.vision:
        raise wrong("a message has a picture, but the served model reads text only", param="messages")
    return encoded


def read_messages(asked: Sequence[ChatMessage], max_image_pixels: int) -> tuple[list[Message], Mapping[str, bytes]]:
    """The conversation and its pictures by id. Raises ApiError as `encode_messages`."""
    if asked[-1].role == "assistant":
        raise wrong("the last message is the assistant's: end with a user's, or continue a text with /v1/completions", param="messages")
    pictures = Pictures(max_image_pixels)
    try:
        return [_message(message, pictures) for message in asked], pictures.by_id
    except RequestRefused as error:
        raise wrong(str(error), param=error.param or "messages") from error


def _message(asked: ChatMessage, pictures: Pictures) -> Message:
    """Texts and pictures stay in their order; texts beside each other are lines."""
    pieces: list[str | Shown] = []
    for part in [asked.content] if isinstance(asked.content, str) else asked.content or []:
        if isinstance(part, ImagePart):
            pieces.append(Shown(pictures.add(part.image_url.url)))
            continue
        text = part if isinstance(part, str) else part.text
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += f"\n{text}"
        else:
            pieces.append(text)
    content = "\n".join(piece for piece in pieces if isinstance(piece, str))
    fields: dict[str, Any] = {}
    if asked.tool_calls:
        fields["tool_calls"] = [template_call(call.id, call.function.name, call.function.arguments) for call in asked.tool_calls]
    if asked.role == "tool":
        fields |= {name: value for name, value in (("tool_call_id", asked.tool_call_id), ("name", asked.name)) if value is not None}
    if not content and asked.tool_calls:
        pieces = []
    return Chatted(role="system" if asked.role == "developer" else asked.role, content=content, pieces=tuple(pieces), fields=fields)


class Pictures:
    """The pictures of one request, by id. Raises ApiError for one that cannot be read, and where all together are too large."""

    def __init__(self, max_pixels: int) -> None:
        self.by_id: dict[str, bytes] = {}
        self._max_pixels, self._num_pixels = max_pixels, 0

    def add(self, url: str) -> str:
        image, num_pixels = _picture(url)
        self._num_pixels += num_pixels
        if self._num_pixels > self._max_pixels:
            raise wrong(f"the pictures have {self._num_pixels} pixels; at most {self._max_pixels} are allowed", param="messages")
        screenshot_id = bytes_id("screenshot", image)
        self.by_id[screenshot_id] = image
        return screenshot_id


def _picture(url: str) -> tuple[bytes, int]:
    """The bytes of a picture and its number of pixels, read from its header."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise wrong(f"a picture must be given as data:image/…;base64,…, not as {url[:40]!r}; the server fetches nothing", param="messages")
    try:
        image = base64.b64decode(data, validate=True)
        found = header(image)
    except binascii.Error as error:
        raise wrong("a picture is not base64", param="messages") from error
    except UnreadablePicture as error:
        raise wrong(str(error), param="messages") from error
    return image, found.width_px * found.height_px
