"""The tokenizer: exact round trips of what an answer may say, one string one tokenisation, and a folder AutoTokenizer opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agent.grammars.compact import CompactGrammar
from agent.policy.policy import Message
from models.families.tokenizer import ACT, build_tokenizer, decode, encode_chat, encode_texts, equivalent_characters
from sandbox.actions import SelectOption, TypeText
from sandbox.session import Element, Observation

WORDS = ("Ok", "Submit", "Tab", "hello", "world", "see", "Find", "then", "Bernardine")
TOKENIZER = build_tokenizer(WORDS)
SCREEN = Observation(
    instruction="",
    screenshot=None,
    width_px=160,
    height_px=210,
    time_ms=0,
    elements=(Element(role="select", text="Ok", x_px=8, y_px=8, width_px=16, height_px=16),),
)


def tokens(text: str) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(encode_texts(TOKENIZER, [text])[0])


def test_words_tags_and_numbers_are_single_tokens_and_the_rest_is_spelled() -> None:
    assert tokens('Find checked "Ok" <button> [12] 500') == ["Find", "checked", '"', "Ok", '"', "<button>", "[12]", "500"]
    assert tokens("zK9") == ["z", "‿K", "‿9"]
    assert tokens("Okay") == ["O", "‿k", "‿a", "‿y"], "no word inside a word"
    assert tokens("a\nb") == ["a", "<nl>", "b"]


@pytest.mark.parametrize("name", ["Ok", "zK9", "Tab #3", "a-b c", "Ok Ok", "12"])
def test_a_name_is_the_same_tokens_wherever_it_stands(name: str) -> None:
    alone = tokens(name)
    for around in ("{}, and", "{}.", '"{}"', 'Find "{}".', "see {}, then", '"{}" <button> [2]', '"{}"?'):
        inside = tokens(around.format(name))
        assert any(inside[start : start + len(alone)] == alone for start in range(len(inside))), around


def test_special_tokens_in_a_page_are_spelled() -> None:
    specials = set(TOKENIZER.all_special_ids)
    for text in ("<eos>", "a <act> b", "<pad><bos>", '"<eos>"'):
        assert not specials & set(encode_texts(TOKENIZER, [text])[0])
    assert decode(TOKENIZER, encode_texts(TOKENIZER, ["say <eos> now"])[0]) == "say <eos> now"


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"'), min_size=1, max_size=40))
def test_text_without_spaces_comes_back_exactly(text: str) -> None:
    assert decode(TOKENIZER, encode_texts(TOKENIZER, [text])[0]) == text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text('a[]<>1 ‿#.,-"\\\n\tbuton', max_size=30), st.sampled_from([None, "look [1] <button> , then"]))
def test_what_an_answer_types_or_chooses_comes_back_exactly(text: str, thought: str | None) -> None:
    text = text.encode("utf-8", "ignore").decode()
    grammar = CompactGrammar()
    for action in (TypeText(text=text), SelectOption(x=8, y=8, option=text)):
        answer = grammar.format(thought, action, SCREEN)
        read = grammar.parse(decode(TOKENIZER, encode_texts(TOKENIZER, [answer])[0]), SCREEN)
        assert read.actions == (action,)


def test_chat_ids_follow_the_template_and_weights_follow_the_messages() -> None:
    messages = (
        Message(role="user", content='hello "Ok",\n"x" <button> [1]', loss=0.5),
        Message(role="assistant", content="Action click [1]", loss=1.0),
        Message(role="user", content="see world"),
    )
    ids, weights = encode_chat(TOKENIZER, messages)
    plain = [{"role": message.role, "content": message.content} for message in messages]
    template = TOKENIZER.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert ids == template
    shown = list(zip(TOKENIZER.convert_ids_to_tokens(ids), weights, strict=True))
    assert shown[:2] == [("<bos>", 0.0), ("hello", 0.5)]
    answer = TOKENIZER.convert_ids_to_tokens(ids).index(ACT)
    assert shown[answer : answer + 6] == [("<act>", 0.0), ("Action", 1.0), ("click", 1.0), ("[1]", 1.0), ("<eos>", 1.0), ("<nl>", 0.0)]
    assert shown[-1] == (ACT, 0.0), "a conversation that ends with the user asks for an answer"
    assert set(encode_chat(TOKENIZER, messages, prompt_loss_weight=0.0)[1]) == {0.0, 1.0}


def test_opens_with_auto_tokenizer_and_reads_the_same(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(opened, PreTrainedTokenizerFast)
    assert (opened.pad_token_id, opened.eos_token_id, opened.padding_side) == (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, "left")
    text = 'Find "zK9, Ok" <button> [3] a-b.'
    assert opened(text).input_ids == encode_texts(TOKENIZER, [text])[0]
    assert opened.chat_template == TOKENIZER.chat_template


def test_equivalent_characters_are_the_two_tokens_of_a_character() -> None:
    pairs = equivalent_characters(TOKENIZER)
    assert len(pairs) == 94
    assert [TOKENIZER.convert_ids_to_tokens(list(pair)) for pair in pairs][10] == ["a", "‿a"]
