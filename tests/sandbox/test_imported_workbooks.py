"""What lies on sheets beside their values, in workbooks that LibreOffice 7.4 and XlsxWriter saved (tests/sandbox/workbooks), and in changed
copies of them. OSWorld's own compare_table says the same of each case here as `passes` does."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sandbox.tasks.imported.comparing import compared
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.spec import Compare, Getter
from sandbox.tasks.imported.spreadsheets import _plain, compare_table, conference_cities, likeness
from sandbox.tasks.imported.workbook import Workbook
from sandbox.tasks.imported.workbook_formulas import Failed, Formula, Unsupported
from sandbox.tasks.imported.workbook_styles import styles

BOOKS = {path.stem: path.read_bytes() for path in sorted(Path(__file__).with_name("workbooks").glob("*.xlsx"))}


def changed(name: str, part: str, *changes: tuple[str, str]) -> bytes:
    """A workbook of BOOKS in one of whose parts texts are replaced, wherever they stand."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(BOOKS[name])) as before, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.namelist():
            content = before.read(entry).decode()
            for old, new in changes if entry == part else ():
                assert old in content, (entry, old)
                content = content.replace(old, new)
            after.writestr(entry, content)
    return target.getvalue()


def both(kind: str, sheet: str = "", **more: Any) -> dict[str, Any]:
    """A rule about the first sheets, or those of a name, of the result and of what is expected."""
    return {"type": kind, "sheet_idx0": f"RN{sheet}" if sheet else 0, "sheet_idx1": f"EN{sheet}" if sheet else "EI0", **more}


def chart(*props: str) -> dict[str, Any]:
    return both("chart", chart_props=list(props))


def pivot(*props: str) -> dict[str, Any]:
    return both("pivot_table", "Sheet2", pivot_props=list(props))


def style(*props: str) -> dict[str, Any]:
    return both("style", props=list(props))


def validation(**props: tuple[str, Any]) -> dict[str, Any]:
    tests = {prop: {"method": method, "ref": ref} for prop, (method, ref) in props.items()}
    return {"type": "data_validation", "sheet_idx": 0, "dv_props": [tests]}


def cell(at: str, prop: str, method: str, ref: Any) -> dict[str, Any]:
    return {"type": "check_cell", "sheet_idx": 0, "coordinate": at, "props": {prop: {"method": method, "ref": ref}}}


