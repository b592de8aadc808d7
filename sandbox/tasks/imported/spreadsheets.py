"""The cells of an .xlsx workbook, and OSWorld's `compare_table` over them: names of sheets, values of all cells or of some, what is frozen,
how large it is shown. Styles, charts, pivot tables and filters are not read. Source of the format: ECMA-376, part 1, clause 18.

The module needs the standard library alone: comparing.py runs it in a jail, because a workbook is a stranger's.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree  # nosec B405

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
Value = str | float | bool
PRECISION = 4
"""Decimal places that count, where a rule does not say."""
SHEET = re.compile(r"(RI|EI)\d+|(RN|EN).+", re.DOTALL)
"""RI0: the first sheet of the result, EI0 of what is expected; RNname, ENname: by name. A number is one of the result."""
TABLE_RULES: Mapping[str, tuple[str, ...]] = {
    "sheet_name": (),
    "sheet_data": ("sheet_idx0", "sheet_idx1", "precision", "ignore_case"),
    "freeze": ("sheet_idx0", "sheet_idx1"),
    "zoom": ("sheet_idx", "method", "ref"),
    "check_cell": ("sheet_idx", "coordinate", "props"),
    "sheet_fuzzy": ("sheet_idx0", "sheet_idx1", "rules"),
}
"""Kinds of rules, and the fields of each."""
FUZZY_FIELDS = ("range", "type", "ignore_case", "ignore_chars", "trim_leadings", "trim_trailings", "normalization")
FUZZY_TYPES = ("includes", "included_by", "exact_match")
METHODS = ("eq", "ne", "le", "lt", "ge", "gt")
MAX_CELLS = 100_000
"""Of a rule's range."""


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
        relations = {each.get("Id"): each.get("Target", "") for each in self._part("xl/_rels/workbook.xml.rels")}
        sheets = self._part("xl/workbook.xml").find(f"{_MAIN}sheets")
        self._paths = {
            str(each.get("name")): posixpath.normpath(posixpath.join("/xl", relations[each.get(_RELATION)])).lstrip("/")
            for each in (() if sheets is None else sheets)
        }
        shared = "xl/sharedStrings.xml"
        self._texts = [_text(each) for each in self._part(shared)] if shared in self._file.namelist() else []

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    def sheet(self, name: str) -> Sheet:
        root = self._part(self._paths[name])
        cells = {str(cell.get("r")): value for cell in root.iter(f"{_MAIN}c") if (value := self._value(cell)) not in (None, "")}
        view = next(root.iter(f"{_MAIN}sheetView"), None)
        pane = next(root.iter(f"{_MAIN}pane"), None)
        is_frozen = pane is not None and (pane.get("state") or "").startswith("frozen")
        frozen = (float(pane.get("xSplit", 0)), float(pane.get("ySplit", 0))) if pane is not None and is_frozen else (0.0, 0.0)
        return Sheet(cells=cells, frozen=frozen, zoom=float(view.get("zoomScale", 100)) if view is not None else 100.0)

    def _part(self, name: str) -> ElementTree.Element:
        return ElementTree.fromstring(self._file.read(name))  # nosec B314 # in a jail; expat limits what entities become

    def _value(self, cell: ElementTree.Element) -> Value | None:
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            inline = cell.find(f"{_MAIN}is")
            return None if inline is None else _text(inline)
        found = cell.find(f"{_MAIN}v")
        if found is None or found.text is None:
            return None
        if kind == "s":
            return self._texts[int(found.text)]
        return found.text == "1" if kind == "b" else float(found.text) if kind == "n" else found.text


def _text(item: ElementTree.Element) -> str:
    """Of a text in one piece or in several; how it is pronounced does not count."""
    direct = [each.text or "" for each in item.findall(f"{_MAIN}t")]
    return "".join([*direct, *(each.text or "" for each in item.findall(f"{_MAIN}r/{_MAIN}t"))])


