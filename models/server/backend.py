"""The embedded engine as the server uses it: requests of tokens in, tokens out one by one. All that the server knows of
models/engine/embedded.py."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agent.policy.policy import Message
from models.checkpoints.checkpoint import load_tokenizer, read_card
from models.checkpoints.model_files import FAST_TOKENIZER_FILE
from models.engine.embedded import EmbeddedEngine
from models.engine.grammar import Grammar, Grammars
from models.engine.rows import Request, Top
from models.engine.settings import EngineSettings
from models.families.chat import ChatCodec, ChatMessage, EncodedChat
from models.families.registry import load_codec, load_policy
from models.families.templates import TemplateCodec, Tools
from models.server.tools import ToolForm, form_of
from warehouse.core.errors import ModelError, RequestRefused

KEPT_GRAMMARS = 64


@dataclass(frozen=True, slots=True)
class Written:
    """One token of an answer, and whose weights wrote it: their id, and the number of updates that they had seen."""

    token_id: int
    logprob: float
    version: int
    policy_id: str
    top: Top = ()


class TokenStream:
    """Tokens of one answer, as an iterator. Made in an event loop; fed from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Written | BaseException | None] = asyncio.Queue()
        self._is_over = False

    def feed(self, item: Written | BaseException | None) -> None:
        """The next token, what went wrong, or None at the end. What comes after the end of its event loop is nobody's any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Written:
        item = None if self._is_over else await self._arrived.get()
        if isinstance(item, Written):
            return item
        self._is_over = True
        if item is not None:
            raise item
        raise StopAsyncIteration


class ServedEngine:
    """An engine on a checkpoint's folder, and what a server must know of it besides. Encoding has a codec of its own behind a lock, for a
    tokenizer that is set up while another thread uses it raises; `codec` is for decoding in one thread."""

    def __init__(self, engine: EmbeddedEngine, folder: Path, dtype: str = "float32") -> None:
        self._engine, self._dtype = engine, dtype
        self.codec: ChatCodec = load_codec(folder)
        self._encoder, self._tokenizer, self._encoding = load_codec(folder), cast("Any", load_tokenizer(folder)), threading.Lock()
        self._form: ToolForm | None = None
        self._grammars: Grammars | None = None
        self._compiled, self._compiling = OrderedDict[str, Grammar](), threading.Lock()
        self._tokenizer_hash = read_card(folder).files.get(FAST_TOKENIZER_FILE)

    @classmethod
    def open(
        cls, folder: Path, *, dtype: str = "float32", device: str | None = None, settings: EngineSettings | None = None, version: int = 0
    ) -> ServedEngine:
        """Raises CheckpointError for a folder that is not whole, ModelError for a model that the engine cannot run."""
        engine = EmbeddedEngine.from_checkpoint(folder, dtype=dtype, device=device, settings=settings, version=version)
        return cls(engine, folder, dtype)

    @property
    def policy_id(self) -> str:
        return self._engine.policy_id

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def vocabulary_size(self) -> int:
        return self._engine.vocabulary_size

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    def encode(self, messages: Sequence[Message], images: Mapping[str, bytes], tools: Tools = ()) -> EncodedChat:
        """What the codec makes of a conversation. From any thread. Raises ModelError for an image that cannot be read, RequestRefused for
        tools where the template has none, and for control tokens in what it would write without looking."""
        with self._encoding:
            fields = [message.fields for message in messages if isinstance(message, ChatMessage) and message.fields]
            if not tools and not fields:
                return self._encoder.encode(messages, images)
            codec = self._template("tools")
            written = json.dumps([list(tools), fields], ensure_ascii=False)
            if (control := codec.control_token_in(written)) is not None:
                raise RequestRefused(f"{control!r} is a control token of the model: tools and calls must not contain it", "tools")
            if tools:
                self._form_of(codec)
            return codec.encode(messages, images, tools=tools)

    def tool_form(self) -> ToolForm:
        """How answers call tools. From any thread. Raises RequestRefused where the template cannot."""
        with self._encoding:
            return self._form_of(self._template("tools"))

    def decode_whole(self, token_ids: Sequence[int]) -> str:
        """The text of an answer with its special tokens, all but those that end it. In one thread, as `codec`."""
        return self.codec.decode(token_ids, is_whole=True) if isinstance(self.codec, TemplateCodec) else self.codec.decode(token_ids)

    def grammar(self, text: str, param: str) -> Grammar:
        """A compiled grammar, in llguidance's form of Lark; those asked for last are kept. From any thread. Raises RequestRefused."""
        with self._compiling:
            if self._grammars is None:
                codec = self._template(param)
                try:
                    self._grammars = Grammars(codec.tokenizer, codec.eos_token_ids, self.vocabulary_size)
                except ModelError as error:
                    raise RequestRefused(str(error), param) from error
            if text not in self._compiled:
                self._compiled[text] = self._grammars.of_lark(text, param)
            self._compiled.move_to_end(text)
            if len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return self._compiled[text]

    def _template(self, param: str) -> TemplateCodec:
        if not isinstance(self._encoder, TemplateCodec):
            raise RequestRefused(f"{param} is not supported: {self.policy_id} has a tokenizer of whole words and no chat template", param)
        return self._encoder

    def _form_of(self, codec: TemplateCodec) -> ToolForm:
        if self._form is None:
            try:
                self._form = form_of(codec)
            except ModelError as error:
                raise RequestRefused(str(error), "tools") from error
        return self._form

    def encode_text(self, text: str) -> list[int]:
        """A text as the tokenizer reads it, special tokens obeyed: for prompts that bring their own template. From any thread."""
        with self._encoding:
            return [int(token_id) for token_id in self._tokenizer(text)["input_ids"]]

    def start(self, request: Request) -> tuple[TokenStream, Callable[[], bool]]:
        """Begin an answer; gives its tokens, and what takes the request back."""
        stream = TokenStream()
        answer = self._engine.start(request, lambda *written: stream.feed(Written(*written)))
        answer.add_done_callback(lambda done: stream.feed(None if done.cancelled() else done.exception()))
        return stream, answer.cancel

    def load(self, folder: Path, policy_id: str | None, version: int) -> None:
        """Answer with another checkpoint of the same model and tokenizer, from the next token on, or from the next request on where the
        engine's `running_rows` is `finish`. Blocks until it does. Raises ModelError, and changes
        nothing, for any other."""
        card = read_card(folder)
        if card.files.get(FAST_TOKENIZER_FILE) != self._tokenizer_hash:
            raise ModelError(f"{card.checkpoint_id} has another tokenizer than the served checkpoint: start another server for it")
        model = load_policy(folder, dtype=self._dtype)
        self._engine.load_weights(model.state_dict(), policy_id or card.checkpoint_id, version)

    def close(self) -> None:
        self._engine.close()
