"""How cells of a workbook look: number format, font, fill, merged or not, and what conditional formats make of them.

The module needs the standard library alone: it runs in a jail (comparing.py). Source of the format: ECMA-376, part 1, clauses 18.8 and
18.3.1.18. Colours are those that the file writes as numbers: one of its palette or theme is PALETTE, whichever it is, as for OSWorld.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.tasks.imported.workbook import MAIN, Element, Value, Workbook, area, is_on
from sandbox.tasks.imported.workbook_formulas import Failed, Formula, Unsupported, holds, is_true

PALETTE = "a colour of the palette"
NO_COLOUR = "00000000"
STYLE_PROPS = (
    "number_format",
    "font_name",
    "font_family",
    "font_color",
    "font_bold",
    "font_italic",
    "font_underline",
    "font_size",
    "fill_type",
    "bgcolor",
    "fgcolor",
    "merge",
)
"""Those of the font and the number's format are None for an empty cell; aRGB colours are texts of eight digits; `fgcolor` is `bgcolor`."""
_BUILT_IN: Mapping[int, str] = {
    0: "General",
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    5: '"$"#,##0_);("$"#,##0)',
    6: '"$"#,##0_);[Red]("$"#,##0)',
    7: '"$"#,##0.00_);("$"#,##0.00)',
    8: '"$"#,##0.00_);[Red]("$"#,##0.00)',
    9: "0%",
    10: "0.00%",
    11: "0.00E+00",
    12: "# ?/?",
    13: "# ??/??",
    37: "#,##0_);(#,##0)",
    38: "#,##0_);[Red](#,##0)",
    39: "#,##0.00_);(#,##0.00)",
    40: "#,##0.00_);[Red](#,##0.00)",
    41: r'_(* #,##0_);_(* \(#,##0\);_(* "-"_);_(@_)',
    42: r'_("$"* #,##0_);_("$"* \(#,##0\);_("$"* "-"_);_(@_)',
    43: r'_(* #,##0.00_);_(* \(#,##0.00\);_(* "-"??_);_(@_)',
    44: r'_("$"* #,##0.00_)_("$"* \(#,##0.00\)_("$"* "-"??_)_(@_)',
    48: "##0.0E+0",
    49: "@",
}
"""By number (clause 18.8.30), those of numbers; 14 to 22 and 45 to 47 are of dates and times."""
_DATES = frozenset((*range(14, 23), *range(45, 48)))
_OPERATORS = {"equal": "=", "notEqual": "<>", "lessThan": "<", "lessThanOrEqual": "<=", "greaterThan": ">", "greaterThanOrEqual": ">="}
_BY_FORMULA = frozenset(("expression", "containsText", "notContainsText", "beginsWith", "endsWith", "containsErrors", "notContainsErrors"))


@dataclass(frozen=True)
class _Sheet:
    """What is needed of a sheet to say how its cells look. Lists are those of the workbook's styles, by their numbers there."""

    book: Workbook
    cells: Mapping[str, Element]
    merged: frozenset[str]
    formats: Sequence[Element]
    fonts: Sequence[Element]
    fills: Sequence[Element]
    changes: Sequence[Element]
    codes: Mapping[int, str]
    """Number formats that the workbook defines."""

    def value(self, at: str) -> Value | None:
        cell = self.cells.get(at)
        return None if cell is None else self.book.value(cell)


def _sheet(book: Workbook, name: str) -> _Sheet:
    styles = book.part("xl/styles.xml")

    def listed(name: str) -> list[Element]:
        found = styles.find(f"{MAIN}{name}")
        return [] if found is None else list(found)

    merged = frozenset(book.merged(name))
    return _Sheet(
        book=book,
        cells={at: cell for at, cell in book.written_cells(name).items() if at not in merged},
        merged=merged,
        formats=listed("cellXfs"),
        fonts=listed("fonts"),
        fills=listed("fills"),
        changes=listed("dxfs"),
        codes={int(each.attrib["numFmtId"]): each.get("formatCode", "") for each in listed("numFmts")},
    )


def styles(book: Workbook, name: str, props: Collection[str]) -> dict[str, Any]:
    """Properties of every cell that is written or merged, by coordinate, and how far the cells reach. Cells that look as one that is not
    written are left out."""
    sheet = _sheet(book, name)
    made = {at: tuple(_prop(prop, sheet, at) for prop in props) for at in (*sheet.cells, *sheet.merged)}
    for at, changed in _conditional(sheet, name):
        made[at] = tuple(_changed(prop, sheet, at, changed) for prop in props)
    empty = tuple(_prop(prop, sheet, "") for prop in props)
    areas = [area(at) for at in (*sheet.cells, *sheet.merged)]
    reach = max((each.right for each in areas), default=0), max((each.bottom for each in areas), default=0)
    return {"": (*reach, empty), **{at: found for at, found in made.items() if found != empty}}


def cell_style(book: Workbook, name: str, at: str, prop: str) -> Any:
    return _prop(prop, _sheet(book, name), at)


def _prop(prop: str, sheet: _Sheet, at: str) -> Any:
    """Of a cell as it is formatted. One that is not written, or that a merged range swallows, has the workbook's first font and fill."""
    if prop == "merge":
        return at in sheet.merged
    cell = sheet.cells.get(at)
    look: Mapping[str, str] = sheet.formats[int(cell.get("s", 0))].attrib if cell is not None and sheet.formats else {}
    if prop in ("fill_type", "bgcolor", "fgcolor"):
        return _fill(prop, sheet.fills[int(look.get("fillId", 0))] if sheet.fills else None, "fgColor")
    if cell is None or not _is_filled(cell):
        return None
    if prop == "number_format":
        return _number_format(sheet.codes, cell, int(look.get("numFmtId", 0)))
    return _font(prop, sheet.fonts[int(look.get("fontId", 0))])


