"""Tables of what is published, for the terminal and between the marks of a page under docs/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.common.provenance import distinct
from warehouse.core.home import atomic_write


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with its title."""

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]

    def drawn(self) -> Table:
        table = Table(*self.columns, title=self.title)
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.lines]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def page_text(sections: Sequence[Section], found: Mapping[str, Mapping[str, Any]]) -> str:
    """The tables of published rows, then when and on what these were measured."""
    measured = distinct([{"measured": each} for row in found.values() for each in row["measured"]])
    said = "; ".join(f"{each['date']} at commit {each['commit']} ({each['machine']})" for each in measured)
    return "\n".join([*(section.markdown() for section in sections), f"Measured on {said}.", ""])


def between(page: Path, name: str) -> str:
    """What a page says between the marks of `name`."""
    begin, end = _marks(name)
    return page.read_text(encoding="utf-8").partition(f"{begin}\n")[2].partition(end)[0]


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what a page says between the marks of `name`. Raises ValueError where it has no such marks."""
    begin, end = _marks(name)
    head, found, rest = page.read_text(encoding="utf-8").partition(begin)
    if not found or end not in rest:
        raise ValueError(f"{page} has no marks {begin} and {end}: put both where the tables belong")
    atomic_write(page, f"{head}{begin}\n{text}{end}{rest.partition(end)[2]}".encode())


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
