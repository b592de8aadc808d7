"""OSWorld's `compare_table`: rules about workbooks, each of which must hold. What a rule is about, workbook.py and its kin read.

The module needs the standard library and those alone: comparing.py runs it in a jail, because a workbook is a stranger's.
"""

from __future__ import annotations

import re
import unicodedata
import zipfile
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree  # nosec B405

from sandbox.tasks.imported.workbook import Area, Sheet, Value, Workbook, area, coordinates
from sandbox.tasks.imported.workbook_objects import charts, pivot_tables, sparklines
from sandbox.tasks.imported.workbook_settings import columns, filters, rows, validations
from sandbox.tasks.imported.workbook_styles import cell_style, styles

PRECISION = 4
"""Decimal places that count, where a rule does not say."""
SHEET = re.compile(r"(RI|EI)\d+|(RN|EN).+", re.DOTALL)
"""RI0: the first sheet of the result, EI0 of what is expected; RNname, ENname: by name. A number is one of the result."""
_BOTH = ("sheet_idx0", "sheet_idx1")
TABLE_RULES: Mapping[str, tuple[str, ...]] = {
    "sheet_name": (),
    "sheet_data": (*_BOTH, "precision", "ignore_case"),
    "freeze": _BOTH,
    "zoom": ("sheet_idx", "method", "ref"),
    "check_cell": ("sheet_idx", "coordinate", "props"),
    "sheet_fuzzy": (*_BOTH, "rules"),
    "chart": (*_BOTH, "chart_props"),
    "pivot_table": (*_BOTH, "pivot_props"),
    "style": (*_BOTH, "props"),
    "row_props": (*_BOTH, "props"),
    "col_props": (*_BOTH, "props"),
    "filter": _BOTH,
    "sparkline": _BOTH,
    "data_validation": ("sheet_idx", "dv_props"),
}
"""Kinds of rules, and the fields of each."""
FUZZY_FIELDS = ("range", "type", "threshold", "ignore_case", "ignore_chars", "trim_leadings", "trim_trailings", "normalization")
FUZZY_TYPES = ("includes", "included_by", "exact_match", "fuzzy_match")
THRESHOLD = 85.0
"""Percent, of a fuzzy_match that does not say."""
METHODS = ("eq", "ne", "le", "lt", "ge", "gt", "str_list_eq", "str_set_eq")
RANGES = "spreadsheet_range"
"""The method of a validation's ranges: they cover the first of two texts and lie in the second."""


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


