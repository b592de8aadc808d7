"""Looking first for what must stand in a match changes nothing but the time."""

from __future__ import annotations

import duckdb
import pytest

from warehouse.quality.config import QualityConfig
from warehouse.quality.patterns import matches_any, quoted, required_literal

TEXTS = (
    "",
    "plain",
    "WOB_READY",
    "xWOB_A",
    "a data-wob_x",
    "data wob",
    ' {"a": 1}',
    'so:\n {"a" :',
    '"answer"  :',
    "answer",
    '"solution":',
    '"Loading..." <text>',
    '"Loaded"',
    "<progressbar>",
    "<busy >",
    "it's 100%",
    "a.b",
    "axb",
    "colour",
    "color",
    "C++",
    "ac",
    "abbbc",
)


@pytest.mark.parametrize(
    "pattern",
    [
        *QualityConfig().leak_patterns,
        *QualityConfig().busy_patterns,
        r"it's 1\d+%",
        r"a\.b",
        r"colou?r",
        r"C\+\+",
        r"ab*c",
        r"a|ad{2}",
        r"(?m)^so:$",
    ],
)
def test_a_pattern_matches_what_re2_says(pattern: str) -> None:
    rows = ", ".join(f"({quoted(text)})" for text in TEXTS)
    tests = f"{matches_any('text', [pattern])}, regexp_matches(text, {quoted(pattern)})"
    found = duckdb.sql(f"select text, {tests} from (values {rows}) t(text)").fetchall()
    assert [text for text, fast, _ in found if fast] == [text for text, _, slow in found if slow]


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("<progressbar>", "<progressbar>"),
        ('"[Ll]oading[ .]*"', "oading"),
        (r"\bWOB_[A-Z_]+", "WOB_"),
        ("colou?r", "colo"),
        ("a|b", ""),
        ("x{0}yz", "yz"),
    ],
)
def test_the_literal_stands_in_every_match(pattern: str, literal: str) -> None:
    assert required_literal(pattern) == literal
