"""Whether a goal can fail and can hold: a rule with a misspelt name, an empty text that is in every file, a pattern that does not compile.
Asked of every goal when a task is imported, and again before an episode's goals are checked, since parameters fill them in. How goals are
compared is metrics.py's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sandbox.tasks.imported.metrics import JSON_METHODS, METRICS
from sandbox.tasks.imported.spec import Answers, Compare, DeviceSays, FileContains, Goal, Not, Several
from sandbox.tasks.imported.spreadsheets import FUZZY_FIELDS, FUZZY_TYPES, METHODS, RANGES, SHEET, TABLE_RULES
from sandbox.tasks.imported.workbook import area, coordinates
from sandbox.tasks.imported.workbook_objects import CHART_PROPS, PIVOT_PROPS
from sandbox.tasks.imported.workbook_settings import COLUMN_PROPS, ROW_PROPS, VALIDATION_PROPS
from sandbox.tasks.imported.workbook_styles import STYLE_PROPS

MAX_PATTERN_CHARS = 2_000
Fault = str | None
"""Why something is invalid; None where it is valid."""


def faults(goal: Goal) -> Iterator[str]:
    """What is wrong with a goal, or with those inside of it."""
    match goal:
        case Several(goals=inside):
            for each in inside:
                yield from faults(each)
        case Not(goal=inner):
            yield from faults(inner)
        case Compare():
            if fault := _compare(goal):
                yield f"{goal.function} {fault}"
        case FileContains(texts=texts) if "" in texts:
            yield "looks for an empty text, which every file has"
        case DeviceSays(expected="", is_part=True):
            yield "looks for an empty text, which every output has"
        case Answers(text=text) if not any(character.isalnum() for character in text):
            yield "wants an answer without a letter or a digit"


def _compare(goal: Compare) -> Fault:
    if goal.function not in METRICS:
        return f"is not a comparison; there are {', '.join(METRICS)}"
    if goal.result.value is not None or goal.result.asset is not None:
        return "looks at nothing of the machine: its `result` is a command or a file"
    if goal.function == EXISTENCE:
        return None if goal.result.file is not None else "looks at a file, not at what a command prints"
    if unknown := [name for name, value in goal.options.items() if value and name not in OPTIONS.get(goal.function, ())]:
        return f"has no option `{unknown[0]}`" + _known(OPTIONS.get(goal.function, ()))
    if goal.function == "compare_table":
        return _table(goal)
    if goal.expected is None:
        return "has nothing to compare with (`expected`)"
    if goal.expected.value is not None:
        return _rules(goal.function, goal.expected.value)
    return "compares with rules, not with a file or a command" if goal.function in TAKES_RULES else None


def _table(goal: Compare) -> Fault:
    """Of a comparison of workbooks."""
    rules = goal.options.get("rules")
    if not isinstance(rules, (list, tuple)) or not rules:
        return "has no rule, so it would always hold" + _known(TABLE_RULES)
    if goal.expected is not None and goal.expected.asset is None and goal.expected.file is None:
        return "compares with a file"
    return next((fault for rule in rules if (fault := _table_rule(rule, goal.expected is not None))), None)


def _table_rule(rule: Any, is_expected: bool) -> Fault:
    kind = rule.get("type") if isinstance(rule, Mapping) else None
    if not isinstance(kind, str) or kind not in TABLE_RULES:
        return f"has the rule {kind!r}" + _known(TABLE_RULES)
    if unknown := [name for name in rule if name not in ("type", *TABLE_RULES[kind])]:
        return f"has a rule {kind} with `{unknown[0]}`" + _known(TABLE_RULES[kind])
    sheets = [rule.get(name) for name in TABLE_RULES[kind] if name.startswith("sheet_idx")]
    if not all(SHEET.fullmatch(f"RI{each}" if isinstance(each, int) else str(each)) for each in sheets):
        return f"has a rule {kind} that names no sheet: RI0, RNname of the result, EI0, ENname of what is expected"
    looks_at_expected = kind == "sheet_name" or any(str(each).startswith("E") for each in sheets)
    if looks_at_expected and not is_expected:
        return "has nothing to compare with (`expected`)"
    if len(sheets) == 2 and sheets[0] == sheets[1]:
        return f"has a rule {kind} that compares a sheet with itself"
    return _table_values(kind, rule)


def _table_values(kind: str, rule: Mapping[str, Any]) -> Fault:
    if kind in LISTED_PROPS:
        return _listed_props(kind, rule)
    match kind:
        case "zoom":
            return _method(rule)
        case "check_cell":
            props = rule.get("props")
            return _tested_props(kind, props, ("value", *STYLE_PROPS)) or _ranges([rule.get("coordinate")])
        case "data_validation":
            wanted = rule.get("dv_props")
            if not isinstance(wanted, (list, tuple)) or not wanted:
                return "has a rule data_validation without `dv_props`"
            return next((fault for props in wanted if (fault := _tested_props(kind, props, VALIDATION_PROPS))), None)
        case "sheet_fuzzy":
            inner = rule.get("rules")
            if not isinstance(inner, (list, tuple)) or not inner or not all(isinstance(each, Mapping) for each in inner):
                return "has a rule sheet_fuzzy without `rules`"
            return next((fault for each in inner if (fault := _fuzzy(each))), None)
        case "sheet_data" if not isinstance(rule.get("precision", 0), int):
            return "has a rule sheet_data whose `precision` is not a whole number"
    return None


def _listed_props(kind: str, rule: Mapping[str, Any]) -> Fault:
    """Of a rule that lists the properties in which two sheets should agree; a chart and a pivot table are found by their data as well."""
    field, known = LISTED_PROPS[kind]
    props = rule.get(field, ())
    if not isinstance(props, (list, tuple)) or (not props and field == "props"):
        return f"has a rule {kind} without a list `{field}`" + _known(known)
    unknown = next((each for each in props if each not in known), None)
    return None if unknown is None else f"has a rule {kind} with the property {unknown!r}" + _known(known)


def _tested_props(kind: str, props: Any, known: Sequence[str]) -> Fault:
    """Of properties, each with a method and what it is compared with."""
    if not isinstance(props, Mapping) or not props or not all(isinstance(test, Mapping) for test in props.values()):
        return f"has a rule {kind} without a property" + _known(known)
    for prop, test in props.items():
        if prop not in known:
            return f"has a rule {kind} of a property that is not read here, {prop}" + _known(known)
        if fault := _areas(test) if prop == "ranges" else _method(test):
            return fault
    return None


def _areas(test: Mapping[str, Any]) -> Fault:
    """Of the ranges that a validation is for."""
    ref = test.get("ref")
    if (
        test.get("method") != RANGES
        or not isinstance(ref, (list, tuple))
        or len(ref) != 2
        or not all(isinstance(each, str) for each in ref)
    ):
        return f"has a rule whose `ranges` are not compared by {RANGES} with two texts"
    try:
        return None if [area(each) for text in ref or () for each in text.split()] else "has a rule without a range of cells"
    except ValueError as error:
        return f"has a rule where {error}"


def _fuzzy(rule: Mapping[str, Any]) -> Fault:
    if unknown := [name for name in rule if name not in FUZZY_FIELDS]:
        return f"has a rule sheet_fuzzy with `{unknown[0]}`" + _known(FUZZY_FIELDS)
    if rule.get("type") not in FUZZY_TYPES:
        return f"has a rule sheet_fuzzy of the type {rule.get('type')!r}" + _known(FUZZY_TYPES)
    if not isinstance(rule.get("threshold", 0), (int, float)):
        return "has a rule sheet_fuzzy whose `threshold` is not a number"
    if not all(isinstance(rule.get(name, ""), str) for name in ("ignore_chars", "trim_leadings", "trim_trailings")):
        return "has a rule sheet_fuzzy that leaves out what is not a text"
    pairs = rule.get("normalization", ())
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        return "has a rule sheet_fuzzy whose `normalization` is not a list of pairs"
    if fault := next((fault for pair in pairs for part in pair[:1] if (fault := _text(part))), None):
        return f"has a rule sheet_fuzzy whose `normalization` {fault}"
    return _ranges(rule.get("range"))


def _ranges(value: Any) -> Fault:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, str) for each in value):
        return "has a rule without a range of cells"
    try:
        for _ in coordinates(value):
            pass
    except ValueError as error:
        return f"has a rule where {error}"
    return None


def _method(rule: Mapping[str, Any]) -> Fault:
    """Of {method, ref}."""
    method, ref = rule.get("method"), rule.get("ref")
    if not isinstance(method, str) or "ref" not in rule:
        return "has a rule without `method` and `ref`"
    if re.fullmatch(r"re(\.[AIMSX])*", method):
        return _pattern(ref)
    if re.fullmatch(r"approx:\d*\.?\d+", method):
        return None if isinstance(ref, (int, float)) else "has a rule approx whose `ref` is not a number"
    if re.fullmatch(r"range\.[et][et]", method) or method in ("str_list_eq", "str_set_eq"):
        kinds = (int, float) if method.startswith("range") else str
        is_list = isinstance(ref, (list, tuple)) and all(isinstance(each, kinds) for each in ref) and (kinds is str or len(ref) == 2)
        return None if is_list else f"has a rule {method} whose `ref` is not a list of its values"
    return None if method in METHODS else f"has the method {method!r}" + _known((*METHODS, "approx:NUMBER", "range.te", "re"))


def _rules(function: str, value: Any) -> Fault:
    if function not in RULES:
        return None if isinstance(value, str) else "compares with a text or a file"
    known = RULES[function]
    if not isinstance(value, Mapping):
        value = {"expected": value}
    if unknown := [name for name in value if name not in known]:
        return f"has no rule `{unknown[0]}`" + _known(known)
    if fault := next((f"`{name}` {why}" for name, each in value.items() if each is not None and (why := known[name](each))), None):
        return f"has an invalid rule: {fault}"
    asks = any(each not in (None, [], {}) and not isinstance(each, bool) for each in value.values())
    return None if asks else "has no rule, so it would always hold" + _known(known)


def _known(names: Any) -> str:
    return f"; there are {', '.join(names)}" if names else ""


def _each(why: Callable[[Any], Fault]) -> Callable[[Any], Fault]:
    """Of a list, where an empty one asks for nothing."""

    def of_all(value: Any) -> Fault:
        if not isinstance(value, (list, tuple)):
            return f"is {type(value).__name__}, expected a list"
        return next((fault for item in value if (fault := why(item))), None)

    return of_all


def _text(value: Any) -> Fault:
    return "has an item that is not text" if not isinstance(value, str) else "has an empty text" if not value else None


def _scalar(value: Any) -> Fault:
    return None if isinstance(value, (str, int, float)) else f"is {type(value).__name__}, expected a text or a number"


def _number(value: Any) -> Fault:
    return None if isinstance(value, (int, float)) and value > 0 else "is not a number above 0"


def _pattern(value: Any) -> Fault:
    if fault := _text(value):
        return fault
    if len(value) > MAX_PATTERN_CHARS:
        return f"has a regular expression of {len(value):,} characters; at most {MAX_PATTERN_CHARS:,} are allowed"
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return f"has {value!r}, which is not a regular expression ({error})"
    return None


def _record(value: Any) -> Fault:
    return None if isinstance(value, Mapping) and value else "has an item that names no column"


def _settings(value: Any) -> Fault:
    return None if isinstance(value, Mapping) else "is not an object of names and values"


def _members(value: Any) -> Fault:
    if not isinstance(value, Mapping):
        return "is not an object of names and values"
    return next((f"wants nothing of {name!r}" for name, each in value.items() if each in ("", [], None)), None)


def _relation(value: Any) -> Fault:
    return None if value in ORDERS else f"is {value!r}; there are {', '.join(ORDERS)}"


def _switch(value: Any) -> Fault:
    return None if isinstance(value, bool) else "is neither true nor false"


def _texts(value: Any) -> Fault:
    """One text, or several of which one is enough."""
    return _each(_text)(value if isinstance(value, (list, tuple)) and value else [value])


def _json_rule(value: Any) -> Fault:
    if not isinstance(value, Mapping) or not isinstance(value.get("key"), (list, tuple)) or "ref" not in value:
        return "has an item without `key` (a list) or `ref`"
    if unknown := set(value) - {"key", "method", "ref"}:
        return f"has an item with `{min(unknown)}`; there are key, method, ref"
    method = value.get("method", "eq")
    if method not in JSON_METHODS:
        return f"has the method {method!r}; there are {', '.join(JSON_METHODS)}"
    return _pattern(value["ref"]) if method == "re" else None


EXISTENCE = "check_file_exists"
ORDERS = ("eq", "ne", "le", "lt", "ge", "gt")
LISTED_PROPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "chart": ("chart_props", CHART_PROPS),
    "pivot_table": ("pivot_props", PIVOT_PROPS),
    "style": ("props", STYLE_PROPS),
    "row_props": ("props", ROW_PROPS),
    "col_props": ("props", COLUMN_PROPS),
}
"""By rule of compare_table: the field that lists properties, and the allowed ones."""
RULES: Mapping[str, Mapping[str, Callable[[Any], Fault]]] = {
    "exact_match": {"expected": _scalar},
    "literal_match": {"expected": _scalar},
    "compare_answer": {"expected": _scalar},
    "compare_config": {"expected": _scalar},
    "check_line_number": {"expected": _scalar},
    "match_in_list": {"expected": _each(_scalar)},
    "file_contains": {"expected": _each(_text)},
    "check_include_exclude": {"include": _each(_text), "exclude": _each(_text)},
    "check_csv": {"expect": _each(_record), "unexpect": _each(_record)},
    "check_list": {"expect": _each(_pattern), "unexpect": _each(_pattern)},
    "check_json_settings": {"expected": _settings},
    "check_image_file_size": {"max_size": _number},
    "check_moved_jpgs": {"expected": _each(_text)},
    "check_json": {"expect": _each(_json_rule), "unexpect": _each(_json_rule)},
    "check_direct_json_object": {"expected": _members, "expect_in_result": _switch, "result_not_list": _switch},
    "compare_conference_city_in_order": {"expected": _each(_texts)},
    "check_pdf_pages": {"relation": _relation, "ref_value": _number},
}
"""By comparison and rule: what is wrong with its value. A comparison that is not here takes a text or a file whole."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "literal_match": ("ignore_case", "type"),
    "compare_text_file": ("ignore_blanks", "ignore_case"),
    "compare_csv": ("strict", "ignore_case"),
    "compare_table": ("rules",),
    "sheet_print": ("ignore_case",),
}
TAKES_RULES = frozenset(
    (
        "match_in_list",
        "check_include_exclude",
        "file_contains",
        "check_csv",
        "check_list",
        "check_json",
        "check_json_settings",
        "check_image_file_size",
        "check_moved_jpgs",
        "check_direct_json_object",
        "compare_conference_city_in_order",
        "check_pdf_pages",
    )
)
"""What they compare with is never the content of a file or the output of a command."""
