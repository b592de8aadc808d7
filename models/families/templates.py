"""Chat templates of Hugging Face tokenizers as a ChatCodec, with the place of every message known to the token.

A template is rendered twice: with the messages as they are, and with marks around each content. Without its marks the second text has
to be the first, so the marks say where each content lies. Added tokens (`<|im_end|>`, `<image>`, …) are obeyed where the template wrote
them and spelled where a message did: what a page shows can neither end a turn nor pretend to be one. Otherwise the ids are
`apply_chat_template`'s, but that a text is cut where an answer begins: a policy writes its answer after the prompt's last token, and no
token may reach across. What a codec cannot be sure of is tried on a small conversation when it is opened, and refused. Images are
models/families/vision.py's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.policy.policy import Message
from models.families.chat import ChatMessage, EncodedChat
from warehouse.core.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

ANSWER_TOKENS = ("<|box_start|>", "<|box_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|quad_start|>", "<|quad_end|>")
"""Special tokens that are part of an answer's text and neither begin nor end anything: obeyed in what the assistant says, and kept when
an answer is decoded. UI-TARS 1.x writes its points between the first two."""
TEMPLATE_VARIANTS: tuple[Mapping[str, Any], ...] = ({}, {"enable_thinking": False})
"""Arguments a template is tried with, in this order. Templates of thinking models write an empty thought into an answer that has none,
and only with `enable_thinking` off also into the prompt that asks for it."""
_OPEN, _CLOSE = "\ue010", "\ue011"
_MARK = re.compile(f"[{_OPEN}{_CLOSE}]")
_PROBE = (
    Message(role="user", content="Open the page"),
    Message(role="assistant", content="click 12", loss=1.0),
    Message(role="user", content="It is open"),
    Message(role="assistant", content="finished", loss=1.0),
)

Content = Callable[[Message, Sequence[str]], Any]
"""A message and its texts (perhaps with marks) as the `content` that the template gets."""
Tools = Sequence[Mapping[str, Any]]
ExpandPlaceholders = Callable[[str], str]
"""What becomes of a piece of text that the template itself wrote, before it is cut into tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of the rendered conversation: `message` None where the template wrote it."""

    text: str
    message: int | None


def text_content(message: Message, texts: Sequence[str]) -> Any:
    """The content of a text model's message; a screenshot is left out."""
    return "".join(texts)