def compare_table(value: Any, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Why a rule of `rules` does not hold; None where all do."""
    try:
        result = Workbook(value)
        wanted = None if expected is None else Workbook(expected)
        reasons = [reason for rule in options["rules"] if (reason := _broken(rule, result, wanted)) is not None]
    except zipfile.BadZipFile:
        return "is not a workbook"
    except ElementTree.ParseError as error:
        return f"is not a workbook: {error}"
    except (KeyError, IndexError) as error:
        return f"lacks a sheet or a part: {error}"
    return "; ".join(reasons) or None


def _broken(rule: Mapping[str, Any], result: Workbook, wanted: Workbook | None) -> str | None:
    def sheet(field: str) -> Sheet:
        return _sheet(rule[field], result, wanted)

    match rule["type"]:
        case "sheet_name":
            return None if wanted is not None and result.names == wanted.names else f"has the sheets {result.names}"
        case "sheet_data":
            settings = rule.get("precision", PRECISION), bool(rule.get("ignore_case"))
            return _different(_rounded(sheet("sheet_idx0").cells, *settings), _rounded(sheet("sheet_idx1").cells, *settings))
        case "freeze":
            return None if sheet("sheet_idx0").frozen == sheet("sheet_idx1").frozen else f"is frozen at {sheet('sheet_idx0').frozen}"
        case "zoom":
            found = sheet("sheet_idx").zoom
            return None if holds(rule["method"], found, rule["ref"]) else f"is shown at {found:g} %"
        case "check_cell":
            cell = sheet("sheet_idx").cells.get(rule["coordinate"])
            test = rule["props"]["value"]
            return None if holds(test["method"], cell, test["ref"]) else f"{rule['coordinate']} is {cell!r}"
    first, second = sheet("sheet_idx0").cells, sheet("sheet_idx1").cells
    return next((why for each in rule["rules"] if (why := _fuzzy(each, first, second)) is not None), None)


def _sheet(index: str | int, result: Workbook, wanted: Workbook | None) -> Sheet:
    index = f"RI{index}" if isinstance(index, int) else index
    book = result if index.startswith("R") else wanted
    if book is None:
        raise KeyError(index)
    return book.sheet(book.names[int(index[2:])] if index[1] == "I" else index[2:])


def _rounded(cells: Mapping[str, Value], precision: int, ignores_case: bool) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for name, value in cells.items():
        if isinstance(value, float):
            made[name] = round(value, precision)
        else:
            made[name] = value.lower() if ignores_case and isinstance(value, str) else value
    return made


def _different(found: Mapping[str, Value], wanted: Mapping[str, Value]) -> str | None:
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if not names:
        return None
    return f"{names[0]} is {found.get(names[0])!r}, not {wanted.get(names[0])!r}" + (f", and {len(names) - 1} more" if names[1:] else "")


def holds(method: str, value: Any, ref: Any) -> bool:
    """A value against a rule: eq, ne, le, lt, ge, gt, `approx:0.1`, and `re` with flags, `re.I`."""
    kind, _, rest = method.partition(":")
    if kind == "approx":
        return isinstance(value, (int, float)) and abs(value - ref) <= float(rest)
    if kind.partition(".")[0] == "re":
        flags = re.RegexFlag(0)
        for name in kind.split(".")[1:]:
            flags |= getattr(re, name)
        return isinstance(value, str) and re.search(ref, value, flags) is not None
    if kind in ("eq", "ne"):
        return bool((value == ref) == (kind == "eq"))
    if not isinstance(value, type(ref)) and not (isinstance(value, (int, float)) and isinstance(ref, (int, float))):
        return False
    return bool({"le": value <= ref, "lt": value < ref, "ge": value >= ref, "gt": value > ref}[kind])


def _fuzzy(rule: Mapping[str, Any], first: Mapping[str, Value], second: Mapping[str, Value]) -> str | None:
    for name in coordinates(rule["range"]):
        found, wanted = _smoothed(first.get(name), rule), _smoothed(second.get(name), rule)
        is_so = {"includes": wanted in found, "included_by": found in wanted, "exact_match": found == wanted}[rule["type"]]
        if not is_so:
            return f"{name} is {found!r}, which is not as wanted: {rule['type']} {wanted!r}"
    return None


def _smoothed(value: Value | None, rule: Mapping[str, Any]) -> str:
    text = "" if value is None else str(value)
    for before, after in rule.get("normalization", ()):
        text = text.replace(before, after)
    text = text.lstrip(rule["trim_leadings"]) if "trim_leadings" in rule else text
    text = text.rstrip(rule["trim_trailings"]) if "trim_trailings" in rule else text
    text = "".join(character for character in text if character not in rule.get("ignore_chars", ""))
    return text.lower() if rule.get("ignore_case") else text


def coordinates(ranges: Sequence[str]) -> Iterator[str]:
    """Of ranges as `A1:B6` and `C2`, cell by cell. Raises ValueError for what is none, and for more than MAX_CELLS."""
    for each in ranges:
        match = re.fullmatch(r"([A-Z]{1,3})(\d{1,7})(?::([A-Z]{1,3})(\d{1,7}))?", each)
        if match is None:
            raise ValueError(f"{each!r} is not a range of cells")
        left, top = _column(match[1]), int(match[2])
        right, bottom = _column(match[3] or match[1]), int(match[4] or match[2])
        if (right - left + 1) * (bottom - top + 1) > MAX_CELLS:
            raise ValueError(f"{each!r} has more than {MAX_CELLS:,} cells")
        yield from (f"{_letters(column)}{row}" for column in range(left, right + 1) for row in range(top, bottom + 1))


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def _letters(column: int) -> str:
    made = ""
    while column:
        column, rest = divmod(column - 1, 26)
        made = chr(ord("A") + rest) + made
    return made
