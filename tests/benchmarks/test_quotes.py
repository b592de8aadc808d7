"""README.md, docs/results.md, docs/cluster.md and docs/serving.md quote no figure that does not lie in a file of docs/measured, and
none otherwise than it lies there. The quotes are in quotes.toml: what the pages say, with the path of each number in the place of the
number.

A path is names divided by slashes. Of a list it is the index, or the `name` (with window and workers where it has them) or `arm` of
an entry. Points of iteration_curves are home/tasks/iteration/role/field, and home/tasks/gain/field is from the seed SFT to the last policy.
"""

from __future__ import annotations

import json
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.provenance import CHANGED
from benchmarks.iteration_curves import gain, points_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("results", "cluster", "serving")))
LISTED = tomllib.loads((ROOT / "tests" / "benchmarks" / "quotes.toml").read_text(encoding="utf-8"))
QUOTES = [(quote["file"], quote["text"]) for quote in LISTED["quote"]]
FIGURE = re.compile(
    r"(?<![\w./])[+−-]?\d*\.\d+(?![\w.]*\w)"  # a decimal
    r"|±|(?<![\w.])\d+ of \d+|(?<![\w./])\d+/\d+(?![\w/])|\d+ %"
    r"|(?<![\w.])\d+ (?:times|points|minutes|hours|ms|seconds|episodes)\b"
)
"""What is taken for something measured, in text without code."""
WITH_CHANGES = {"critic_fit": 5}
"""Rows that were measured in a checkout with changes, at most: benchmarks/README.md names them. There are to be no others."""


def one_line(text: str) -> str:
    return " ".join(text.split())


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "``", text)


def pages() -> str:
    """All of PAGES without blocks of code, on one line."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return one_line(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@cache
def figures(name: str) -> Mapping[str, Any]:
    """Every number of a file by its path."""
    stored = json.loads((ROOT / "docs" / "measured" / f"{name}.json").read_text(encoding="utf-8"))
    if name == "iteration_curves":
        return dict(_flat("", _of_homes(stored["homes"])))
    if name == "quantised":
        stored = {**stored, "times": _of_rounded(stored["rows"])}
    if name == "rl-conformance":
        stored = {key: {"results": _counted(library["results"].values())} for key, library in stored.items()}
    return dict(_flat("", stored))


def _of_rounded(rows: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Of the random model: each figure of rounded weights by the same of full precision."""
    whole, fields = rows["768 x 9, full precision"], ("read_tokens_per_cpu_s", "written_tokens_per_cpu_s", "weight_bytes")
    return {bits: {field: rows[f"768 x 9, {bits}"][field] / whole[field] for field in fields} for bits in ("int8", "int4")}


def _counted(results: Any) -> dict[str, int]:
    outcomes = [result["outcome"] for result in results]
    return {"count": len(outcomes), **{outcome: outcomes.count(outcome) for outcome in outcomes}}


def _of_homes(homes: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    points = points_in(homes)
    for p in points:
        own = [q for q in points if (q.variant, q.seed, q.tasks) == (p.variant, p.seed, p.tasks)]
        of_tasks = found.setdefault(f"{p.variant}-{p.seed}", {}).setdefault(p.tasks, {"gain": gain(own) or {}})
        fields = {"mean": p.mean, "standard_error": p.standard_error, "num_episodes": p.num_episodes}
        of_tasks.setdefault(p.iteration, {})[p.role] = fields
    return found


def _flat(path: str, value: Any) -> Sequence[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(f"{path}/{key}", inner)]
    if isinstance(value, list):
        names = [_name(each) or index for index, each in enumerate(value)]
        assert len(set(names)) == len(names), f"entries of {path} share a name"
        return [pair for key, inner in zip(names, value, strict=True) for pair in _flat(f"{path}/{key}", inner)]
    return [(path[1:], value)] if isinstance(value, int | float) else []


def _name(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return ""
    return " ".join(str(entry[key]) for key in ("name", "arm", "window", "workers") if key in entry)


class _Filled(string.Formatter):
    def __init__(self, file: str) -> None:
        self._file = file

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        return figures(self._file)[field_name], field_name


def filled(file: str, text: str) -> str:
    """The text with the numbers of the file. Raises KeyError for a path that it lacks."""
    return _Filled(file).format(text).replace("%", " %")


@pytest.mark.parametrize(("file", "text"), QUOTES)
def test_what_is_quoted_lies_in_a_file(file: str, text: str) -> None:
    assert filled(file, text) in pages()


@pytest.mark.parametrize(("file", "text"), QUOTES)
def test_figures_on_splits_by_seed_say_so(file: str, text: str) -> None:
    stored = json.loads((ROOT / "docs" / "measured" / f"{file}.json").read_text(encoding="utf-8"))
    if stored.get("splits") == "by seed":
        sections = [one_line(section) for page in PAGES for section in page.read_text(encoding="utf-8").split("\n## ")]
        assert all("splits by seed" in section for section in sections if filled(file, text) in section)


def test_nothing_else_on_the_pages_looks_measured() -> None:
    text = without_code(pages())
    for said in sorted([*LISTED["settings"], *(filled(*quote) for quote in QUOTES)], key=len, reverse=True):  # one may begin as another
        text = text.replace(without_code(said), "")
    left = [text[max(0, found.start() - 40) : found.end() + 20] for found in FIGURE.finditer(text)]
    assert not left, "a page has figures that quotes.toml does not trace to a file under docs/measured"


@pytest.mark.parametrize("said", ["gains +.3 here", "success of 0.912", "5/60", "9 of 10 runs", "takes 12 %", "it is 13 times as fast"])
def test_a_figure_is_seen(said: str) -> None:
    assert FIGURE.search(said)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "measured").glob("*.json")), ids=lambda path: path.stem)
def test_every_file_says_commit_date_and_machine(path: Path) -> None:
    found: list[dict[str, str]] = []

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            measured = value.get("measured", [])
            found.extend([measured] if isinstance(measured, Mapping) else measured)
        for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
            look(inner)

    look(json.loads(path.read_text(encoding="utf-8")))
    assert found
    for each in found:
        assert each.keys() == {"commit", "date", "machine"} and all(each.values())
        assert re.match(r"[0-9a-f]{8}", each["commit"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", each["date"])
        assert "/" not in each["machine"]
    assert sum(each["commit"].endswith(CHANGED) for each in found) <= WITH_CHANGES.get(path.stem, 0)