def conference_cities(value: Any, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Cells from C2 down on the sheet that was last looked at: each holds one of its texts, letter case, accents and punctuation aside."""
    try:
        book = Workbook(value)
        cells = book.sheet(book.names[book.active]).cells
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, IndexError) as error:
        return f"is not a workbook: {error}"
    for row, each in enumerate(expected["expected"], start=2):
        found = _plain(cells.get(f"C{row}", ""))
        if not any(_plain(text) in found for text in ([each] if isinstance(each, str) else each)):
            return f"C{row} is {cells.get(f'C{row}')!r}, not {each!r}"
    return None


def _plain(text: Any) -> str:
    letters = (letter for letter in unicodedata.normalize("NFKD", str(text)) if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", " ", "".join(letters).lower()).strip()


def _broken(rule: Mapping[str, Any], result: Workbook, wanted: Workbook | None) -> str | None:
    def place(field: str) -> tuple[Workbook, str]:
        return _place(rule[field], result, wanted)

    def sheet(field: str) -> Sheet:
        book, name = place(field)
        return book.sheet(name)

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
            return _cell(rule, *place("sheet_idx"))
        case "data_validation":
            return _validated(rule["dv_props"], validations(*place("sheet_idx")))
        case "sheet_fuzzy":
            first, second = sheet("sheet_idx0").cells, sheet("sheet_idx1").cells
            return next((why for each in rule["rules"] if (why := _fuzzy(each, first, second)) is not None), None)
    described = [_described(rule, *place(field)) for field in _BOTH]
    return None if described[0] == described[1] else f"differs by the rule {rule['type']}: {_shortly(*described)}"


def _described(rule: Mapping[str, Any], book: Workbook, name: str) -> Mapping[Any, Any]:
    """What of a sheet a rule compares with that of another, whole."""
    match rule["type"]:
        case "chart":
            return charts(book, name, rule.get("chart_props", ()))
        case "pivot_table":
            return pivot_tables(book, name, rule.get("pivot_props", ()))
        case "style":
            return styles(book, name, rule["props"])
        case "row_props":
            return rows(book, name, rule["props"])
        case "col_props":
            return columns(book, name, rule["props"])
        case "filter":
            return filters(book, name)
    return sparklines(book, name)


def _shortly(found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> str:
    """The first thing in which two descriptions differ."""
    name = next(name for name in {**wanted, **found} if name not in found or name not in wanted or found[name] != wanted[name])
    said = [repr(each[name]) if name in each else "nothing" for each in (found, wanted)]
    return f"{str(name)[:80] or 'its extent'} is {said[0][:120]}, not {said[1][:120]}"


def _cell(rule: Mapping[str, Any], book: Workbook, name: str) -> str | None:
    """Why a property of a cell is not as it should be."""
    at = rule["coordinate"]
    for prop, test in rule["props"].items():
        found = book.sheet(name).cells.get(at) if prop == "value" else cell_style(book, name, at, prop)
        if not holds(test["method"], found, test["ref"]):
            return f"{at} is {found!r}" if prop == "value" else f"{prop} of {at} is {found!r}"
    return None


def _validated(wanted: Any, found: list[dict[str, Any]]) -> str | None:
    """There are as many validations as are asked for, or more, and each is one of those that are."""
    if len(found) < len(wanted):
        return f"has {len(found)} validations, not {len(wanted)}"
    others = [each for each in found if not any(_matches(each, tests) for tests in wanted)]
    return f"has a validation that is not asked for, of {others[0]['formula1']!r}" if others else None


def _matches(validation: Mapping[str, Any], tests: Mapping[str, Any]) -> bool:
    def is_so(prop: str, method: str, ref: Any) -> bool:
        return _within(validation[prop], *ref) if method == RANGES else holds(method, validation[prop], ref)

    return all(is_so(prop, test["method"], test["ref"]) for prop, test in tests.items())


def _within(found: list[Area], least: str, most: str) -> bool:
    """Ranges that cover one text of ranges and lie in another."""
    inner, outer = ([area(each) for each in text.split()] for text in (least, most))
    return _covers(found, inner) and _covers(outer, found)


def _covers(large: list[Area], small: list[Area]) -> bool:
    return all(any(each.holds(part) for each in large) for part in small)


def _place(index: str | int, result: Workbook, wanted: Workbook | None) -> tuple[Workbook, str]:
    index = f"RI{index}" if isinstance(index, int) else index
    book = result if index.startswith("R") else wanted
    if book is None:
        raise KeyError(index)
    return book, book.names[int(index[2:])] if index[1] == "I" else index[2:]


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
    """A value against a rule: eq, ne, le, lt, ge, gt; `approx:0.1`; `re` with flags, `re.I`; `range.te` (t: without the end, e: with it);
    `str_list_eq`, `str_set_eq`: a text of items between commas, in quotes or not."""
    kind, _, rest = method.partition(":")
    if kind == "approx":
        return isinstance(value, (int, float)) and abs(value - ref) <= float(rest)
    kind, _, rest = kind.partition(".")
    if kind == "re":
        flags = re.RegexFlag(0)
        for name in rest.split(".") if rest else ():
            flags |= getattr(re, name)
        return isinstance(value, str) and re.search(ref, value, flags) is not None
    if kind == "range":
        return holds(f"l{rest[0]}", ref[0], value) and holds(f"l{rest[1]}", value, ref[1])
    if kind in ("str_list_eq", "str_set_eq"):
        items = value.strip("\"'").split(",") if isinstance(value, str) else None
        return items is not None and bool(items == list(ref) if kind == "str_list_eq" else set(items) == set(ref))
    if kind in ("eq", "ne"):
        return bool((value == ref) == (kind == "eq"))
    if not isinstance(value, type(ref)) and not (isinstance(value, (int, float)) and isinstance(ref, (int, float))):
        return False
    return bool({"le": value <= ref, "lt": value < ref, "ge": value >= ref, "gt": value > ref}[kind])


def _fuzzy(rule: Mapping[str, Any], first: Mapping[str, Value], second: Mapping[str, Value]) -> str | None:
    for name in coordinates(rule["range"]):
        found, wanted = _smoothed(first.get(name), rule), _smoothed(second.get(name), rule)
        if not _alike(rule, found, wanted):
            return f"{name} is {found!r}, which is not as wanted: {rule['type']} {wanted!r}"
    return None


def _alike(rule: Mapping[str, Any], found: str, wanted: str) -> bool:
    match rule["type"]:
        case "includes":
            return wanted in found
        case "included_by":
            return found in wanted
        case "fuzzy_match":
            return likeness(found, wanted) >= float(rule.get("threshold", THRESHOLD))
    return found == wanted


def likeness(first: str, second: str) -> float:
    """Percent: twice the length of the longest common subsequence, of both lengths together; 100 for two empty texts."""
    row = [0] * (len(second) + 1)
    for letter in first:
        before = row
        row = [0]
        for at, other in enumerate(second):
            row.append(before[at] + 1 if letter == other else max(before[at + 1], row[at]))
    return 200.0 * row[-1] / (len(first) + len(second)) if first or second else 100.0


def _smoothed(value: Value | None, rule: Mapping[str, Any]) -> str:
    """An empty cell is the text None, as for OSWorld: not a part of every other."""
    text = str(value)
    for before, after in rule.get("normalization", ()):
        text = text.replace(before, after)
    text = text.lstrip(rule["trim_leadings"]) if "trim_leadings" in rule else text
    text = text.rstrip(rule["trim_trailings"]) if "trim_trailings" in rule else text
    text = "".join(character for character in text if character not in rule.get("ignore_chars", ""))
    return text.lower() if rule.get("ignore_case") else text
