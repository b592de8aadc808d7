"""Calls of tools in the forms that templates have: the form is found, a call is demanded in it, and calls are read however they arrive."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from models.engine.grammar import Grammars
from models.families.templates import TemplateCodec
from models.server.tools import CallReader, ToolForm, form_of
from models.server.wire import Function
from tests.models.chat_models import CONTROL, QWEN, chat_tokenizer
from tests.models.served_models import LLAMA_TOOLS, MISTRAL_TOOLS, TOOLS
from warehouse.core.errors import ModelError, RequestRefused

XML = TOOLS.replace('{"name": "', "<name>").replace("tojson", "string")
CODECS = {
    "qwen": TemplateCodec(chat_tokenizer(TOOLS, (*CONTROL, "<tool_call>", "</tool_call>"))),
    "qwen, words": TemplateCodec(chat_tokenizer(TOOLS)),
    "llama": TemplateCodec(chat_tokenizer(LLAMA_TOOLS, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>")),
    "mistral": TemplateCodec(chat_tokenizer(MISTRAL_TOOLS, ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "</s>"), "</s>")),
}
SAID = '{"name": "click", "arguments": {"x": 1}}'
WRITTEN = {
    "qwen": f"I look. <tool_call>\n{SAID}\n</tool_call>\n<tool_call>\n{SAID}\n</tool_call>",
    "qwen, words": f"I look. <tool_call>{SAID}</tool_call><tool_call> {SAID} </tool_call>",
    "llama": '{"name": "click", "parameters": {"x": 1}}',
    "mistral": f"I look. [TOOL_CALLS][{SAID}, {SAID}]",
}


def read(form: ToolForm, pieces: Sequence[str], *, is_single: bool = False) -> tuple[str, list[tuple[str, str]]]:
    reader, said, calls = CallReader(form, is_single=is_single), "", []
    for index, piece in enumerate(pieces):
        text, found = reader.add(piece, is_end=index == len(pieces) - 1)
        said, calls = said + text, calls + [(call.name, call.arguments) for call in found]
    return said, calls


def test_the_form_of_calls_is_the_templates() -> None:
    found = {name: form_of(codec) for name, codec in CODECS.items()}
    assert [(form.opening, form.closing, form.arguments_key, form.is_list, form.is_special) for form in found.values()] == [
        ("<tool_call>\n", "\n</tool_call>", "arguments", False, True),
        ("<tool_call>\n", "\n</tool_call>", "arguments", False, False),
        ("", "", "parameters", False, False),
        ("[TOOL_CALLS]", "", "arguments", True, True),
    ]
    with pytest.raises(ModelError, match="ignores tools"):
        form_of(TemplateCodec(chat_tokenizer(QWEN)))
    with pytest.raises(ModelError, match="unknown form"):
        form_of(TemplateCodec(chat_tokenizer(XML)))


@pytest.mark.parametrize("name", CODECS)
def test_calls_are_read_wherever_an_answer_is_cut(name: str) -> None:
    form, text, rng = form_of(CODECS[name]), WRITTEN[name], random.Random(0)
    num = 1 if name == "llama" else 2
    for size in (1, 2, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        said, calls = read(form, pieces)
        assert (said.strip(), calls) == ("" if name == "llama" else "I look.", [("click", '{"x": 1}')] * num)
    edges = sorted(rng.sample(range(1, len(text)), 5))
    pieces = [text[start:end] for start, end in zip([0, *edges], [*edges, len(text)], strict=True)]
    assert len(read(form, pieces, is_single=True)[1]) == 1


@pytest.mark.parametrize(
    "text",
    ["no call <tool", "<tool_call>\n{broken\n</tool_call> after", "<tool_call> [1, 2] </tool_call>", '<tool_call>{"name": 3}', "{1}", ""],
)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_a_call_is_said(name: str, text: str) -> None:
    assert read(form_of(CODECS[name]), list(text) or [""]) == (text, [])


@pytest.mark.parametrize("name", CODECS)
def test_any_answer_under_the_grammar_is_a_call(name: str) -> None:
    codec, rng = CODECS[name], random.Random(1)
    functions = [
        Function(name="click", parameters={"type": "object", "properties": {"x": {"enum": [1, 2]}}, "additionalProperties": False}),
        Function(name="stop"),
    ]
    grammars, form = Grammars(codec.tokenizer, codec.eos_token_ids, len(codec.tokenizer) + 13), form_of(codec)
    grammar = grammars.of_lark(form.grammar(functions[:1]), "tools")
    for _ in range(5):
        constraint, ids = grammar.begin(), list[int]()
        while not ids or ids[-1] not in codec.eos_token_ids:
            allowed = constraint.allowed().nonzero().flatten().tolist()
            assert allowed and max(allowed) < len(codec.tokenizer)
            ids.append(rng.choice(allowed))
            constraint.take(ids[-1])
            assert len(ids) < 300
        said, [(called, arguments)] = read(form, [codec.decode(ids, is_whole=form.is_special)])
        assert (said, called) == ("", "click") and json.loads(arguments).get("x", 1) in (1, 2)
    grammars.of_lark(form.grammar(functions), "tools")
    with pytest.raises(RequestRefused, match="nested more than"):
        deep: dict[str, object] = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        form.grammar([Function(name="deep", parameters=deep)])
