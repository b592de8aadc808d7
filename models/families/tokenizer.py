"""The quickstart policy's tokenizer: words are single tokens, everything else is spelled, and the same string is the same tokens
wherever it stands. Built here once per seed policy; afterwards it is an ordinary `tokenizer.json` that AutoTokenizer opens.

A text is folded to ASCII and cut into runs of letters and digits, single punctuation marks, and tags (`<button>`, `[12]`, and `<nl>` for
a new line). A run that is in the vocabulary is one token; any other run is spelled by character. Spaces are not tokens: what was written
*without* a space carries the glue mark `‿` instead, so that decoding gives back the exact text (up to folded characters and white space):

    Ok, see Tab #3   ->  Ok ‿, see Tab # ‿‿ 3        `‿,` is a comma joined to what stands before it,
    zK9              ->  z ‿K ‿9                      `‿‿` joins a run to the mark before it.

This is a BPE model without merges (`ignore_merges` looks a whole run up first), so nothing but the `tokenizers` library is needed.
What an answer means is agent/grammars; where the words come from is assets/seed_data/vocabulary.py.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.policy.policy import Message
from models.families.chat import EncodedChat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GLUE = "‿"
PAD, BOS, ACT, EOS = SPECIALS = ("<pad>", "<bos>", "<act>", "<eos>")
"""Special tokens live outside the model's own vocabulary: a page that shows the text `<eos>` gets it spelled, never the token."""
NEWLINE = "<nl>"
ROLES = (
    "button",
    "link",
    "text",
    "input",
    "textarea",
    "checkbox",
    "radio",
    "tab",
    "select",
    "option",
    "item",
    "header",
    "image",
    "slider",
    "label",
    "cell",
    "row",
    "list",
    "menu",
    "dialog",
    "date",
    "spinner",
    "shape",
    "circle",
    "rectangle",
    "line",
    "draggable",
    "target",
    "icon",
    "canvas",
)
MAX_INDEX = 60
MAX_NUMBER = 500
KEYWORDS = (
    "Thought",
    "Action",
    "click",
    "double",
    "right",
    "type",
    "press",
    "select",
    "drag",
    "scroll",
    "up",
    "down",
    "left",
    "wait",
    "finished",
    "enter",
    "tab",
    "escape",
    "backspace",
    "delete",
    "ctrl",
    "shift",
    "invalid",
    "earlier",
    "steps",
    "times",
    "no",
    "change",
    "more",
    "elements",
    "checked",
    "focused",
    "selected",
    "disabled",
    "expanded",
)
"""Words of the compact grammar, of its keys and of element states."""
_MARK = r"[!#-/:-@\[-`{-~]"
_NOT_TAG_START = r"(?:(?<!(?<!\S)<)|(?![a-z_]{1,12}>(?!\S)))(?:(?<!(?<!\S)\[)|(?![0-9]{1,2}\](?!\S)))"
_NOT_TAG_END = r"(?:(?<!(?<!\S)<[a-z_]{1,12})|(?!>(?!\S)))(?:(?<!(?<!\S)\[[0-9]{1,2})|(?!\](?!\S)))"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<act>{{ message['content'] }}{{ eos_token }}"
    "{% else %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<act>{% endif %}"
)


