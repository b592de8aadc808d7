"""Names in the code are the field's own terms: words of our own that once stood for them do not come back."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_tree import ROOMS, ROOT

INSTEAD = {
    "anew": "again",
    "arena": "pairwise comparison",
    "carrier": "transport",
    "condemn": "reject",
    "condemned": "rejected",
    "decider": "deciding judge",
    "deed": "action",
    "gang": "process group",
    "giveaway": "leak",
    "landing": "change, of a change log",
    "mend": "fix, repair",
    "salvage": "recover",
    "salvaged": "recovered",
    "seat": "slot",
    "seated": "has a slot",
    "spool": "rollout log",
    "standings": "statuses",
    "tally": "counts",
    "told": "reported, sent, logged",
    "twin": "duplicate",
    "upkeep": "maintenance",
    "wheel": "iteration",
    "wish": "request",
}
DENIED = {word: {"tally": "tallies", "wish": "wishes"}.get(word, f"{word}s") for word in INSTEAD}
"""With the plural."""
ALLOWED = {"twin_suffix": "what a field of task sources, plug-ins' too, was called before"}
MOUSE = ("annotation/recorder/", "pipelines/importing/playwright_trace.py", "sandbox/browser/", "sandbox/desktop/")
"""Where a wheel is that of a mouse."""
NO_CODE = {
    ".js": re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S),
    ".sql": re.compile(r"--[^\n]*|'(?:''|[^'])*'"),
}
"""Comments and texts."""


def identifiers(source: str) -> set[tuple[str, int]]:
    """What a file itself names, and what it uses: each with its line."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add((name, node.lineno))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add((name, node.lineno))
            case ast.alias():
                found.add(((node.asname or node.name).rpartition(".")[2], node.lineno))
    return found


@cache
def denied_word(name: str) -> str | None:
    """The denied word in `snake_case`, `CamelCase` or `UPPER_CASE`, also in the plural."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return next((word for word, plural in DENIED.items() if not words.isdisjoint({word, plural})), None)


def denied(source: str) -> list[tuple[str, int]]:
    return sorted((name, line) for name, line in identifiers(source) if denied_word(name))


def denied_elsewhere(source: str, suffix: str) -> list[tuple[str, int]]:
    """The same of JavaScript and SQL."""
    code = NO_CODE[suffix].sub(lambda text: "\n" * text.group().count("\n") + " ", source)
    names = ((name, number) for number, line in enumerate(code.splitlines(), start=1) for name in re.findall(r"[A-Za-z_]\w*", line))
    return sorted({(name, number) for name, number in names if denied_word(name)})


def denied_in(path: Path) -> list[tuple[str, int]]:
    source, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = denied(source) if path.suffix == ".py" else denied_elsewhere(source, path.suffix)
    return [(name, line) for name, line in found if denied_word(name) != "wheel" or not place.startswith(MOUSE)]


@cache
def in_rooms() -> dict[str, list[tuple[str, int]]]:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*")) if path.suffix in (".py", *NO_CODE)]
    return {path.relative_to(ROOT).as_posix(): denied_in(path) for path in paths}


def test_identifiers_are_terms_of_the_field() -> None:
    found = [
        f"{path}:{line}: {name} (say: {INSTEAD[denied_word(name) or '']})"
        for path, names in in_rooms().items()
        for name, line in names
        if name not in ALLOWED
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_used() -> None:
    assert {name for names in in_rooms().values() for name, _ in names} >= ALLOWED.keys()


@pytest.mark.parametrize("name", ["_told", "TOLD_S", "Deeds", "num_tallies", "wasSeated", "Twins", "condemned"])
def test_a_word_is_found_in_every_spelling(name: str) -> None:
    assert [found for found, _ in denied(f"{name} = 1")] == [name]


def test_a_word_is_found_in_javascript_and_sql_and_not_in_their_comments_and_texts() -> None:
    assert denied_elsewhere("const a = 'told'; // told\n/* told\n*/ is_told(a)", ".js") == [("is_told", 3)]
    assert denied_elsewhere("-- told\nselect 'it''s told' from told", ".sql") == [("told", 2)]


def test_part_of_another_word_is_another_word() -> None:
    assert not denied("threshold = recommendation = winner = seating = spooled = 1")