class TemplateCodec:
    """The ChatCodec of any text model whose tokenizer has a chat template and is a `tokenizers` one.

    The tokens of a message's content carry its `loss` (scaled by `prompt_loss_weight` where the assistant did not write it); so does the
    token that ends an assistant's answer; all that the template adds carries 0.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int] = (), *, content: Content = text_content) -> None:
        """`eos_token_ids`: tokens that end an answer beside the tokenizer's own. Raises ModelError for a template or a tokenizer in which
        message boundaries cannot be found."""
        if tokenizer.chat_template is None:
            raise ModelError("the tokenizer has no chat_template: add chat_template.jinja to the checkpoint, or choose a chat model")
        self.tokenizer = tokenizer
        self._content = content
        self._added = _AddedTokens(tokenizer)
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self._eos_token_ids = tuple(dict.fromkeys([*own, *eos_token_ids]))
        self._arguments = self._working_variant()

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def pad_token_id(self) -> int:
        """The tokenizer's; one without gives its end token, which no loss is put on where it pads."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else self._eos_token_ids[0]

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0, tools: Tools = ()
    ) -> EncodedChat:
        """`tools` are functions that the answer may call, as OpenAI's interface describes them: the template writes them."""
        token_ids, loss_weights = self.tokens(messages, prompt_loss_weight=prompt_loss_weight, tools=tools)
        return EncodedChat(token_ids=token_ids, loss_weights=loss_weights)

    def tokens(
        self, messages: Sequence[Message], *, prompt_loss_weight: float = 1.0, expand: ExpandPlaceholders | None = None, tools: Tools = ()
    ) -> tuple[list[int], list[float]]:
        """Token ids of a conversation and the loss weight of each. Raises ModelError when a content cannot be found again in what the
        template makes of it."""
        parts = self._parts(messages, self._with_tools(tools))
        weights = [m.loss * (1.0 if m.role == "assistant" else prompt_loss_weight) for m in messages]
        ids: list[int] = []
        learned: list[float] = []
        is_assistant = [message.role == "assistant" for message in messages]
        for run, owner in self._added.pieces(parts, is_assistant, expand, lead=self._lead, ends=self._eos_token_ids):
            tokens, of = ([run], [owner]) if isinstance(run, int) else run
            ids.extend(tokens)
            learned.extend(0.0 if message is None else weights[message] for message in of)
        return ids, learned

    def rendered(self, messages: Sequence[Message], *, tools: Tools = ()) -> str:
        """A conversation as the template writes it. Raises ModelError where the template refuses it."""
        return self._render(messages, [self._texts(message) for message in messages], self._with_tools(tools))

    def _with_tools(self, tools: Tools) -> Mapping[str, Any]:
        return {**self._arguments, "tools": list(tools)} if tools else self._arguments

    def special_tokens(self) -> dict[str, int]:
        """Tokens that are special and not left in answers."""
        return {text: token for text, token in self._added.ids().items() if token in self._added.dropped}

    def text_of(self, token_id: int) -> str:
        """A token as the template writes it."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def control_token_in(self, text: str) -> str | None:
        """The first token of the template's own that stands in a text, if any: rendered into a prompt, it would be obeyed."""
        return self._added.found_in(text)

    def decode(self, token_ids: Sequence[int], *, is_whole: bool = False) -> str:
        """Without the blank that some templates put before an answer, but not into the prompt that asks for it. `is_whole`: special tokens
        are kept, all but those that end an answer."""
        kept = [token for token in token_ids if token not in (self._eos_token_ids if is_whole else self._added.dropped)]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False)).removeprefix(self._lead)

    def save_pretrained(self, save_directory: Path) -> object:
        return self.tokenizer.save_pretrained(save_directory)

    def _texts(self, message: Message) -> list[str]:
        """The texts that a message's content is made of, each of which is found again in what the template writes."""
        return [] if isinstance(message, ChatMessage) and not message.pieces else [message.content]

    def _render(self, messages: Sequence[Message], texts: Sequence[Sequence[str]], arguments: Mapping[str, Any]) -> str:
        conversation = [
            {"role": message.role, "content": self._content(message, own), **(message.fields if isinstance(message, ChatMessage) else {})}
            for message, own in zip(messages, texts, strict=True)
        ]
        asks = not messages or messages[-1].role != "assistant"
        try:
            rendered = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=asks, **arguments)
        except Exception as error:  # a template raises what its author chose, by way of jinja2
            roles = ", ".join(message.role for message in messages)
            raise ModelError(f"the chat template rejects a conversation of {roles}: {error}") from error
        return str(rendered)

    def _parts(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[Part]:
        """The rendered conversation, cut where contents begin and end."""
        texts = [[_MARK.sub("\ufffd", text) for text in self._texts(message)] for message in messages]
        plain = self._render(messages, texts, arguments)
        marked = self._render(messages, _marked(texts), arguments)
        if _MARK.sub("", marked) != plain:  # a template that trims contents
            texts = [[text.strip() for text in own] for own in texts]
            marked = self._render(messages, _marked(texts), arguments)
        pieces = _MARK.split(marked)
        order = "".join(_MARK.findall(marked))
        owners = [index for index, own in enumerate(texts) for _ in own]
        whole = [text for own in texts for text in own]
        if _MARK.sub("", marked) != plain or order != (_OPEN + _CLOSE) * len(owners) or pieces[1::2] != whole:
            raise ModelError(
                "the chat template changes, drops or moves message contents, so their boundaries cannot be found: contents must appear "
                "whole, once and in order (messages with <think> or tool calls that the template rewrites do not)"
            )
        return [Part(text, owners[index // 2] if index % 2 else None) for index, text in enumerate(pieces)]

    def _working_variant(self) -> Mapping[str, Any]:
        """The first way of calling the template that passes `_check`. Raises the first way's ModelError when none does."""
        first: ModelError | None = None
        for arguments in TEMPLATE_VARIANTS:
            try:
                self._check(arguments)
            except ModelError as error:
                first = first or error
            else:
                return arguments
        raise first or ModelError("the chat template cannot be called in any known way")

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """That an answer is written exactly where it is asked for and ends with an end token, and that cutting a conversation into runs
        gives the tokenizer's own ids. Raises ModelError."""
        for length in (2, 4):
            asked = "".join(part.text for part in self._parts(_PROBE[: length - 1], arguments))
            parts = self._parts(_PROBE[:length], arguments)
            before = "".join(part.text for part in parts[:-2])
            self._lead = before.removeprefix(asked)
            if not before.startswith(asked) or self._lead.strip():
                raise ModelError("the chat template puts an answer elsewhere than after its generation prompt: it cannot be trained on")
            after = self._added.pieces(parts[-1:], [False] * length)[0][0] if parts[-1].text else None
            if not isinstance(after, int) or after not in self._eos_token_ids:
                raise ModelError(f"the chat template ends an answer with {parts[-1].text!r}, which is not an end token of the model")
        whole = "".join(part.text for part in parts)
        expected = self.tokenizer(whole, add_special_tokens=False)["input_ids"]
        ids = [token for run, _ in self._added.pieces(parts, [False] * 4) for token in ([run] if isinstance(run, int) else run[0])]
        if ids != list(expected):
            raise ModelError("the tokenizer splits a text differently once special tokens are removed: this tokenizer is not supported")


def _marked(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[f"{_OPEN}{text}{_CLOSE}" for text in own] for own in texts]


Run = tuple[list[int], list[int | None]]
"""Ids of a run of text, and of which message each is (None: the template's)."""


class _AddedTokens:
    """Cuts a conversation at the added tokens that are to be obeyed; everything between them is encoded as if there were none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        core = getattr(tokenizer, "backend_tokenizer", None)
        if core is None:
            raise ModelError(f"{type(tokenizer).__name__} is not backed by the tokenizers library: save the tokenizer as tokenizer.json")
        self._tokens = {token.content: (index, token) for index, token in tokenizer.added_tokens_decoder.items()}
        self._spell = _without_added_tokens(core)
        special = {text for text, (_, token) in self._tokens.items() if token.special}
        self._in_template = _alternatives(self._tokens)
        self._in_answer = _alternatives([text for text in self._tokens if text not in special or text in ANSWER_TOKENS])
        self.dropped = frozenset(self._tokens[text][0] for text in special if text not in ANSWER_TOKENS)
        for text in sorted(special):
            if self._tokens[text][0] in self._spell.encode(text, add_special_tokens=False).ids:
                raise ModelError(f"{text!r} is also a word of the tokenizer's vocabulary, so a page could forge it: use another tokenizer")

    def ids(self) -> dict[str, int]:
        return {text: index for text, (index, _) in self._tokens.items()}

    def found_in(self, text: str) -> str | None:
        found = self._in_template.search(text) if self._in_template else None
        return found.group() if found else None

    def pieces(
        self,
        parts: Sequence[Part],
        is_assistant: Sequence[bool],
        expand: ExpandPlaceholders | None = None,
        *,
        lead: str = "",
        ends: Sequence[int] = (),
    ) -> list[tuple[int | Run, int | None]]:
        """Obeyed tokens (id, its message) and runs of text between them, in order. An answer is a run of its own, with the template's
        `lead` before it; the first of `ends` after it belongs to it."""
        answer: int | None = None
        found: list[tuple[int | Run, int | None]] = []
        run: list[tuple[str, int | None]] = []
        for literal, special, message in self._literals(parts, is_assistant, expand):
            if message is not None and is_assistant[message] and answer != message:
                answer = message
                before, blanks = _without_lead(run, lead)
                found.extend(self._encode(before))
                run = [(blanks, message)]
            run.append((literal, message))
            if special is None:
                continue
            index, token = self._tokens[special]
            if token.lstrip:
                run = _without_end_blanks(run)
            found.extend(self._encode(run))
            is_end = message is None and index in ends
            found.append((index, answer if is_end else message))
            answer = None if is_end else answer
            run = []
        found.extend(self._encode(run))
        return found

    def _literals(
        self, parts: Sequence[Part], is_assistant: Sequence[bool], expand: ExpandPlaceholders | None
    ) -> Iterator[tuple[str, str | None, int | None]]:
        """(text, the obeyed token after it, message), without the blanks that an added token takes to its right."""
        strips = False
        for part in parts:
            pattern = self._in_template if part.message is None else self._in_answer if is_assistant[part.message] else None
            written = expand(part.text) if expand and part.message is None else part.text
            for literal, special in _cut(written, pattern):
                kept = literal.lstrip() if strips else literal
                strips = strips and not kept
                yield kept, special, part.message
                if special is not None:
                    strips = bool(self._tokens[special][1].rstrip)

    def _encode(self, run: Sequence[tuple[str, int | None]]) -> list[tuple[Run, None]]:
        """A token belongs to the message that its last character is of: what a message shares with the template before it is its own."""
        text = "".join(literal for literal, _ in run)
        if not text:
            return []
        encoding = self._spell.encode(text, add_special_tokens=False)
        ends = list(accumulate(len(literal) for literal, _ in run))
        of: list[int | None] = []
        position = 0
        for _, end in encoding.offsets:
            while position < len(ends) - 1 and ends[position] < end:
                position += 1
            of.append(run[position][1])
        return [((encoding.ids, of), None)]


def _without_lead(run: Sequence[tuple[str, int | None]], lead: str) -> tuple[list[tuple[str, int | None]], str]:
    """The template's text before an answer, without the blanks that belong to the answer; and these."""
    if not run or not lead or not run[-1][0].endswith(lead):
        return list(run), ""
    return [*run[:-1], (run[-1][0].removesuffix(lead), run[-1][1])], lead


def _without_end_blanks(run: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    kept = list(run)
    while kept and not kept[-1][0].rstrip():
        kept.pop()
    return [*kept[:-1], (kept[-1][0].rstrip(), kept[-1][1])] if kept else []


def _without_added_tokens(core: Tokenizer) -> Tokenizer:
    """A copy that knows the vocabulary only, and cuts the middle of a text as the whole: no blank is put before its first word."""
    from tokenizers import Tokenizer

    described = json.loads(core.to_str())
    described["added_tokens"], described["truncation"], described["padding"], described["post_processor"] = [], None, None, None
    for part in _parts_of(described):
        if part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
    return Tokenizer.from_str(json.dumps(described))


def _parts_of(described: Any) -> list[dict[str, Any]]:
    pre = described.get("pre_tokenizer") or {}
    return [pre, *pre.get("pretokenizers", ())]


def _alternatives(texts: Sequence[str] | Mapping[str, object]) -> re.Pattern[str] | None:
    """The longest first, as the tokenizers library matches them."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))) if texts else None


def _cut(text: str, pattern: re.Pattern[str] | None) -> list[tuple[str, str | None]]:
    """(text before, matched token) pairs; after the last text there is none."""
    matches = list(pattern.finditer(text)) if pattern else []
    edges = [0, *(match.end() for match in matches)]
    before = [(text[start : match.start()], match.group()) for start, match in zip(edges, matches, strict=False)]
    return [*before, (text[edges[-1] :], None)]
