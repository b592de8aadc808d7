"""Comparisons of a goal's value with what is expected, by name: pure functions of texts, bytes and rules. What they mean is what OSWorld's
evaluators of the same names mean (Xie et al. 2024, arXiv 2404.07972), rewritten; where those give a share, only all of it passes here.

Which of OSWorld's evaluators are missing is said by osworld.py, when a task is imported. The module needs spreadsheets.py
and the standard library alone, because comparing.py runs it in a jail, with the system's Python; PDF files are read by Poppler's programs.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess  # nosec B404
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.tasks.imported.spreadsheets import compare_table, conference_cities

Result = str | bytes | None
Metric = Callable[[Result, Any, Mapping[str, Any]], str | None]
"""(value, expected, options) -> why it does not pass; None where it does."""
MAX_SHOWN = 120
POPPLER = "poppler-utils"
OF_POPPLER = frozenset(("compare_pdfs", "check_pdf_pages"))
"""Comparisons that want the programs of this Debian package."""


def text_of(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").replace("\r\n", "\n")
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    text = repr(text_of(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _rules(expected: Any) -> Mapping[str, Any]:
    return expected if isinstance(expected, Mapping) else {"expected": expected}


def exact_match(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    wanted = _rules(expected).get("expected")
    is_so = text_of(value) == text_of(wanted) if isinstance(wanted, str) else text_of(value).strip() == text_of(wanted)
    return None if is_so else f"is {_shown(value)}, not {_shown(wanted)}"


def match_in_list(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    allowed = [text_of(item) for item in _rules(expected).get("expected", ())]
    return None if text_of(value) in allowed else f"is {_shown(value)}, none of {_shown(allowed)}"


def literal_match(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    wanted = _rules(expected).get("expected")
    fold = str.casefold if options.get("ignore_case") else str
    return None if fold(text_of(value)) == fold(text_of(wanted)) else f"is {_shown(value)}, not {_shown(wanted)}"


def check_include_exclude(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    text, rules = text_of(value), _rules(expected)
    missing = [part for part in rules.get("include", ()) if part not in text]
    extra = [part for part in rules.get("exclude", ()) if part in text]
    said = [f"lacks {_shown(part)}" for part in missing] + [f"has {_shown(part)}" for part in extra]
    return ", ".join(said) or None


def file_contains(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    text = text_of(value)
    missing = [part for part in _rules(expected).get("expected", ()) if part not in text]
    return ", ".join(f"lacks {_shown(part)}" for part in missing) or None


def compare_text_file(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    found, wanted = text_of(value), text_of(expected)
    if options.get("ignore_blanks"):
        found, wanted = " ".join(found.split()), " ".join(wanted.split())
    if options.get("ignore_case"):
        found, wanted = found.casefold(), wanted.casefold()
    return None if found == wanted else "holds another text"


def diff_text_file(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    return None if text_of(value).splitlines() == text_of(expected).splitlines() else "holds other lines"


def sheet_print(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """CSV files of a sheet as it is printed: blanks at the ends of lines and empty lines at the end do not count."""

    def lines(text: str) -> list[str]:
        return [line.strip() for line in (text.lower() if options.get("ignore_case") else text).rstrip().splitlines()]

    return None if lines(text_of(value)) == lines(text_of(expected)) else "is printed otherwise"


def compare_csv(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """`strict` (the default) compares as they are; else white space at the ends of cells does not count; `ignore_case` for letter case."""

    def table(text: str) -> list[list[str]]:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
        rows = rows if options.get("strict", True) else [[cell.strip() for cell in row] for row in rows]
        return [[cell.casefold() for cell in row] for row in rows] if options.get("ignore_case") else rows

    try:
        found, wanted = table(text_of(value)), table(text_of(expected))
    except csv.Error as error:
        return f"is not a CSV file: {error}"
    return None if found == wanted else f"holds another table ({len(found)} rows, {len(wanted)} wanted)"


def check_csv(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """For each record of `expect` some row has its values, and no row those of a record of `unexpect`."""
    try:
        rows = list(csv.DictReader(io.StringIO(text_of(value))))
    except csv.Error as error:
        return f"is not a CSV file: {error}"
    rules = _rules(expected)

    def has(record: Mapping[str, Any]) -> bool:
        return any(all(row.get(name) == text_of(wanted) for name, wanted in record.items()) for row in rows)

    said = [f"no row has {_shown(record)}" for record in rules.get("expect", ()) if not has(record)]
    said += [f"a row has {_shown(record)}" for record in rules.get("unexpect", ()) if has(record)]
    return ", ".join(said) or None


def check_list(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Each expression of `expect` is found in some line, none of `unexpect` in any."""
    lines, rules = text_of(value).splitlines(), _rules(expected)
    said = [f"no line has {_shown(each)}" for each in rules.get("expect", ()) if not any(re.search(each, line) for line in lines)]
    said += [f"a line has {_shown(each)}" for each in rules.get("unexpect", ()) if any(re.search(each, line) for line in lines)]
    return ", ".join(said) or None


