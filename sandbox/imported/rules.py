"""Whether a goal can fail and can hold: a rule with a misspelt name, an empty text that is in every file, a pattern that does not compile.
Asked of every goal when a task is imported, and again before an episode's goals are checked, since parameters fill them in. How goals are
compared is metrics.py's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sandbox.imported.metrics import JSON_METHODS, METRICS
from sandbox.imported.spec import Answers, Compare, DeviceSays, FileContains, Goal, Not, Several

MAX_PATTERN_CHARS = 2_000
Fault = str | None
"""Why something is no good; None where it is."""


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
        return f"is no comparison; there are {', '.join(METRICS)}"
    if goal.result.value is not None or goal.result.asset is not None:
        return "looks at nothing of the machine: its `result` is a command or a file"
    if goal.function == EXISTENCE:
        return None if goal.result.file is not None else "looks at a file, not at what a command prints"
    if unknown := [name for name, value in goal.options.items() if value and name not in OPTIONS.get(goal.function, ())]:
        return f"has no option `{unknown[0]}`" + _known(OPTIONS.get(goal.function, ()))
    if goal.expected is None:
        return "is not told what to compare with (`expected`)"
    if goal.expected.value is not None:
        return _rules(goal.function, goal.expected.value)
    return "compares with rules, not with a file or a command" if goal.function in TAKES_RULES else None


def _rules(function: str, value: Any) -> Fault:
    if function not in RULES:
        return None if isinstance(value, str) else "compares with a text or a file"
    known = RULES[function]
    if not isinstance(value, Mapping):
        value = {"expected": value}
    if unknown := [name for name in value if name not in known]:
        return f"has no rule `{unknown[0]}`" + _known(known)
    if fault := next((f"`{name}` {why}" for name, each in value.items() if each is not None and (why := known[name](each))), None):
        return f"has a rule that is no good: {fault}"
    return None if any(each not in (None, [], {}) for each in value.values()) else "has no rule, so it would always hold" + _known(known)


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
    return "has an item that is no text" if not isinstance(value, str) else "has an empty text" if not value else None


def _scalar(value: Any) -> Fault:
    return None if isinstance(value, (str, int, float)) else f"is {type(value).__name__}, expected a text or a number"


def _pattern(value: Any) -> Fault:
    if fault := _text(value):
        return fault
    if len(value) > MAX_PATTERN_CHARS:
        return f"has a regular expression of {len(value):,} characters; at most {MAX_PATTERN_CHARS:,} are allowed"
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return f"has {value!r}, which is no regular expression ({error})"
    return None


def _record(value: Any) -> Fault:
    return None if isinstance(value, Mapping) and value else "has an item that names no column"


def _settings(value: Any) -> Fault:
    return None if isinstance(value, Mapping) else "is no object of names and values"


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
RULES: Mapping[str, Mapping[str, Callable[[Any], Fault]]] = {
    "exact_match": {"expected": _scalar}, "literal_match": {"expected": _scalar}, "compare_answer": {"expected": _scalar},
    "compare_config": {"expected": _scalar}, "check_line_number": {"expected": _scalar}, "match_in_list": {"expected": _each(_scalar)},
    "file_contains": {"expected": _each(_text)}, "check_include_exclude": {"include": _each(_text), "exclude": _each(_text)},
    "check_csv": {"expect": _each(_record), "unexpect": _each(_record)},
    "check_list": {"expect": _each(_pattern), "unexpect": _each(_pattern)}, "check_json_settings": {"expected": _settings},
    "check_json": {"expect": _each(_json_rule), "unexpect": _each(_json_rule)},
}  # fmt: skip
"""By comparison and rule: what is wrong with its value. A comparison that is not here takes a text or a file whole."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "literal_match": ("ignore_case", "type"), "compare_text_file": ("ignore_blanks", "ignore_case"),
    "compare_csv": ("strict", "ignore_case"),
}  # fmt: skip
TAKES_RULES = frozenset((
    "match_in_list", "check_include_exclude", "file_contains", "check_csv", "check_list", "check_json", "check_json_settings"
))  # fmt: skip
"""What they compare with is never the content of a file or the output of a command."""
