"""What lies on a sheet of a workbook beside its cells: charts, pivot tables, sparklines. Each is described by where its data is from and by
the properties that a rule asks for. Two sheets agree in them where the descriptions are equal.

The module needs the standard library alone: it runs in a jail (comparing.py). Source of the formats: ECMA-376, part 1, clauses 18.10 and
21.2; [MS-XLSX] 2.3.4 for sparklines. What is read and what is not is what OSWorld's evaluators look at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import dropwhile
from typing import Any

from sandbox.tasks.imported.workbook import MAIN, RELATION, Element, Workbook, area, is_on

_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_PLACED = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"
_SPARKLINE = "{http://schemas.microsoft.com/office/spreadsheetml/2009/9/main}sparkline"
_FORMULA = "{http://schemas.microsoft.com/office/excel/2006/main}"
CHART_PROPS = ("title", "legend", "anchor", "type", "direction", "xtitle", "ytitle", "ztitle")
PIVOT_PROPS = (
    "name",
    "show_total",
    "show_empty_row",
    "show_empty_col",
    "show_headers",
    "location",
    "filter",
    "selection",
    "ordered",
    "col_fields",
    "row_fields",
    "data_fields",
    "data_fields_name",
)
_AXES = {"xtitle": ("catAx", "dateAx"), "ytitle": ("valAx",), "ztitle": ("serAx",)}
_SHOWN = {"show_total": ("visualTotals", True), "show_empty_row": ("showEmptyRow", False), "show_empty_col": ("showEmptyCol", False)}
_SHOWN["show_headers"] = ("showHeaders", True)


def charts(book: Workbook, name: str, props: Collection[str]) -> dict[str, dict[str, Any]]:
    """By the ranges of their series; where one chart has series of several kinds, by those of the first kind. Raises ValueError for a
    property that a chart does not have."""
    made: dict[str, dict[str, Any]] = {}
    for anchor, chart in _charts(book, name):
        plot = chart.find(f"{_CHART}plotArea")
        kind = next((each for each in (() if plot is None else plot) if each.tag.endswith("Chart")), None)
        if plot is None or kind is None:
            raise ValueError("a chart shows nothing")
        series = sorted(kind.findall(f"{_CHART}ser"), key=lambda each: int(_said(each, "order") or 0))
        source = ";".join(f"{_range(each, 'val')},{_range(each, 'cat')}" for each in series)
        made[source] = {prop: _chart_prop(prop, chart, plot, kind, anchor) for prop in props}
    return made


def _charts(book: Workbook, name: str) -> Iterator[tuple[Element, Element]]:
    """Where each chart of a sheet is placed, and the chart."""
    for drawing in book.of_kind(book.path(name), "drawing"):
        targets = book.related(drawing)
        for anchor in book.part(drawing):
            found = anchor.find(f"{_PLACED}graphicFrame/{_DRAWING}graphic/{_DRAWING}graphicData/{_CHART}chart")
            chart = None if found is None else book.part(targets[str(found.get(RELATION))][1]).find(f"{_CHART}chart")
            if chart is not None:
                yield anchor, chart


def _said(element: Element, name: str) -> str | None:
    found = element.find(f"{_CHART}{name}")
    return None if found is None else found.get("val")


def _range(series: Element, role: str) -> str:
    """Where a series' values or categories are, as the formula says; empty where they are nowhere."""
    found = (series.findtext(f"{_CHART}{role}/{_CHART}{kind}/{_CHART}f") for kind in ("numRef", "strRef"))
    return next((each for each in found if each is not None), "")


def _chart_prop(prop: str, chart: Element, plot: Element, kind: Element, anchor: Element) -> Any:
    match prop:
        case "title":
            return _title(chart)
        case "legend":
            legend = chart.find(f"{_CHART}legend")
            return None if legend is None else _said(legend, "legendPos") or "r"
        case "type":
            return kind.tag.removeprefix(_CHART)
        case "direction":
            if kind.tag not in (f"{_CHART}barChart", f"{_CHART}bar3DChart"):
                raise ValueError("a chart without bars has no direction")
            return _said(kind, "barDir") or "col"
        case "anchor":
            return _place(anchor)
    return _title(_axis(prop, plot, kind))


def _title(of: Element | None) -> str | None:
    """The first run of its first paragraph, empty for a title that is a cell's text. None for no title, and for one that the program makes
    up."""
    text = None if of is None else of.find(f"{_CHART}title/{_CHART}tx")
    paragraph = None if text is None else text.find(f"{_CHART}rich/{_DRAWING}p")
    run = None if paragraph is None else paragraph.find(f"{_DRAWING}r/{_DRAWING}t")
    return None if text is None else "" if run is None else run.text or ""


