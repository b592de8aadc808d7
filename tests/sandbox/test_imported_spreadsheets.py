"""Workbooks written by hand, part by part, and the messages about them."""

from __future__ import annotations

import asyncio
import io
import zipfile
from typing import Any
from xml.sax.saxutils import escape

import pytest

from sandbox.tasks.imported.comparing import compared
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.spec import Compare, Getter
from sandbox.tasks.imported.spreadsheets import compare_table
from sandbox.tasks.imported.workbook import coordinates

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def workbook(sheets: dict[str, str], texts: tuple[str, ...] = ()) -> bytes:
    """`sheets`: what stands inside of each worksheet, by name. Parts are named in the reverse of their order, as the format allows."""
    numbers = range(len(sheets), 0, -1)
    listed = "".join(f'<sheet name="{escape(name)}" sheetId="9{n}" r:id="r{n}"/>' for name, n in zip(sheets, numbers, strict=True))
    relations = "".join(f'<Relationship Id="r{n}" Target="worksheets/part{n}.xml"/>' for n in numbers)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("xl/workbook.xml", f'<workbook {MAIN} xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>')
        file.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="x">{relations}</Relationships>')
        for inside, n in zip(sheets.values(), numbers, strict=True):
            file.writestr(f"xl/worksheets/part{n}.xml", f"<worksheet {MAIN}>{inside}</worksheet>")
        if texts:
            file.writestr("xl/sharedStrings.xml", f"<sst {MAIN}>{''.join(f'<si>{text}</si>' for text in texts)}</sst>")
    return target.getvalue()


def cells(*each: str) -> str:
    return f"<sheetData><row>{''.join(each)}</row></sheetData>"


def number(at: str, value: float) -> str:
    return f'<c r="{at}"><f>1+1</f><v>{value}</v></c>'


def text(at: str, value: str) -> str:
    return f'<c r="{at}" t="inlineStr"><is><t>{value}</t></is></c>'


ONE = workbook({"A": cells(number("A1", 1.00001), text("B2", "Ann"), '<c r="C3"/>')})
DATA = {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}
TWO = workbook({"First": cells(number("A1", 1)), "Second": cells(number("A1", 2))})
TEXTS = "<t>Bob</t>", "<r><t>An</t></r><r><t>n</t></r><rPh><t>x</t></rPh>"
SHARED = workbook({"A": cells('<c r="B2" t="s"><v>1</v></c>', number("A1", 1))}, TEXTS)
VIEW = '<sheetViews><sheetView zoomScale="{}"><pane {}/></sheetView></sheetViews>'
FROZEN = workbook({"A": VIEW.format(260, 'xSplit="2" ySplit="1" topLeftCell="C9" state="frozen"')})
SCROLLED = workbook({"A": VIEW.format(100, 'xSplit="2" ySplit="1" topLeftCell="C70" state="frozen"')})
SPLIT = workbook({"A": VIEW.format(100, 'xSplit="2" ySplit="1" state="split"')})
FREEZE = {"type": "freeze", "sheet_idx0": 0, "sheet_idx1": "EI0"}


def cell(method: str, ref: Any, coordinate: str = "A1") -> dict[str, Any]:
    return {"type": "check_cell", "sheet_idx": "RNA", "coordinate": coordinate, "props": {"value": {"method": method, "ref": ref}}}


def fuzzy(kind: str, area: str = "B2", **more: Any) -> dict[str, Any]:
    return {"type": "sheet_fuzzy", "sheet_idx0": "RNA", "sheet_idx1": "ENA", "rules": [{"range": [area], "type": kind, **more}]}


