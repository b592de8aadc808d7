"""Texts of actions: whatever JSON can spell becomes text that files, tables and wires hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox.actions import ACTION, ToolCall, TypeText


@given(st.text(st.characters(categories=["Cs", "L", "So"])))
def test_half_of_a_pair_of_surrogates_is_replaced_and_nothing_else_changes(text: str) -> None:
    written = TypeText(text=text).text
    written.encode()
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        assert written == text
    assert ACTION.validate_json(ACTION.dump_json(TypeText(text=text))) == TypeText(text=written)


def test_arguments_of_tools_too() -> None:
    call = ToolCall(name="x\ud800", arguments={"\udfff": ["a\ud800", {"b": "\ud83d\ude00"}]})
    assert call == ToolCall(name="x\ufffd", arguments={"\ufffd": ["a\ufffd", {"b": "😀"}]})


def test_arguments_beyond_any_depth_are_refused() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValidationError, match="nested deeper"):
        ToolCall(name="x", arguments={"a": nested})