def check_line_number(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """So many lines hold a time as `hh:mm:ss`."""
    found = sum(re.search(r"([0-1]?\d|2[0-3]):[0-5]\d:[0-5]\d", line) is not None for line in text_of(value).splitlines())
    wanted = _rules(expected).get("expected")
    return None if text_of(wanted).strip() == str(found) else f"has {found} such lines, not {wanted}"


def check_json_settings(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    found = _json(value)
    wanted = _rules(expected).get("expected", {})
    if not isinstance(found, dict):
        return "is not a JSON object"
    return ", ".join(f"{name} is {_shown(found.get(name))}" for name, each in wanted.items() if found.get(name) != each) or None


JSON_METHODS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda found, ref: bool(found == ref),
    "ne": lambda found, ref: bool(found != ref),
    "le": lambda found, ref: bool(found <= ref),
    "lt": lambda found, ref: bool(found < ref),
    "ge": lambda found, ref: bool(found >= ref),
    "gt": lambda found, ref: bool(found > ref),
    "re": lambda found, ref: re.search(ref, text_of(found)) is not None,
    "in": lambda found, ref: found in ref,
}


def check_json(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Rules {key: path, method, ref}: each of `expect` holds, none of `unexpect`. What is not JSON passes none."""
    found, rules = _json(value), _rules(expected)
    if found is None:
        return "is not JSON"

    def holds(rule: Mapping[str, Any]) -> bool:
        at = found
        try:
            for key in rule["key"]:
                at = at[key]
            return JSON_METHODS[rule.get("method", "eq")](at, rule.get("ref"))
        except (KeyError, IndexError, TypeError):
            return False

    said = [f"{rule.get('key')} is not so" for rule in rules.get("expect", ()) if not holds(rule)]
    said += [f"{rule.get('key')} is so" for rule in rules.get("unexpect", ()) if holds(rule)]
    return ", ".join(said) or None


def check_file_exists(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    return None


def check_image_file_size(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Smaller than so many bytes."""
    size, limit = len(value or b""), _rules(expected)["max_size"]
    return None if size < limit else f"has {size} bytes, not less than {limit}"


def check_moved_jpgs(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """A folder's names, a line each, are these, in any order."""
    found, wanted = sorted(text_of(value).splitlines()), sorted(_rules(expected)["expected"])
    return None if found == wanted else f"are {_shown(found)}, not {_shown(wanted)}"


def check_direct_json_object(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Members of an object, single quotes taken for double ones: each is what is expected; with `expect_in_result` one of a list, or a text
    that is a part of it."""
    found, rules = _json(text_of(value).strip().replace("'", '"')), _rules(expected)
    if not isinstance(found, dict):
        return "is not a JSON object"
    holds = _has_part if rules.get("expect_in_result") else lambda known, wanted: bool(known == wanted)
    return (
        ", ".join(f"{name} is {_shown(found.get(name))}" for name, each in rules["expected"].items() if not holds(found.get(name), each))
        or None
    )


def _has_part(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and wanted in found
    return any(each in found if isinstance(found, list) else each == found for each in wanted)


def compare_result_files(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """A number, alone to four decimal places or as it is written with words around it; or a text, white space at the ends aside."""
    found, wanted = text_of(value).strip(), text_of(expected).strip()
    try:
        number = float(wanted)
    except ValueError:
        return None if found == wanted else f"is {_shown(found)}, not {_shown(wanted)}"
    try:
        is_so = wanted in found or abs(float(found) - number) < 1e-4
    except ValueError:
        is_so = False
    return None if is_so else f"is {_shown(found)}, not {_shown(wanted)}"


def compare_image_list(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """The same file, byte for byte: no picture is decoded here."""
    return None if isinstance(value, bytes) and value == expected else "is another file"


def compare_pdfs(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """The same text on their pages, white space at its ends aside."""
    found, wanted = (_of_pdf("pdftotext", "-", "-", content=each).strip() for each in (value, expected))
    return None if found == wanted else f"says {_shown(found)}, not {_shown(wanted)}"


def check_pdf_pages(value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """So many pages: `relation` (eq, ne, le, lt, ge, gt) to `ref_value`."""
    pages = re.search(r"^Pages:\s+(\d+)$", _of_pdf("pdfinfo", "-", content=value), re.MULTILINE)
    rules = _rules(expected)
    if pages is None:
        return "has no pages"
    is_so = JSON_METHODS[rules["relation"]](int(pages[1]), rules["ref_value"])
    return None if is_so else f"has {pages[1]} pages, which is not {rules['relation']} {rules['ref_value']}"


def _of_pdf(*command: str, content: Any) -> str:
    """What a program of Poppler prints of a PDF file. Raises ValueError for what it cannot read, and where it is not installed."""
    if not isinstance(content, bytes):
        raise ValueError("not a file")
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=False)  # nosec B603 # in a jail, a program of ours
    except OSError:
        raise ValueError(f"{command[0]} is not there (Debian: {POPPLER})") from None
    if done.returncode != 0:
        raise ValueError("not a PDF file")
    return done.stdout.decode("utf-8", "replace")


def _json(value: Result) -> Any:
    try:
        return json.loads(text_of(value))
    except ValueError:
        return None


METRICS: Mapping[str, Metric] = {
    "exact_match": exact_match,
    "match_in_list": match_in_list,
    "literal_match": literal_match,
    "check_include_exclude": check_include_exclude,
    "file_contains": file_contains,
    "compare_text_file": compare_text_file,
    "diff_text_file": diff_text_file,
    "compare_csv": compare_csv,
    "check_csv": check_csv,
    "check_list": check_list,
    "check_line_number": check_line_number,
    "check_json_settings": check_json_settings,
    "check_json": check_json,
    "check_file_exists": check_file_exists,
    "compare_table": compare_table,
    "compare_conference_city_in_order": conference_cities,
    "check_direct_json_object": check_direct_json_object,
    "compare_result_files": compare_result_files,
    "compare_image_list": compare_image_list,
    "compare_pdfs": compare_pdfs,
    "check_pdf_pages": check_pdf_pages,
    "sheet_print": sheet_print,
    "check_image_file_size": check_image_file_size,
    "check_moved_jpgs": check_moved_jpgs,
    "compare_config": lambda value, expected, options: compare_text_file(value, _rules(expected).get("expected", ""), options),
    "compare_answer": lambda value, expected, options: exact_match(text_of(value).strip(), expected, options),
}


def main() -> int:
    """One comparison from standard input: a line of JSON (function, options, and kind and length of both parts), then the parts. Prints as
    JSON why it does not pass, or null."""
    head = json.loads(sys.stdin.buffer.readline())
    raw = [(kind, sys.stdin.buffer.read(length)) for kind, length in head["parts"]]
    value, expected = (data if kind == "bytes" else json.loads(data) for kind, data in raw)
    try:
        reason = METRICS[head["function"]](value, expected, head["options"])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        reason = f"cannot be compared: {type(error).__name__} {error}"[:200]
    print(json.dumps(reason))
    return 0