@pytest.mark.parametrize(
    ("result", "expected", "rule", "passes"),
    [
        (ONE, SHARED, DATA, True),
        (ONE, SHARED, DATA | {"precision": 5}, False),
        (ONE, workbook({"A": cells(number("A1", 1), text("B2", "ann"))}), DATA, False),
        (ONE, workbook({"A": cells(number("A1", 1), text("B2", "ann"))}), DATA | {"ignore_case": True}, True),
        (ONE, workbook({"A": cells(number("A1", 1))}), DATA, False),
        (workbook({"A": cells(number("A1", 1))}), ONE, DATA, False),
        (workbook({"A": cells(text("A1", "1"))}), workbook({"A": cells(number("A1", 1))}), DATA, False),
        (workbook({"A": cells('<c r="A1" t="b"><v>1</v></c>')}), workbook({"A": cells('<c r="A1" t="b"><v>0</v></c>')}), DATA, False),
        (TWO, TWO, {"type": "sheet_name"}, True),
        (TWO, workbook({"Second": "", "First": ""}), {"type": "sheet_name"}, False),
        (TWO, TWO, DATA | {"sheet_idx0": "RNSecond", "sheet_idx1": "EI1"}, True),
        (TWO, TWO, DATA | {"sheet_idx0": 1, "sheet_idx1": "ENFirst"}, False),
        (TWO, TWO, DATA | {"sheet_idx0": 0, "sheet_idx1": 1}, False),
        (TWO, TWO, DATA | {"sheet_idx0": "RNThird"}, False),
        (FROZEN, SCROLLED, FREEZE, True),
        (SPLIT, SCROLLED, FREEZE, False),
        (ONE, SCROLLED, FREEZE, False),
        (FROZEN, None, {"type": "zoom", "sheet_idx": 0, "method": "eq", "ref": 260}, True),
        (ONE, None, {"type": "zoom", "sheet_idx": 0, "method": "gt", "ref": 100}, False),
        (ONE, None, cell("approx:0.001", 1), True),
        (ONE, None, cell("approx:0.000001", 1), False),
        (ONE, None, cell("eq", "Ann", "B2"), True),
        (ONE, None, cell("re.I", "^aN", "B2"), True),
        (ONE, None, cell("re", "^aN", "B2"), False),
        (ONE, None, cell("lt", 5, "B2"), False),
        (ONE, None, cell("eq", "", "C3"), False),
        (ONE, workbook({"A": cells(text("B2", "An"))}), fuzzy("includes"), True),
        (ONE, workbook({"A": cells(text("B2", "Annie"))}), fuzzy("includes"), False),
        (ONE, workbook({"A": cells(text("B2", "Annie"))}), fuzzy("included_by"), True),
        (ONE, workbook({"A": cells(text("B2", "+ANN"))}), fuzzy("exact_match", ignore_case=True, trim_leadings="+"), True),
        (ONE, workbook({"A": cells(text("B2", "A. n-n"))}), fuzzy("exact_match", ignore_chars=" .-"), True),
        (ONE, workbook({"A": cells(text("B2", "Anna"))}), fuzzy("exact_match", normalization=[["Anna", "Ann"]]), True),
        (ONE, ONE, fuzzy("exact_match", "A1:C3"), True),
        (ONE, SHARED, fuzzy("exact_match", "A1:C3"), False),
        (b"a,b", ONE, DATA, False),
        (ONE[:200], ONE, DATA, False),
    ],
)
def test_tables(result: bytes, expected: bytes | None, rule: dict[str, Any], passes: bool) -> None:
    wanted = None if expected is None else Getter(asset="y")
    goal = Compare(function="compare_table", result=Getter(file="x"), expected=wanted, options={"rules": [rule]})
    assert list(faults(goal)) == []
    assert (compare_table(result, expected, {"rules": [rule]}) is None) == passes


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"type": "macro"}, "has the rule 'macro'; there are sheet_name"),
        ("x", "has the rule None"),
        (DATA | {"sheet_idx1": "X0"}, "names no sheet"),
        (DATA | {"sheet_idx1": "RI0", "sheet_idx0": "RI0"}, "with itself"),
        (DATA | {"precision": "4"}, "whole number"),
        (DATA | {"colour": 1}, "with `colour`"),
        (cell("near", 1), "the method 'near'"),
        (cell("re", "("), "regular expression"),
        (cell("approx:1", "x"), "not a number"),
        (cell("eq", 1, "A"), "not a range"),
        ({**cell("eq", 1), "props": {"hyperlink": {"method": "eq", "ref": "x"}}}, "not read here"),
        (fuzzy("alike"), "of the type 'alike'"),
        (fuzzy("fuzzy_match", threshold="85"), "`threshold` is not a number"),
        (fuzzy("includes", "A1:ZZ99999"), "more than"),
        (fuzzy("includes", normalization=[["", "x"]]), "an empty text"),
    ],
)
def test_a_rule_that_is_not_understood_is_a_fault(rule: Any, why: str) -> None:
    goal = Compare(function="compare_table", result=Getter(file="x"), expected=Getter(asset="y"), options={"rules": [rule]})
    assert any(why in fault for fault in faults(goal)), list(faults(goal))


def test_ranges() -> None:
    assert list(coordinates(["Y1:AB1", "B2:B3"])) == ["Y1", "Z1", "AA1", "AB1", "B2", "B3"]


@pytest.mark.slow
def test_a_workbook_that_unfolds_to_much_is_read_within_limits() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        with zipfile.ZipFile(io.BytesIO(ONE)) as good:
            for name in good.namelist():
                if "worksheets" not in name:
                    file.writestr(name, good.read(name))
        with file.open("xl/worksheets/part1.xml", "w") as part:
            part.write(f"<worksheet {MAIN}>".encode())
            for _ in range(200):
                part.write(b"<c/>" * 250_000)
    reason = asyncio.run(compared("compare_table", bomb.getvalue(), ONE, {"rules": [DATA]}))
    assert reason is not None and "cannot be compared" in reason
    assert asyncio.run(compared("compare_table", ONE, SHARED, {"rules": [DATA]})) is None
