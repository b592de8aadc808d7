"""The parts of an .xlsx workbook and the cells of its sheets; workbook_styles.py and its like read the rest. Source of the format:
ECMA-376, part 1, clause 18.

The module needs the standard library alone: comparing.py runs it in a jail, because a workbook is a stranger's.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree  # nosec B405

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
Value = str | float | bool
MAX_CELLS = 100_000
"""Of a rule's range, and of what merged cells cover."""
Element = ElementTree.Element


@dataclass(frozen=True)
class Sheet:
    cells: Mapping[str, Value]
    """By coordinate, `B2`; empty ones are not there."""
    frozen: tuple[float, float]
    """Columns and rows."""
    zoom: float


class Workbook:
    """Raises ValueError, KeyError and what zipfile and ElementTree raise for what is not one."""

    def __init__(self, data: bytes) -> None:
        self._file = zipfile.ZipFile(io.BytesIO(data))
        self._parts: dict[str, Element] = {}
        sheets = self.part("xl/workbook.xml").find(f"{MAIN}sheets")
        targets = self.related("xl/workbook.xml")
        self._paths = {str(each.get("name")): targets[str(each.get(RELATION))][1] for each in (() if sheets is None else sheets)}
        shared = "xl/sharedStrings.xml"
        self._texts = [_text(each) for each in self.part(shared)] if self.has(shared) else []

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    @property
    def active(self) -> int:
        """Index of the sheet that was shown when the file was saved."""
        view = self.part("xl/workbook.xml").find(f"{MAIN}bookViews/{MAIN}workbookView")
        return 0 if view is None else int(view.get("activeTab", 0))

    def has(self, path: str) -> bool:
        return path in self._file.NameToInfo

    def path(self, name: str) -> str:
        """Of a sheet's part. Raises KeyError for a sheet that is not there."""
        return self._paths[name]

    def part(self, path: str) -> Element:
        if path not in self._parts:
            self._parts[path] = ElementTree.fromstring(self._file.read(path))  # nosec B314 # in a jail; expat limits what entities become
        return self._parts[path]

    def related(self, path: str) -> dict[str, tuple[str, str]]:
        """Kind (the last word of its type) and path of the parts that a part names, by id; none where it names none."""
        folder, name = posixpath.split(path)
        relations = f"{folder}/_rels/{name}.rels"
        return {
            str(each.get("Id")): (
                each.get("Type", "").rpartition("/")[2],
                posixpath.normpath(posixpath.join("/", folder, each.get("Target", ""))).lstrip("/"),
            )
            for each in (self.part(relations) if self.has(relations) else ())
        }

    def of_kind(self, path: str, kind: str) -> list[str]:
        """Paths of the parts of a kind that a part names."""
        return [target for found, target in self.related(path).values() if found == kind]

    def sheet(self, name: str) -> Sheet:
        root = self.part(self.path(name))
        cells = {at: value for at, cell in self.written_cells(name).items() if (value := self.value(cell)) not in (None, "")}
        view = next(root.iter(f"{MAIN}sheetView"), None)
        pane = next(root.iter(f"{MAIN}pane"), None)
        is_frozen = pane is not None and (pane.get("state") or "").startswith("frozen")
        frozen = (float(pane.get("xSplit", 0)), float(pane.get("ySplit", 0))) if pane is not None and is_frozen else (0.0, 0.0)
        return Sheet(cells=cells, frozen=frozen, zoom=float(view.get("zoomScale", 100)) if view is not None else 100.0)

    def written_cells(self, name: str) -> dict[str, Element]:
        """Every cell that the file has, the empty ones with nothing but a style too."""
        return {str(cell.get("r")): cell for cell in self.part(self.path(name)).iter(f"{MAIN}c")}

    def value(self, cell: Element) -> Value | None:
        """What was last shown; of a formula its result. None for an empty cell."""
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            inline = cell.find(f"{MAIN}is")
            return None if inline is None else _text(inline)
        found = cell.find(f"{MAIN}v")
        if found is None or found.text is None:
            return None
        if kind == "s":
            return self._texts[int(found.text)]
        return found.text == "1" if kind == "b" else float(found.text) if kind == "n" else found.text

    def merged(self, name: str) -> set[str]:
        """The cells that a merged range swallows: all of it but its first."""
        ranges = [str(each.get("ref")) for each in self.part(self.path(name)).iter(f"{MAIN}mergeCell")]
        return {at for each in ranges for at in list(coordinates([each]))[1:]}


def _text(item: Element) -> str:
    """Of a text in one piece or in several; how it is pronounced does not count."""
    direct = [each.text or "" for each in item.findall(f"{MAIN}t")]
    return "".join([*direct, *(each.text or "" for each in item.findall(f"{MAIN}r/{MAIN}t"))])


def is_on(value: str | None, default: bool = False) -> bool:
    """An attribute that says yes or no."""
    return default if value is None else value not in ("0", "false", "f")


@dataclass(frozen=True)
class Area:
    """A range of cells, its ends included, from 1."""

    left: int
    top: int
    right: int
    bottom: int

    def holds(self, other: Area) -> bool:
        return self.left <= other.left and self.top <= other.top and self.right >= other.right and self.bottom >= other.bottom


def area(text: str) -> Area:
    """`A1:B6`, or `C2`; dollar signs do not count. Raises ValueError for anything else."""
    match = re.fullmatch(r"([A-Z]{1,3})(\d{1,7})(?::([A-Z]{1,3})(\d{1,7}))?", text.replace("$", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a range of cells")
    return Area(column(match[1]), int(match[2]), column(match[3] or match[1]), int(match[4] or match[2]))


def coordinates(ranges: Sequence[str]) -> Iterator[str]:
    """Of ranges as `A1:B6` and `C2`, cell by cell. Raises ValueError for what is none, and for more than MAX_CELLS."""
    for each in ranges:
        found = area(each)
        if (found.right - found.left + 1) * (found.bottom - found.top + 1) > MAX_CELLS:
            raise ValueError(f"{each!r} has more than {MAX_CELLS:,} cells")
        rows = range(found.top, found.bottom + 1)
        yield from (f"{letters(at)}{row}" for at in range(found.left, found.right + 1) for row in rows)


def column(text: str) -> int:
    """Of its letters, from 1."""
    number = 0
    for letter in text:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def letters(number: int) -> str:
    """Of a column, from 1."""
    made = ""
    while number:
        number, rest = divmod(number - 1, 26)
        made = chr(ord("A") + rest) + made
    return made
