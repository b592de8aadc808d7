"""Names in the code and of files are the field's own terms: words of our own that once stood for them do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.test_tree import ROOT, tracked_files

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
DENIED = {form: word for word in INSTEAD for form in (word, {"tally": "tallies", "wish": "wishes"}.get(word, f"{word}s"))}
"""With the plural; by each form the word."""
ALLOWED = {"twin_suffix": "what a field of task sources, plug-ins' too, was called before"}
OTHER_SENSE = {
    "annotation/recorder/": "of a mouse",
    "pipelines/importing/playwright_trace.py": "of a mouse",
    "sandbox/browser/": "of a mouse",
    "sandbox/desktop/": "of a mouse",
    "tests/annotation/recording/test_gestures.py": "of a mouse",
    "tests/pipelines/logs/make_logs.py": "of a mouse",
    "scripts/hatch_build.py": "the file that a Python package is installed from",
    "tests/pipelines/test_wheel_package.py": "the file that a Python package is installed from",
}
"""Files and folders where a wheel is one, and which."""
NO_CODE = {
    ".js": re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S),
    ".sql": re.compile(r"--[^\n]*|'(?:''|[^'])*'"),
}
"""Comments and texts."""
NAME = re.compile(r"[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def identifiers(source: str) -> Iterator[tuple[str, int]]:
    """What a file itself names, and what it uses: each with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.alias():
                yield (node.asname or node.name).rpartition(".")[2], node.lineno


@cache
def denied_word(name: str) -> str | None:
    """The denied word in `snake_case`, `CamelCase` or `UPPER_CASE`, also in the plural."""
    return next((DENIED[part] for part in map(str.lower, PART.findall(name)) if part in DENIED), None)


def may_have_one(source: str) -> bool:
    """Whether a denied word stands in a file, be it in a comment or a text. A file without one need not be parsed."""
    lower = source.lower()
    return any(form in lower for form in DENIED) and any(map(denied_word, set(NAME.findall(source))))


def denied(source: str) -> list[tuple[str, int]]:
    return sorted({(name, line) for name, line in identifiers(source) if denied_word(name)}) if may_have_one(source) else []


def denied_elsewhere(source: str, suffix: str) -> list[tuple[str, int]]:
    """The same of JavaScript and SQL."""
    if not may_have_one(source):
        return []
    code = NO_CODE[suffix].sub(lambda text: "\n" * text.group().count("\n") + " ", source)
    names = ((name, number) for number, line in enumerate(code.splitlines(), start=1) for name in NAME.findall(line))
    return sorted({(name, number) for name, number in names if denied_word(name)})


def is_allowed(name: str, place: str) -> bool:
    return name in ALLOWED or (denied_word(name) == "wheel" and place.startswith(tuple(OTHER_SENSE)))


@cache
def in_files() -> dict[str, list[tuple[str, int]]]:
    found = {}
    for path in tracked_files():
        if path.suffix in (".py", *NO_CODE):
            source = path.read_text(encoding="utf-8")
            found[path.relative_to(ROOT).as_posix()] = denied(source) if path.suffix == ".py" else denied_elsewhere(source, path.suffix)
    return found


def test_identifiers_are_terms_of_the_field() -> None:
    found = [
        f"{path}:{line}: {name} (say: {INSTEAD[denied_word(name) or '']})"
        for path, names in in_files().items()
        for name, line in names
        if not is_allowed(name, path)
    ]
    assert not found, "\n".join(found)


def test_names_of_files_and_folders_are_terms_of_the_field() -> None:
    paths = (path.relative_to(ROOT).as_posix() for path in tracked_files())
    found = [f"{path} (say: {INSTEAD[word]})" for path in paths if (word := denied_word(path)) and not is_allowed(path, path)]
    assert not found, "\n".join(found)


def test_every_exception_is_used() -> None:
    assert {name for names in in_files().values() for name, _ in names} >= ALLOWED.keys()
    found = [path for path, names in in_files().items() if any(denied_word(name) == "wheel" for name, _ in names)]
    assert [place for place in OTHER_SENSE if not any(path.startswith(place) for path in found)] == []


@pytest.mark.parametrize("name", ["_told", "TOLD_S", "Deeds", "num_tallies", "wasSeated", "Twins", "condemned"])
def test_a_word_is_found_in_every_spelling(name: str) -> None:
    assert [found for found, _ in denied(f"{name} = 1")] == [name]


def test_a_word_is_found_in_javascript_and_sql_and_not_in_their_comments_and_texts() -> None:
    assert denied_elsewhere("const a = 'told'; // told\n/* told\n*/ is_told(a)", ".js") == [("is_told", 3)]
    assert denied_elsewhere("-- told\nselect 'it''s told' from told", ".sql") == [("told", 2)]


def test_part_of_another_word_is_another_word() -> None:
    assert not denied("threshold = recommendation = winner = seating = spooled = 1")