CHART, SHEET, STYLES = "xl/charts/chart10.xml", "xl/worksheets/sheet1.xml", "xl/styles.xml"
PIVOT, CACHE = "xl/pivotTables/pivotTable1.xml", "xl/pivotCache/pivotCacheDefinition1.xml"
CHARTS = [
    (chart("type"), BOOKS["chart"], BOOKS["chart"], True),
    (chart("type"), BOOKS["line"], BOOKS["chart"], False),
    (chart(), BOOKS["charts"], BOOKS["chart"], False),
    (chart(), BOOKS["plain"], BOOKS["chart"], False),
    (chart("type"), changed("chart", CHART, ("$B$2:$B$6", "$B$2:$B$5")), BOOKS["chart"], False),
    (chart("type"), changed("chart", CHART, ("$A$2:$A$6", "$A$1:$A$5")), BOOKS["chart"], False),
    (chart("type"), changed("chart", CHART, ("barChart>", "areaChart>"), ('<c:barDir val="col"/>', "")), BOOKS["chart"], False),
    (chart("type", "direction"), changed("chart", CHART, ('barDir val="col"', 'barDir val="bar"')), BOOKS["chart"], False),
    (chart("type"), changed("chart", CHART, ('barDir val="col"', 'barDir val="bar"')), BOOKS["chart"], True),
    (chart("direction"), BOOKS["line"], BOOKS["line"], False),
    (chart("xtitle"), changed("chart", CHART, ("Months", "Weeks")), BOOKS["chart"], False),
    (chart("ytitle"), changed("chart", CHART, ("Months", "Weeks")), BOOKS["chart"], True),
    (chart("ytitle"), changed("chart", CHART, ("Money", "Euro")), BOOKS["chart"], False),
    (chart("legend"), changed("chart", CHART, ('legendPos val="r"', 'legendPos val="b"')), BOOKS["chart"], False),
    (chart("anchor"), changed("chart", "xl/drawings/drawing1.xml", ("<xdr:col>", "<xdr:col>1")), BOOKS["chart"], False),
    (chart("title"), changed("chart", "xl/drawings/drawing1.xml", ("<xdr:col>", "<xdr:col>1")), BOOKS["chart"], True),
]
FIELDS = ("col_fields", "filter", "row_fields", "data_fields")
PIVOTS = [
    (pivot(*FIELDS), BOOKS["pivot"], BOOKS["pivot"], True),
    (pivot(*FIELDS), BOOKS["pivots"], BOOKS["pivot"], False),
    (pivot(*FIELDS), BOOKS["no_pivot"], BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ('subtotal="sum"', 'subtotal="count"')), BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ('fld="1"', 'fld="2"')), BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ("rowFields", "colFields")), BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ('fld="3"', 'fld="2"')), BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ('<item x="4"/>', '<item h="1" x="4"/>')), BOOKS["pivot"], False),
    (pivot("data_fields"), changed("pivot", PIVOT, ('<item x="4"/>', '<item h="1" x="4"/>')), BOOKS["pivot"], True),
    (pivot(*FIELDS), changed("pivot", PIVOT, ('fld="1" subtotal', 'fld="1" showDataAs="percent" subtotal')), BOOKS["pivot"], False),
    (pivot(*FIELDS), changed("pivot", PIVOT, ("Sum - Sales", "Total"), ('name="P1"', 'name="P2"')), BOOKS["pivot"], True),
    (pivot("data_fields", "data_fields_name"), changed("pivot", PIVOT, ("Sum - Sales", "Total")), BOOKS["pivot"], False),
    (pivot("name"), changed("pivot", PIVOT, ('name="P1"', 'name="P2"')), BOOKS["pivot"], False),
    (pivot("location"), changed("pivot", PIVOT, ("A4:B10", "A5:B11")), BOOKS["pivot"], False),
    (pivot(), changed("pivot", CACHE, ('ref="A1:D6"', 'ref="A1:D5"')), BOOKS["pivot"], False),
    (pivot(), changed("pivot", CACHE, ('sheet="Sheet1"', 'sheet="Other"')), BOOKS["pivot"], False),
    (pivot("show_headers"), changed("pivot", PIVOT, ('compactData="0"', 'showHeaders="0"')), BOOKS["pivot"], False),
    (pivot("show_total"), changed("pivot", PIVOT, ('compactData="0"', 'visualTotals="0"')), BOOKS["pivot"], False),
]
LOOKS = [
    (style("bgcolor"), BOOKS["conditional"], BOOKS["filled"], True),
    (style("bgcolor"), BOOKS["plain"], BOOKS["filled"], False),
    (style("bgcolor"), changed("filled", STYLES, ("FFFF0000", "FFFF0001")), BOOKS["filled"], False),
    (style("font_size"), changed("filled", STYLES, ("FFFF0000", "FFFF0001")), BOOKS["filled"], True),
    (style("bgcolor"), changed("conditional", SHEET, ("<formula>10<", "<formula>1<")), BOOKS["filled"], False),
    (style("bgcolor"), changed("conditional", SHEET, ("greaterThan", "lessThan")), BOOKS["filled"], False),
    (style("bgcolor"), changed("conditional", SHEET, ('"cellIs"', '"expression"'), (">10<", ">B2=MAX($B$2:$B$4)<")), BOOKS["filled"], True),
    (style("bgcolor"), changed("conditional", SHEET, ('"cellIs"', '"expression"'), (">10<", ">NOSUCH(B2)<")), BOOKS["filled"], False),
    (style("bgcolor"), changed("conditional", SHEET, ('"cellIs"', '"top10"')), BOOKS["filled"], False),
    (
        style("bgcolor"),
        changed("filled", SHEET, ("</sheetData>", '<row r="9"><c r="A9" s="0"/></row></sheetData>')),
        BOOKS["filled"],
        False,
    ),
    (style("merge"), BOOKS["merged"], BOOKS["merged"], True),
    (style("merge"), changed("merged", SHEET, ("A1:C1", "A1:B1")), BOOKS["merged"], False),
    (style("number_format"), changed("plain", STYLES, ("General", "0.00")), BOOKS["plain"], False),
    (style("font_name"), changed("plain", STYLES, ("Arial", "Courier")), BOOKS["plain"], True),
    (style("font_name"), changed("plain", STYLES, ("DejaVu Sans", "Courier")), BOOKS["plain"], False),
    (style("font_bold", "font_italic"), changed("plain", STYLES, ('<sz val="10"/>', '<b/><sz val="10"/>')), BOOKS["plain"], False),
]
LINES = [
    (both("row_props", props=["hidden"]), BOOKS["hidden"], BOOKS["hidden"], True),
    (both("row_props", props=["hidden"]), changed("hidden", SHEET, ('hidden="true"', 'hidden="false"')), BOOKS["hidden"], False),
    (both("row_props", props=["hidden"]), changed("hidden", SHEET, ('ht="12.8"', 'ht="20"')), BOOKS["hidden"], True),
    (both("row_props", props=["hidden", "height"]), changed("hidden", SHEET, ('ht="12.8"', 'ht="20"')), BOOKS["hidden"], False),
    (both("row_props", props=["collapsed"]), changed("hidden", SHEET, ('collapsed="false"', 'collapsed="1"')), BOOKS["hidden"], False),
    (both("row_props", props=["hidden"]), BOOKS["filter"], BOOKS["hidden"], False),
    (
        both("col_props", props=["width"]),
        changed("merged", SHEET, ("<sheetData>", '<cols><col min="2" max="3" width="9"/></cols><sheetData>')),
        BOOKS["merged"],
        False,
    ),
    *(
        (
            both("col_props", props=[prop]),
            changed("merged", SHEET, ("<sheetData>", f'<cols><col min="2" max="3" {said}/></cols><sheetData>')),
            changed("merged", SHEET, ("<sheetData>", '<cols><col min="2" max="3"/></cols><sheetData>')),
            passes,
        )
        for prop, said, passes in (
            ("width", 'width="9"', False),
            ("width", 'width="13"', True),
            ("hidden", 'hidden="1"', False),
            ("auto_size", 'bestFit="1"', False),
            ("collapsed", 'collapsed="1"', False),
            ("max", 'hidden="1"', True),
        )
    ),
]
FILTERS = [
    (both("filter"), BOOKS["filter"], BOOKS["filter"], True),
    (both("filter"), BOOKS["plain"], BOOKS["hidden"], True),
    (both("filter"), BOOKS["plain"], BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('ref="A1:D6"', 'ref="A1:D5"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('filter val="a"', 'filter val="b"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('val="12"', 'val="13"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('operator="greaterThan"', 'operator="lessThan"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('colId="3"', 'colId="2"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ("<filters>", '<filters blank="1">')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('colId="3"', 'colId="3" hiddenButton="1"')), BOOKS["filter"], False),
    (both("filter"), changed("filter", SHEET, ('<filter val="a"/>', '<filter val="a"/><filter val="a"/>')), BOOKS["filter"], True),
    (
        both("filter"),
        changed("filter", SHEET, ("</autoFilter>", '<sortState ref="A2:D6"><sortCondition ref="B2:B6"/></sortState></autoFilter>')),
        BOOKS["filter"],
        False,
    ),
]
SPARKLINES = [
    (both("sparkline"), BOOKS["sparklines"], BOOKS["sparklines"], True),
    (both("sparkline"), BOOKS["plain"], BOOKS["sparklines"], False),
    (both("sparkline"), changed("sparklines", SHEET, (">F3<", ">F4<")), BOOKS["sparklines"], False),
    (both("sparkline"), changed("sparklines", SHEET, (">Sheet1!B3:C3<", ">Sheet1!B3:D3<")), BOOKS["sparklines"], False),
    (both("sparkline"), BOOKS["plain"], BOOKS["hidden"], True),
]
ASKED = {
    "ranges": ("spreadsheet_range", ["D2:D29", "D1:D1048576"]),
    "type": ("eq", "list"),
    "formula1": ("str_set_eq", ["Pass", "Fail", "Held"]),
}
VALIDATIONS = [
    (validation(**ASKED), BOOKS["validation"], None, True),
    (validation(**ASKED), BOOKS["plain"], None, False),
    (validation(**ASKED), changed("validation", SHEET, ("Pass,Fail,Held", "Held,Pass,Fail")), None, True),
    (validation(formula1=("str_list_eq", ["Pass", "Fail", "Held"])), changed("validation", SHEET, ("Pass,Fail", "Fail,Pass")), None, False),
    (validation(**ASKED), changed("validation", SHEET, ("Pass,Fail,Held", "Pass,Fail")), None, False),
    (validation(**ASKED), changed("validation", SHEET, ("D2:D29", "D2:D28")), None, False),
    (validation(**ASKED), changed("validation", SHEET, ("D2:D29", "C2:D29")), None, False),
    (validation(**ASKED), changed("validation", SHEET, ("D2:D29", "D1:D1048576")), None, True),
    (validation(**ASKED), changed("validation", SHEET, ("D2:D29", "D2:D15 D16:D29")), None, False),
    (validation(type=("eq", "whole")), BOOKS["validation"], None, False),
    (validation(allowBlank=("eq", False)), BOOKS["validation"], None, False),
    (validation(errorStyle=("eq", "stop"), prompt=("eq", None)), BOOKS["validation"], None, True),
]
CELLS = [
    (cell("A1", "bgcolor", "eq", "FF0000FF"), BOOKS["merged"], None, True),
    (cell("A1", "bgcolor", "eq", "FFFF0000"), BOOKS["merged"], None, False),
    (cell("A1", "font_color", "eq", "FFFFFFFF"), BOOKS["merged"], None, True),
    (cell("C2", "font_color", "ne", "FFFFFFFF"), changed("merged", STYLES, ("FFFFFFFF", "FF00FF00")), None, True),
    (cell("A1", "font_bold", "eq", True), BOOKS["merged"], None, True),
    (cell("A2", "font_bold", "eq", True), BOOKS["merged"], None, False),
    (cell("B1", "merge", "eq", True), BOOKS["merged"], None, True),
    (cell("A1", "merge", "eq", True), BOOKS["merged"], None, False),
    (cell("D1", "merge", "eq", False), BOOKS["merged"], None, True),
    (cell("Z99", "merge", "eq", False), BOOKS["merged"], None, True),
    (cell("A1", "font_size", "range.et", [9, 10]), BOOKS["merged"], None, False),
    (cell("A1", "font_size", "range.te", [9, 10]), BOOKS["merged"], None, True),
    (cell("B3", "number_format", "eq", "General"), BOOKS["plain"], None, True),
    (cell("B5", "number_format", "eq", "General"), BOOKS["plain"], None, False),
    (cell("B3", "number_format", "eq", "0.00"), changed("plain", STYLES, ("General", "0.00")), None, True),
    (cell("B3", "number_format", "eq", "yyyy"), changed("plain", STYLES, ("General", "yyyy")), None, False),
    (cell("A1", "fill_type", "eq", "patternFill"), BOOKS["plain"], None, True),
    (cell("A1", "font_underline", "eq", "single"), changed("plain", STYLES, ('<sz val="10"/>', '<u/><sz val="10"/>')), None, True),
]
FUZZY = [
    (both("sheet_fuzzy", rules=[{"range": ["A1:A3"], "type": "fuzzy_match", **more}]), BOOKS[result], BOOKS["addresses"], passes)
    for result, more, passes in (
        ("addresses", {}, True),
        ("addresses_near", {"threshold": 95}, False),
        ("addresses_near", {"threshold": 80}, True),
        ("addresses_near", {"threshold": 95, "normalization": [["Rd", "Road"], ["Street", "St"]], "ignore_chars": " ()+-"}, True),
        ("plain", {"threshold": 50}, False),
    )
]
CASES = [*CHARTS, *PIVOTS, *LOOKS, *LINES, *FILTERS, *SPARKLINES, *VALIDATIONS, *CELLS, *FUZZY]


def reason_of(result: bytes, expected: bytes | None, rule: dict[str, Any]) -> str | None:
    try:
        return compare_table(result, expected, {"rules": [rule]})
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("rule", "result", "expected", "passes"), CASES, ids=[f"{case[0]['type']}-{n}" for n, case in enumerate(CASES)])
def test_a_rule_holds_where_osworlds_does(rule: dict[str, Any], result: bytes, expected: bytes | None, passes: bool) -> None:
    wanted = None if expected is None else Getter(asset="y")
    goal = Compare(function="compare_table", result=Getter(file="x"), expected=wanted, options={"rules": [rule]})
    assert list(faults(goal)) == []
    reason = reason_of(result, expected, rule)
    assert (reason is None) == passes, reason


def test_a_reason_says_what_differs() -> None:
    reason = reason_of(changed("chart", CHART, ("Months", "Weeks")), BOOKS["chart"], chart("xtitle"))
    assert reason is not None and "'Weeks'" in reason and "'Months'" in reason
    assert "its extent" in str(reason_of(BOOKS["merged"], BOOKS["plain"], style("merge")))
    assert reason_of(BOOKS["plain"], None, cell("A1", "font_bold", "eq", True)) == "font_bold of A1 is False"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (chart("width"), "the property 'width'; there are title"),
        (pivot("colour"), "the property 'colour'; there are name"),
        (style(), "without a list `props`"),
        (style("hyperlink"), "the property 'hyperlink'"),
        (both("row_props"), "without a list `props`"),
        (both("filter", props=["ref"]), "with `props`"),
        (chart() | {"sheet_idx1": 0}, "with itself"),
        (validation(), "without a property"),
        (validation(colour=("eq", 1)), "of a property that is not read here, colour"),
        (validation(ranges=("eq", "A1")), "not compared by spreadsheet_range"),
        (validation(ranges=("spreadsheet_range", ["A1", "x"])), "not a range"),
        (validation(formula1=("str_set_eq", "abc")), "not a list of its values"),
        (cell("A1", "font_size", "range.ee", [1]), "not a list of its values"),
        ({"type": "data_validation", "sheet_idx": 0}, "without `dv_props`"),
    ],
)
def test_a_rule_that_asks_for_what_is_not_read_is_a_fault(rule: dict[str, Any], why: str) -> None:
    goal = Compare(function="compare_table", result=Getter(file="x"), expected=Getter(asset="y"), options={"rules": [rule]})
    assert any(why in fault for fault in faults(goal)), list(faults(goal))


HOSTILE = {
    "a formula that nests for ever": changed(
        "conditional", SHEET, ('"cellIs"', '"expression"'), (">10<", ">" + "(" * 50_000 + "1" + ")" * 50_000 + "<")
    ),
    "a merged range of all cells": changed("merged", SHEET, ("A1:C1", "A1:XFD1048576")),
    "a style of no number": changed("filled", SHEET, ('s="', 's="9')),
    "a chart of no part": changed("chart", "xl/drawings/_rels/drawing1.xml.rels", ("chart10.xml", "chart99.xml")),
    "a drawing that is its own chart": changed("chart", "xl/drawings/_rels/drawing1.xml.rels", ("../charts/chart10.xml", "drawing1.xml")),
    "a pivot table of no cache": changed("pivot", "xl/pivotTables/_rels/pivotTable1.xml.rels", ("pivotCacheDefinition1", "x")),
    "a pivot table of a name": changed("pivot", CACHE, ('ref="A1:D6"', 'name="A"')),
    "a number that is none": changed("pivot", PIVOT, ('fld="1"', 'fld="one"')),
    "a width that is none": changed("merged", SHEET, ("<sheetData>", '<cols><col min="x" width="w"/></cols><sheetData>')),
}
RULES = {
    "chart": chart("type"),
    "pivot": pivot(*FIELDS),
    "style": style("bgcolor", "merge", "number_format"),
    "column": both("col_props", props=["min", "width"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_workbook_does_not_pass_and_breaks_nothing(case: str) -> None:
    rule = next((RULES[word] for word in RULES if word in case), RULES["pivot"] if "number that" in case else RULES["style"])
    rule = RULES["column"] if "width" in case else rule
    expected = {"chart": "chart", "pivot_table": "pivot", "style": "filled", "col_props": "merged"}[rule["type"]]
    reason = asyncio.run(compared("compare_table", HOSTILE[case], BOOKS[expected], {"rules": [rule]}))
    assert reason is not None


def test_all_that_a_rule_looks_at_is_read_in_the_jail() -> None:
    for rule, name in (
        (RULES["chart"], "chart"),
        (RULES["pivot"], "pivot"),
        (style("bgcolor"), "conditional"),
        (both("sparkline"), "sparklines"),
    ):
        assert asyncio.run(compared("compare_table", BOOKS[name], BOOKS[name], {"rules": [rule]})) is None


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1+2*3^2", 19.0),
        ("-(2-5)%", 0.03),
        ('"a"&1.5&TRUE', "a1.5TRUE"),
        ('"B"="b"', True),
        ("A1>5", True),
        ("A1=B1", False),
        ("B1>A1", True),
        ("C1=0", True),
        ('C1=""', True),
        ("SUM($A$1:A3)", 18.0),
        ("AND(A1>1,OR(FALSE,A2<>7))", False),
        ("IF(A1>100,1/0,2)", 2.0),
        ("ISERROR(1/0)", True),
        ("IFERROR(1/0,3)", 3.0),
        ('NOT(ISERROR(SEARCH("N",B1)))', True),
        ("LEFT(B1,2)&RIGHT(B1,1)&MID(B1,2,1)&LEN(B1)", "Annn3"),
        ("WEEKDAY(45000)", 4.0),
        ("WEEKDAY(45000,2)", 3.0),
        ("YEAR(45000)*100+MONTH(45000)", 202303.0),
        ("A1=MAX(A1:A3)", False),
        ("RANK(A1,A1:A3)", 1.0),
        ("LARGE(A1:A3,2)", 7.0),
        ('COUNTIF(A1:B3,">6")', 2.0),
        ('COUNTIF(A1:B3,"ann")', 1.0),
        ("MOD(-3,2)", 1.0),
        ("AVERAGE(A1:B3)", 6.0),
    ],
)
def test_formulas_of_conditional_formats(formula: str, value: Any) -> None:
    cells: dict[str, Any] = {"A1": 8.0, "A2": 7.0, "A3": 3.0, "B1": "Ann"}
    if formula in ("A1=MAX(A1:A3)", "RANK(A1,A1:A3)"):
        cells["A1"] = 7.0 if "MAX" in formula else 8.0
        cells["A2"] = 8.0 if "MAX" in formula else 7.0
    assert (
        Formula(formula).result(cells.get) == pytest.approx(value)
        if isinstance(value, float)
        else Formula(formula).result(cells.get) == value
    )


def test_a_formula_moves_with_its_cell_and_says_what_it_does_not_understand() -> None:
    cells: dict[str, Any] = {"A1": 1.0, "B2": 5.0, "A2": 3.0}
    assert Formula("A1").result(cells.get, (1, 1)) == 5.0 and Formula("$A1").result(cells.get, (1, 1)) == 3.0
    assert Formula("A$1").result(cells.get, (0, 1)) == 1.0 and Formula("$A$1").result(cells.get, (9, 9)) == 1.0
    for text in ("", "1+", "(1", "NOSUCH(1)", "Sheet2!A1", "{1}", "#REF!"):
        with pytest.raises(Unsupported):
            Formula(text)
    for text in ("1/0", '"x"+1', "A1:A2+1", "A1:XFD1048576", 'FIND("z","a")', "LARGE(A1:A2,9)"):
        with pytest.raises(Failed):
            Formula(text).result(cells.get)
    with pytest.raises(Failed):
        Formula("A1").result(cells.get, (-1, 0))


def test_cities_are_looked_for_from_the_second_row_of_the_third_column_on() -> None:
    def said(name: str, *wanted: Any) -> str | None:
        return conference_cities(BOOKS[name], {"expected": list(wanted)}, {})

    sales = ["4", ["x", "9"], "6"]
    assert said("filter", *sales) is None
    assert "C3 is 9.0, not '4'" in str(said("filter", "4", "4"))
    assert "C7 is None" in str(said("filter", *sales, "11", "8", "8"))
    assert conference_cities(b"x", {"expected": ["a"]}, {}) is not None
    assert _plain("Montréal, Québec") == "montreal quebec"


def test_likeness_is_that_of_the_longest_common_subsequence() -> None:
    assert likeness("", "") == 100.0 and likeness("a", "") == 0.0 and likeness("abcd", "abxd") == 75.0 and likeness("ab", "ba") == 50.0


def test_an_empty_cell_has_the_first_fill_and_no_font() -> None:
    found = styles(Workbook(BOOKS["merged"]), "Sheet1", ("bgcolor", "font_size", "merge"))
    assert found[""] == (4, 2, ("00000000", None, False))
    assert found["A1"] == ("FF0000FF", 10.0, False) and found["B1"] == ("00000000", None, True)