def _axis(prop: str, plot: Element, kind: Element) -> Element | None:
    axes = {_said(each, "axId"): each for each in plot if each.tag.endswith("Ax")}
    own = [axes[each.get("val")] for each in kind.findall(f"{_CHART}axId") if each.get("val") in axes]
    if kind.tag in (f"{_CHART}scatterChart", f"{_CHART}bubbleChart"):
        return dict(zip(("xtitle", "ytitle"), own, strict=False)).get(prop)
    return next((each for each in own if each.tag.removeprefix(_CHART) in _AXES[prop]), None)


def _place(anchor: Element) -> list[Any]:
    if anchor.tag != f"{_PLACED}twoCellAnchor":
        raise ValueError("a chart is not placed between two cells")
    places = [anchor.findtext(f"{_PLACED}{corner}/{_PLACED}{line}") for corner in ("from", "to") for line in ("col", "row")]
    return [anchor.get("editAs"), *places]


def pivot_tables(book: Workbook, name: str, props: Collection[str]) -> dict[str, dict[str, Any]]:
    """By the range that they are of, as far as its columns take part. Raises ValueError for one that is of no range."""
    made: dict[str, dict[str, Any]] = {}
    for path in book.of_kind(book.path(name), "pivotTable"):
        table = book.part(path)
        fields = [_items(each) for each in table.findall(f"{MAIN}pivotFields/{MAIN}pivotField")]
        used = list(dropwhile(lambda items: not items, fields))
        left = len(fields) - len(used)
        while used and not used[-1]:
            used.pop()
        made[_source(book, path, left, len(fields) - left - len(used))] = _pivot(table, used, left, props)
    return made


def _items(field: Element) -> list[tuple[bool | None, int]]:
    """Whether each item is hidden (None where the file does not say) and its number."""
    items = field.findall(f"{MAIN}items/{MAIN}item")
    return [(None if each.get("h") is None else is_on(each.get("h")), int(each.attrib["x"])) for each in items if "x" in each.attrib]


def _source(book: Workbook, path: str, left: int, right: int) -> str:
    (cache,) = book.of_kind(path, "pivotCacheDefinition")
    source = book.part(cache).find(f"{MAIN}cacheSource")
    of = None if source is None else source.find(f"{MAIN}worksheetSource")
    if source is None or of is None or "ref" not in of.attrib:
        raise ValueError("a pivot table is not of a range of cells")
    whole = area(of.attrib["ref"])
    return f"{source.get('type')};{whole.left + left},{whole.top}:{whole.right - right},{whole.bottom};{of.get('sheet')}"


def _pivot(table: Element, used: list[list[tuple[bool | None, int]]], left: int, props: Collection[str]) -> dict[str, Any]:
    def indices(group: str, field: str, number: str) -> list[int]:
        return [int(each.get(number, -1)) for each in table.findall(f"{MAIN}{group}/{MAIN}{field}")]

    made: dict[str, Any] = {prop: is_on(table.get(name), default) for prop, (name, default) in _SHOWN.items() if prop in props}
    if "name" in props:
        made["name"] = table.get("name")
    if "location" in props:
        location = table.find(f"{MAIN}location")
        made["location"] = None if location is None else dict(location.attrib)
    if "filter" in props or "selection" in props:
        made["selection"] = used if "ordered" in props else [set(items) for items in used]
    if "filter" in props:
        made["filter_fields"] = set(indices("pageFields", "pageField", "fld"))
    for prop, group in (("col_fields", "colFields"), ("row_fields", "rowFields")):
        if prop in props:
            made[prop] = [index - left for index in indices(group, "field", "x")]
    if "data_fields" in props:
        made["data_fields"] = [_data_field(each, left, props) for each in table.findall(f"{MAIN}dataFields/{MAIN}dataField")]
    return made


def _data_field(field: Element, left: int, props: Collection[str]) -> tuple[Any, ...]:
    name = field.get("name") if "data_fields_name" in props else None
    return int(field.get("fld", -1)) - left, name, field.get("subtotal", "sum"), field.get("showDataAs", "normal")


def sparklines(book: Workbook, name: str) -> Mapping[str | None, str | None]:
    """The range of each, by the cell that it is in."""
    found = book.part(book.path(name)).iter(_SPARKLINE)
    return {each.findtext(f"{_FORMULA}sqref"): each.findtext(f"{_FORMULA}f") for each in found}
