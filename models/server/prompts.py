"""From a request's messages or text to the tokens that are asked with. Pictures come as data URLs; nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Mapping, Sequence

from agent.policy import Message
from models.chat import EncodedChat
from models.server.problems import wrong
from models.server.wire import ChatMessage, ImagePart
from warehouse.errors import ModelError
from warehouse.identity import bytes_id

Encode = Callable[[Sequence[Message], Mapping[str, bytes]], EncodedChat]


def encode_messages(encode: Encode, asked: Sequence[ChatMessage], max_image_pixels: int) -> EncodedChat:
    """The tokens of a conversation, opened for the assistant's answer. Raises ApiError for a picture that cannot be read, also where the
    model reads none, and for a conversation that ends with the assistant."""
    if asked[-1].role == "assistant":
        raise wrong("the last message is the assistant's: end with a user's, or continue a text with /v1/completions", param="messages")
    images: dict[str, bytes] = {}
    messages = [_message(message, images, max_image_pixels) for message in asked]
    try:
        encoded = encode(messages, images)
    except ModelError as error:
        raise wrong(str(error), param="messages") from error
    if images and not encoded.vision:
        raise wrong("a message has a picture, and the served model reads text only", param="messages")
    return encoded


def _message(asked: ChatMessage, images: dict[str, bytes], max_image_pixels: int) -> Message:
    if isinstance(asked.content, str):
        return Message(role=asked.role, content=asked.content)
    pictures = [part for part in asked.content if isinstance(part, ImagePart)]
    if len(pictures) > 1:
        raise wrong(f"a message has {len(pictures)} pictures, and one is read: send the others in messages of their own", param="messages")
    text = "\n".join(part.text for part in asked.content if not isinstance(part, ImagePart))
    if not pictures:
        return Message(role=asked.role, content=text)
    image = _picture(pictures[0].image_url.url, max_image_pixels)
    screenshot_id = bytes_id("screenshot", image)
    images[screenshot_id] = image
    return Message(role=asked.role, content=text, screenshot_id=screenshot_id)


def _picture(url: str, max_pixels: int) -> bytes:
    from PIL import Image

    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise wrong(f"a picture is given as data:image/…;base64,…, not as {url[:40]!r}; the server fetches nothing", param="messages")
    try:
        image = base64.b64decode(data, validate=True)
        with Image.open(io.BytesIO(image)) as opened:  # reads the header only
            num_pixels = opened.width * opened.height
    except (binascii.Error, OSError, ValueError, Image.DecompressionBombError) as error:
        raise wrong(f"a picture cannot be read: {type(error).__name__}", param="messages") from error
    if num_pixels > max_pixels:
        raise wrong(f"a picture has {num_pixels} pixels; at most {max_pixels} are read", param="messages")
    return image