def build_tokenizer(words: Iterable[str], *, max_number: int = MAX_NUMBER) -> PreTrainedTokenizerFast:
    """A tokenizer whose single tokens are `words` beside the fixed part: tags, keywords, printable ASCII, numbers up to `max_number`.

    Words that are not one run of ASCII letters and digits are left out: they could never be looked up.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(vocab=_vocabulary(words, max_number), merges=[], continuing_subword_prefix=GLUE, ignore_merges=True))
    core.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Replace('\n"', ' "'),  # a line that begins with a name needs no other sign
            normalizers.Replace("\n", f" {NEWLINE} "),
            normalizers.Replace(Regex(r"[\x00-\x1f\x7f]"), " "),
            normalizers.Replace(Regex(r"[^\x00-\x7f]"), "?"),
            normalizers.Replace('"', ' " '),
            normalizers.Replace(Regex(rf"(?<={_MARK})(?=[A-Za-z0-9]){_NOT_TAG_START}"), f" {GLUE}{GLUE} "),
            normalizers.Replace(Regex(rf"(?<=[!-~])(?={_MARK}){_NOT_TAG_END}"), f" {GLUE}"),
        ]
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix=GLUE, cleanup=False), decoders.Fuse(), decoders.Replace(f"{GLUE} ", ""), decoders.Replace(GLUE, "")]
    )
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        extra_special_tokens={"act_token": ACT},
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _vocabulary(words: Iterable[str], max_number: int) -> dict[str, int]:
    characters = [chr(code) for code in range(33, 127)]
    usable = [word for word in words if word.isascii() and word.isalnum()]
    tokens = [
        NEWLINE,
        *(f"<{role}>" for role in ROLES),
        *(f"[{index}]" for index in range(1, MAX_INDEX + 1)),
        GLUE * 2,
        *characters,
        *(GLUE + character for character in characters),
        *(str(number) for number in range(10, max_number + 1)),
        *KEYWORDS,
        *usable,
    ]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def equivalent_characters(tokenizer: PreTrainedTokenizerFast) -> list[tuple[int, int]]:
    """Pairs of ids (`a`, `‿a`) that stand for the same character at the start of a run and inside one."""
    vocabulary = tokenizer.get_vocab()
    return [(vocabulary[character], vocabulary[GLUE + character]) for character in string.printable if GLUE + character in vocabulary]


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of plain texts. Special tokens written in a text are spelled, never obeyed."""
    core = tokenizer.backend_tokenizer
    core.encode_special_tokens = True
    return [encoding.ids for encoding in core.encode_batch(list(texts), add_special_tokens=False)]


def encode_chat(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], *, prompt_loss_weight: float = 1.0
) -> tuple[list[int], list[float]]:
    """Token ids of a conversation as the chat template writes it, and each token's weight in the loss.

    Tokens of a message carry its `loss`, scaled by `prompt_loss_weight` where the assistant did not write it; an assistant's `<eos>`
    carries its message's loss too; `<bos>`, `<act>` and separators carry 0. Acting wants a conversation that ends with the user: then
    the ids end with `<act>`, the sign that an answer follows.
    """
    bos, act, eos, newline = (_id(tokenizer, token) for token in (BOS, ACT, EOS, NEWLINE))
    ids, weights = [bos], [0.0]

    def add(tokens: Sequence[int], weight: float) -> None:
        ids.extend(tokens)
        weights.extend([weight] * len(tokens))

    for position, (message, tokens) in enumerate(zip(messages, encode_texts(tokenizer, [m.content for m in messages]), strict=True)):
        if message.role == "assistant":
            add([act], 0.0)
            add([*tokens, eos], message.loss)
        else:
            if position:
                add([newline], 0.0)
            add(tokens, message.loss * prompt_loss_weight)
    if not messages or messages[-1].role != "assistant":
        add([act], 0.0)
    return ids, weights


def decode(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> str:
    """The text of an answer, special tokens dropped."""
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))


class WordCodec:
    """The ChatCodec of the quickstart's tokenizer. Its models cannot see: the screenshots that messages name are left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (_id(self._tokenizer, EOS),)

    @property
    def pad_token_id(self) -> int:
        return _id(self._tokenizer, PAD)

    def encode(
        self, messages: Sequence[Message], images: Mapping[str, bytes] | None = None, *, prompt_loss_weight: float = 1.0
    ) -> EncodedChat:
        token_ids, loss_weights = encode_chat(self._tokenizer, messages, prompt_loss_weight=prompt_loss_weight)
        return EncodedChat(token_ids=token_ids, loss_weights=loss_weights)

    def decode(self, token_ids: Sequence[int]) -> str:
        return decode(self._tokenizer, token_ids)

    def save_pretrained(self, save_directory: Path) -> object:
        return self._tokenizer.save_pretrained(save_directory)


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return int(str(tokenizer.convert_tokens_to_ids(token)))
