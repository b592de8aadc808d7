"""Ids of long lists are those of the lists, however they come in parts."""

from __future__ import annotations

import pytest

from warehouse.core.identity import content_id, long_list_id

IDS = ["sample-1", 'with "quotes"', "Überlänge", "\u2028"]


@pytest.mark.parametrize("parts", [[IDS], [IDS[:1], IDS[1:]], [[], IDS[:3], [], IDS[3:], []]])
def test_a_list_in_parts_has_the_id_of_the_whole(parts: list[list[str]]) -> None:
    assert long_list_id("data", iter(parts)) == content_id("data", [IDS])
    assert long_list_id("data", iter(parts), head=["ct", 1]) == content_id("data", ["ct", 1, IDS])


def test_an_empty_list_has_the_id_of_an_empty_list() -> None:
    assert long_list_id("data", []) == long_list_id("data", [[]]) == content_id("data", [[]])


def test_values_may_be_lists_themselves() -> None:
    assert long_list_id("data", [[("a", "sft")], [("b", "ct")]]) == content_id("data", [[("a", "sft"), ("b", "ct")]])
