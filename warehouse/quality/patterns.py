"""SQL for whether regular expressions match a long text, fast where they mostly do not: what must stand in a match is looked for first.
What patterns mean is RE2's; nothing here knows what is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKUP = '<>[]()" \n'
"""Characters that every other word of a page begins or ends with: to look for them first does not help."""


def matches_any(column: str, patterns: Sequence[str]) -> str:
    """SQL for whether any of the regular expressions matches. Where a pattern has a literal in every match, that is looked for first: it
    is some ten times faster than most expressions."""
    tests = []
    for pattern in patterns:
        needed = required_literal(pattern).lstrip(_MARKUP)
        first = f"{_holds(column, needed)} and " if needed else ""
        tests.append(f"({first}regexp_matches({column}, {quoted(pattern)}))")
    return f"({' or '.join(tests)})" if tests else "false"


def _holds(column: str, literal: str) -> str:
    """SQL for whether a text holds a literal, or at least its rarer end. `contains` jumps to the first character that can begin it, which
    is fastest by far where that is rare; from there on it compares at every byte, where RE2 takes several at a time. DuckDB would make
    `contains` of an expression that is a literal, hence the end that matches anything."""
    rare = next((i for i, character in enumerate(literal) if not character.islower() and character not in _MARKUP), None)
    if rare is not None:
        return f"contains({column}, {quoted(literal[rare:])})"
    return f"regexp_matches({column}, {quoted(re.escape(literal) + '.?')})"


def required_literal(pattern: str) -> str:
    """The longest run of characters that stands in every match of a pattern; empty where none is certain."""
    if re.search(r"\(\?(?!:)(?!m\))|\\[xQ0-7]", pattern) or "|" in re.sub(r"\((?:[^()\\]|\\.)*\)", "", pattern):
        return ""
    # Sets, groups and classes end a run of literals; what may be left out or repeated is none.
    bare = re.sub(r"\[\^?\]?(?:[^\]\\]|\\.)*\]|\((?:[^()\\]|\\.)*\)|\\[A-Za-z]|[.^$]", "\0", pattern.removeprefix("(?m)"))
    if re.search(r"[()|]", re.sub(r"\\.", "", bare)):
        return ""
    bare = re.sub(r"(?:\\.|[^\0])(?=[*?{])", "\0", bare)
    runs = re.split(r"[\0*?+]|\{[^}]*\}", re.sub(r"\\(\W)", lambda found: "\0" if found[1] in "*?+{}" else found[1], bare))
    return max(runs, key=len)


def quoted(text: str) -> str:
    """A literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
