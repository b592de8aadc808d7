"""What a sheet of a workbook says of its rows and columns, of its filter and of what may be entered into cells.

The module needs the standard library alone: it runs in a jail (comparing.py). Source of the format: ECMA-376, part 1, clause 18.3. A thing
that the file does not say has the value that the format gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sandbox.tasks.imported.workbook import MAIN, Area, Element, Workbook, area, is_on, letters

DEFAULT_WIDTH = 13.0
_Reader = Callable[[Element], Any]
_ROW: Mapping[str, _Reader] = {
    "hidden": lambda row: is_on(row.get("hidden")),
    "collapsed": lambda row: is_on(row.get("collapsed")),
    "height": lambda row: None if row.get("ht") is None else float(row.attrib["ht"]),
}
_COLUMN: Mapping[str, _Reader] = {
    "width": lambda column: float(column.get("width", DEFAULT_WIDTH)),
    "auto_size": lambda column: is_on(column.get("bestFit")),
    "hidden": lambda column: is_on(column.get("hidden")),
    "collapsed": lambda column: is_on(column.get("collapsed")),
    "min": lambda column: int(column.attrib["min"]),
    "max": lambda column: int(column.attrib["max"]),
}
ROW_PROPS, COLUMN_PROPS = tuple(_ROW), tuple(_COLUMN)
_SWITCHES = ("allowBlank", "showDropDown", "showInputMessage", "showErrorMessage")
_TEXTS = ("type", "operator", "error", "errorTitle", "errorStyle", "prompt", "promptTitle", "imeMode")
VALIDATION_PROPS = ("ranges", "formula1", "formula2", *_SWITCHES, *_TEXTS)


def rows(book: Workbook, name: str, props: Collection[str]) -> dict[str, dict[str, Any]]:
    """By number, those of which the file says more than where their cells are."""
    found = book.part(book.path(name)).iter(f"{MAIN}row")
    differing = [row for row in found if any(each[0] != "{" for each in {*row.attrib} - {"r", "spans"})]
    return {str(row.get("r")): {prop: _ROW[prop](row) for prop in props} for row in differing}


def columns(book: Workbook, name: str, props: Collection[str]) -> dict[str, dict[str, Any]]:
    """By the letters of the first of several that are alike."""
    found = book.part(book.path(name)).iter(f"{MAIN}col")
    return {letters(int(column.attrib["min"])): {prop: _COLUMN[prop](column) for prop in props} for column in found}


def filters(book: Workbook, name: str) -> dict[str, Any]:
    """The filter of a sheet: its range, which rows it lets through, how it sorts; nothing where there is none."""
    found = book.part(book.path(name)).find(f"{MAIN}autoFilter")
    if found is None:
        return {}
    by_column = [_filter_column(each) for each in found.findall(f"{MAIN}filterColumn")]
    sorting = found.find(f"{MAIN}sortState")
    return {
        "ref": found.get("ref"),
        "columns": sorted(by_column, key=lambda each: int(each["column"])),
        "sort": None if sorting is None else _sorting(sorting),
    }


def _filter_column(column: Element) -> dict[str, Any]:
    made: dict[str, Any] = {
        "column": int(column.attrib["colId"]),
        "is_hidden": is_on(column.get("hiddenButton")),
        "is_shown": is_on(column.get("showButton"), True),
    }
    chosen, custom = column.find(f"{MAIN}filters"), column.find(f"{MAIN}customFilters")
    if chosen is not None:
        made["blank"] = None if chosen.get("blank") is None else is_on(chosen.get("blank"))
        made["values"] = {each.get("val") for each in chosen.findall(f"{MAIN}filter")}
    if custom is not None:
        made["is_all"] = is_on(custom.get("and"))
        made["conditions"] = {(each.get("operator", "equal"), each.get("val")) for each in custom.findall(f"{MAIN}customFilter")}
    return made


def _sorting(state: Element) -> tuple[Any, ...]:
    conditions = [sorted(each.attrib.items()) for each in state.findall(f"{MAIN}sortCondition")]
    return is_on(state.get("columnSort")), is_on(state.get("caseSensitive")), state.get("sortMethod"), state.get("ref"), conditions


def validations(book: Workbook, name: str) -> list[dict[str, Any]]:
    """What may be entered, and where: each with VALIDATION_PROPS, its ranges as areas."""
    return [_validation(each) for each in book.part(book.path(name)).findall(f"{MAIN}dataValidations/{MAIN}dataValidation")]


def _validation(element: Element) -> dict[str, Any]:
    ranges: list[Area] = [area(each) for each in element.get("sqref", "").split()]
    made: dict[str, Any] = {"ranges": ranges, **{prop: is_on(element.get(prop)) for prop in _SWITCHES}}
    return (
        made | {prop: element.get(prop) for prop in _TEXTS} | {prop: element.findtext(f"{MAIN}{prop}") for prop in ("formula1", "formula2")}
    )
