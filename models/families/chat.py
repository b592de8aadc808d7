"""From chat messages to what a model reads, and from what it wrote back to text: the ChatCodec protocol.

One codec serves acting and learning, so what is trained is exactly what is asked. Each codec lies beside its kind of model: the
quickstart's tokenizer (models/families/tokenizer.py), chat templates of any Hugging Face text model, processors of vision-language models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agent.policy.policy import Message

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture inside a message."""

    screenshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage(Message):
    """A message as clients of a server write it. `pieces` are its texts and pictures in their order, which may be any; a message that only
    calls tools has none. `content` is the texts alone. `fields` are further keys that chat templates read: `tool_calls`, `tool_call_id`,
    `name`."""

    pieces: tuple[str | Shown, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


def pieces_of(message: Message) -> tuple[str | Shown, ...]:
    """Texts and pictures of a message in their order. A screenshot of the agent's stands before the text."""
    if isinstance(message, ChatMessage):
        return message.pieces
    shown = () if message.screenshot_id is None else (Shown(message.screenshot_id),)
    return (*shown, message.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChat:
    """A conversation as tokens: the weight of each token in the loss (0: context only), and what a vision-language model is handed beside
    the tokens (`pixel_values`, `image_grid_thw`, …; empty for text)."""

    token_ids: Sequence[int]
    loss_weights: Sequence[float]
    vision: Mapping[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class ChatCodec(Protocol):
    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ...

    @property
    def pad_token_id(self) -> int: ...

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
    ) -> EncodedChat:
        """A conversation that ends with the user is opened for the assistant's answer. `images` maps the screenshot ids that messages
        name to image bytes. Raises ModelError for a message whose image is missing or unreadable."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, special tokens dropped."""
        ...

    def save_pretrained(self, save_directory: Path) -> object:
        """Write the files that this codec is opened from again (tokenizer, processor) beside a model's."""
        ...