def _is_filled(cell: Element) -> bool:
    return any(cell.find(f"{MAIN}{name}") is not None for name in ("f", "is")) or bool(cell.findtext(f"{MAIN}v"))


def _number_format(codes: Mapping[int, str], cell: Element, number: int) -> str | None:
    """Of a number that is written as such: not of a formula's result, a date, a text."""
    code = codes.get(number)
    is_date = number in _DATES if code is None else _is_date(code)
    if cell.find(f"{MAIN}f") is not None or cell.get("t", "n") != "n" or is_date:
        return None
    return _BUILT_IN.get(number, "General") if code is None else code


def _is_date(code: str) -> bool:
    """A letter of days or times outside of quotes and of brackets that are not of hours, minutes or seconds, in its first part."""
    first = re.sub(r'".*?"|\[(?!hh?\]|mm?\]|ss?\])[^\]]*\]', "", code.split(";")[0])
    return re.search(r"(?<![_\\])[dmhys]", first, re.IGNORECASE) is not None


def _font(prop: str, font: Element) -> Any:
    def said(name: str) -> str | None:
        found = font.find(f"{MAIN}{name}")
        return None if found is None else found.get("val", "")

    match prop:
        case "font_name":
            return said("name")
        case "font_bold" | "font_italic":
            given = said(prop[len("font_")])
            return given is not None and is_on(given or None, True)
        case "font_underline":
            given = said("u")
            return None if given in (None, "none") else given or "single"
        case "font_color":
            return _colour(font.find(f"{MAIN}color"))
    given = said({"font_size": "sz", "font_family": "family"}[prop])
    return None if given is None else float(given)


def _fill(prop: str, fill: Element | None, colour: str) -> str | None:
    kind = None if fill is None else next(iter(fill), None)
    if prop == "fill_type":
        return None if kind is None else kind.tag.removeprefix(MAIN)
    if kind is None or kind.tag != f"{MAIN}patternFill":
        return None
    found = kind.find(f"{MAIN}{colour}")
    return NO_COLOUR if found is None else _colour(found)


def _colour(colour: Element | None) -> str | None:
    if colour is None:
        return None
    if any(colour.get(name) is not None for name in ("indexed", "theme", "auto")):
        return PALETTE
    written = colour.get("rgb", NO_COLOUR)
    return f"00{written}" if len(written) == 6 else written


def _conditional(sheet: _Sheet, name: str) -> list[tuple[str, Element | None]]:
    """Cells to which a conditional format applies, and its style, in the order of the file. A rule whose formula is not understood applies
    to none."""
    made: list[tuple[str, Element | None]] = []
    for format in sheet.book.part(sheet.book.path(name)).findall(f"{MAIN}conditionalFormatting"):
        areas = [area(each) for each in format.get("sqref", "").split()]
        inside = [at for at in sheet.cells if any(each.holds(area(at)) for each in areas) and sheet.value(at) is not None]
        for rule in format.findall(f"{MAIN}cfRule"):
            number = rule.get("dxfId")
            style = None if number is None else sheet.changes[int(number)]
            made += [(at, style) for at in _applying(rule, sheet, inside, (areas[0].left, areas[0].top))]
    return made


def _applying(rule: Element, sheet: _Sheet, cells: Sequence[str], first: tuple[int, int]) -> Iterator[str]:
    """The cells to which a rule applies, whose formulas are as they stand for the first one of its range."""
    try:
        formulas = [Formula(each.text or "") for each in rule.findall(f"{MAIN}formula")]
    except Unsupported:
        return
    for at in cells:
        here = area(at)
        try:
            values = [each.result(sheet.value, (here.left - first[0], here.top - first[1])) for each in formulas]
            if _applies(rule, sheet.value(at), values):
                yield at
        except (Failed, IndexError):
            continue


def _applies(rule: Element, value: Value | None, values: Sequence[Any]) -> bool:
    if rule.get("type") in _BY_FORMULA:
        return is_true(values[0])
    return rule.get("type") == "cellIs" and _compares(rule.get("operator", ""), value, values)


def _compares(operator: str, value: Value | None, wanted: Sequence[Any]) -> bool:
    """A text is neither less nor greater than a number, as for OSWorld; Excel puts it behind them all."""
    if operator not in ("equal", "notEqual") and any(isinstance(each, str) != isinstance(value, str) for each in wanted):
        return False
    if operator in ("between", "notBetween"):
        least, most = (wanted[0], wanted[1]) if holds("<=", wanted[0], wanted[1]) else (wanted[1], wanted[0])
        is_between = holds(">=", value, least) and holds("<=", value, most)
        return is_between == (operator == "between")
    return operator in _OPERATORS and holds(_OPERATORS[operator], value, wanted[0])


def _changed(prop: str, sheet: _Sheet, at: str, style: Element | None) -> Any:
    """A property under a conditional format that applies: what that says, and nothing else."""
    if style is None or prop == "merge":
        return _prop(prop, sheet, at)
    if prop in ("fill_type", "bgcolor", "fgcolor"):
        return _fill(prop, style.find(f"{MAIN}fill"), "bgColor")
    if prop == "number_format":
        format = style.find(f"{MAIN}numFmt")
        if _prop(prop, sheet, at) is None:
            return None
        return None if format is None else format.get("formatCode")
    font = style.find(f"{MAIN}font")
    return None if font is None else _font(prop, font)
