"""Formulas of a workbook's conditional formats: numbers, texts, cells and ranges of their own sheet, operators, and the functions that such
conditions are made of. What a sheet's cells hold was computed by the program that wrote them; nothing is recalculated here.

The module needs the standard library alone: it runs in a jail (comparing.py). Source of the grammar: ECMA-376, part 1, clause 18.17.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from sandbox.tasks.imported.workbook import MAX_CELLS, Value, area, column, coordinates, letters

EPOCH = date(1899, 12, 30)
"""Day 0 of a workbook, for days from March 1900 on."""
Cell = Callable[[str], Value | None]
"""From a coordinate to what the cell holds."""
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)
    |(?P<text>"(?:[^"]|"")*")
    |(?P<range>\$?[A-Z]{1,3}\$?\d{1,7}(?::\$?[A-Z]{1,3}\$?\d{1,7})?(?![A-Za-z0-9_(!.]))
    |(?P<name>[A-Za-z][A-Za-z0-9_.]*)
    |(?P<operator><>|<=|>=|[-+*/^&=<>%(),;])
    )""",
    re.VERBOSE,
)
_BINARY = {"=": 1, "<>": 1, "<": 1, ">": 1, "<=": 1, ">=": 1, "&": 2, "+": 3, "-": 3, "*": 4, "/": 4, "^": 6}


class Unsupported(ValueError):
    """A formula that is not understood here."""


class Failed(ArithmeticError):
    """A formula whose result is an error, as #VALUE! is."""


class Formula:
    """Raises Unsupported for text that is none, or that wants more than there is here."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._tree = self._expression(0)
        if self._at != len(self._tokens):
            raise Unsupported(f"{text!r} does not end where it should")

    def result(self, cell: Cell, moved: tuple[int, int] = (0, 0)) -> Any:
        """Its value where cells that it does not fix lie so many columns and rows further. Raises Failed where that is an error."""
        return _value(self._tree, cell, moved)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, *wanted: str) -> tuple[str, str]:
        kind, text = self._peek()
        if wanted and text not in wanted:
            raise Unsupported(f"{text or 'the end'!r} where {' or '.join(wanted)} should be")
        self._at += 1
        return kind, text

    def _expression(self, least: int) -> Any:
        left = self._operand()
        while (text := self._peek()[1]) and self._peek()[0] == "operator" and _BINARY.get(text, -1) >= max(least, 1):
            self._take()
            left = ("binary", text, left, self._expression(_BINARY[text] + 1))
        return left

    def _operand(self) -> Any:
        kind, text = self._take()
        made: Any
        if kind == "number":
            made = ("constant", float(text))
        elif kind == "text":
            made = ("constant", text[1:-1].replace('""', '"'))
        elif kind == "range":
            made = ("range", text)
        elif kind == "name":
            made = self._named(text.upper())
        elif text in ("-", "+"):
            made = ("sign", text, self._expression(5))
        elif text == "(":
            made = self._expression(0)
            self._take(")")
        else:
            raise Unsupported(f"{text or 'the end'!r} where a value should be")
        while self._peek()[1] == "%":
            self._take()
            made = ("binary", "/", made, ("constant", 100.0))
        return made

    def _named(self, name: str) -> Any:
        if name in ("TRUE", "FALSE") and self._peek()[1] != "(":
            return ("constant", name == "TRUE")
        if name not in FUNCTIONS and name not in ("IF", "ISERROR", "IFERROR"):
            raise Unsupported(f"there is no function {name} here")
        self._take("(")
        arguments: list[Any] = []
        while self._peek()[1] != ")":
            arguments.append(self._expression(0))
            if self._peek()[1] in (",", ";"):
                self._take()
        self._take(")")
        return ("call", name, arguments)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"{text[at : at + 20]!r} is not understood")
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _value(tree: Any, cell: Cell, moved: tuple[int, int]) -> Any:
    match tree:
        case ("constant", value):
            return value
        case ("range", text):
            cells = [_known(cell(at)) for at in coordinates([_moved(text, moved)])]
            return cells if ":" in text else cells[0]
        case ("sign", sign, inner):
            number = _number(_value(inner, cell, moved))
            return -number if sign == "-" else number
        case ("binary", operator, left, right):
            return _joined(operator, _one(_value(left, cell, moved)), _one(_value(right, cell, moved)))
        case ("call", ("IF" | "ISERROR" | "IFERROR") as name, arguments):
            return _lazy(name, arguments, cell, moved)
        case (_, name, arguments):
            values = [_value(each, cell, moved) for each in arguments]
            try:
                return FUNCTIONS[name](*values)
            except (TypeError, ValueError, IndexError, OverflowError) as error:
                raise Failed(f"{name}: {error}") from None
    raise Unsupported("a formula of no known kind")


def _lazy(name: str, arguments: list[Any], cell: Cell, moved: tuple[int, int]) -> Any:
    """Functions that do not look at all of their arguments, or at an error."""
    if name == "IF":
        chosen = 1 if is_true(_value(arguments[0], cell, moved)) else 2
        return _value(arguments[chosen], cell, moved) if chosen < len(arguments) else False
    try:
        found = _value(arguments[0], cell, moved)
    except Failed:
        return True if name == "ISERROR" else _value(arguments[1], cell, moved)
    return False if name == "ISERROR" else found


def _moved(text: str, moved: tuple[int, int]) -> str:
    def corner(match: re.Match[str]) -> str:
        across = column(match[2]) + (0 if match[1] else moved[0])
        down = int(match[4]) + (0 if match[3] else moved[1])
        if across < 1 or down < 1:
            raise Failed("a cell left of the first column or above the first row")
        return f"{letters(across)}{down}"

    made = re.sub(r"(\$?)([A-Z]{1,3})(\$?)(\d{1,7})", corner, text)
    ends = area(made)
    if (ends.right - ends.left + 1) * (ends.bottom - ends.top + 1) > MAX_CELLS:
        raise Failed(f"{made} has more than {MAX_CELLS:,} cells")
    return made


def _known(value: Value | None) -> Value | None:
    if isinstance(value, str) and re.fullmatch(r"#(N/A|[A-Z0-9/]+[!?])", value):
        raise Failed(value)
    return value


def _one(value: Any) -> Any:
    if isinstance(value, list):
        raise Failed("a range where one value should be")
    return value


def _number(value: Any) -> float:
    value = _one(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise Failed(f"{value!r} is not a number") from None
    return float(value or 0)


def is_true(value: Any) -> bool:
    """As a condition. Raises Failed for a text."""
    return value if isinstance(value, bool) else _number(value) != 0


def text_of(value: Any) -> str:
    value = _one(value)
    if isinstance(value, bool):
        return str(value).upper()
    return "" if value is None else f"{value:.15g}" if isinstance(value, float) else value


def _joined(operator: str, left: Any, right: Any) -> Any:
    if operator == "&":
        return text_of(left) + text_of(right)
    if operator in ("=", "<>", "<", ">", "<=", ">="):
        return holds(operator, left, right)
    first, second = _number(left), _number(right)
    try:
        match operator:
            case "+":
                return first + second
            case "-":
                return first - second
            case "*":
                return first * second
            case "/":
                return first / second
        return math.pow(first, second)
    except (ZeroDivisionError, ValueError, OverflowError):
        raise Failed(f"{first} {operator} {second}") from None


def holds(operator: str, left: Any, right: Any) -> bool:
    """Two values compared: numbers before texts before truth values, letter case aside; an empty cell is 0 or an empty text."""
    left, right = (_like(right) if left is None else left), (_like(left) if right is None else right)
    first, second = _order(left), _order(right)
    return {
        "=": first == second,
        "<>": first != second,
        "<": first < second,
        ">": first > second,
        "<=": first <= second,
        ">=": first >= second,
    }[operator]


def _like(other: Any) -> Any:
    return "" if isinstance(other, str) else False if isinstance(other, bool) else 0.0


def _order(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 2, value
    return (1, value.casefold()) if isinstance(value, str) else (0, float(value))


def _flat(arguments: tuple[Any, ...]) -> list[Any]:
    return [item for each in arguments for item in (each if isinstance(each, list) else [each])]


def _numbers(arguments: tuple[Any, ...]) -> list[float]:
    """Numbers of ranges, where texts and truth values do not count, and of single values."""
    found = [item for each in arguments for item in (each if isinstance(each, list) else [_number(each)])]
    return [item for item in found if isinstance(item, (int, float)) and not isinstance(item, bool)]


def _find(part: Any, text: Any, start: Any = 1.0) -> float:
    found = text_of(text).find(text_of(part), int(_number(start)) - 1)
    if found < 0:
        raise Failed("not found")
    return float(found + 1)


def _search(part: Any, text: Any, start: Any = 1.0) -> float:
    return _find(text_of(part).casefold(), text_of(text).casefold(), start)


def _day(value: Any) -> date:
    return EPOCH + timedelta(days=math.floor(_number(value)))


def _weekday(value: Any, kind: Any = 1.0) -> float:
    monday = _day(value).weekday()
    counts = {1: (monday + 1) % 7 + 1, 2: monday + 1, 3: monday, **{10 + n: (monday - (n - 1)) % 7 + 1 for n in range(1, 8)}}
    if int(_number(kind)) not in counts:
        raise Failed(f"WEEKDAY has no kind {kind}")
    return float(counts[int(_number(kind))])


def _rank(value: Any, among: Any, is_ascending: Any = 0.0) -> float:
    numbers = _numbers((among,))
    ordered = sorted(numbers, reverse=not is_true(is_ascending))
    if _number(value) not in ordered:
        raise Failed("not one of the range")
    return float(ordered.index(_number(value)) + 1)


def _nth(among: Any, place: Any, is_largest: bool) -> float:
    numbers = sorted(_numbers((among,)), reverse=is_largest)
    index = int(_number(place)) - 1
    if not 0 <= index < len(numbers):
        raise Failed("no such place in the range")
    return numbers[index]


def _countif(among: Any, criterion: Any) -> float:
    operator, wanted = "=", criterion
    if isinstance(criterion, str):
        match = re.match(r"<>|<=|>=|[=<>]", criterion)
        operator, rest = (match[0], criterion[match.end() :]) if match else ("=", criterion)
        try:
            wanted = float(rest)
        except ValueError:
            wanted = rest
    alike = [each for each in _flat((among,)) if _order(_like(each) if each is None else each)[0] == _order(wanted)[0]]
    return float(sum(holds(operator, each, wanted) for each in alike if each is not None))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "AND": lambda *each: all(is_true(item) for item in _flat(each) if item is not None),
    "OR": lambda *each: any(is_true(item) for item in _flat(each) if item is not None),
    "NOT": lambda value: not is_true(value),
    "ISNUMBER": lambda value: isinstance(_one(value), (int, float)) and not isinstance(value, bool),
    "ISTEXT": lambda value: isinstance(_one(value), str),
    "ISBLANK": lambda value: _one(value) is None,
    "ISEVEN": lambda value: int(_number(value)) % 2 == 0,
    "ISODD": lambda value: int(_number(value)) % 2 == 1,
    "SEARCH": _search,
    "FIND": _find,
    "LEFT": lambda text, number=1.0: text_of(text)[: int(_number(number))],
    "RIGHT": lambda text, number=1.0: text_of(text)[max(0, len(text_of(text)) - int(_number(number))) :],
    "MID": lambda text, start, number: text_of(text)[int(_number(start)) - 1 :][: int(_number(number))],
    "LEN": lambda text: float(len(text_of(text))),
    "UPPER": lambda text: text_of(text).upper(),
    "LOWER": lambda text: text_of(text).lower(),
    "TRIM": lambda text: " ".join(text_of(text).split(" ")).strip(),
    "EXACT": lambda first, second: text_of(first) == text_of(second),
    "SUM": lambda *each: math.fsum(_numbers(each)),
    "MAX": lambda *each: max(_numbers(each), default=0.0),
    "MIN": lambda *each: min(_numbers(each), default=0.0),
    "AVERAGE": lambda *each: _joined("/", math.fsum(_numbers(each)), float(len(_numbers(each)))),
    "COUNT": lambda *each: float(len(_numbers(each))),
    "COUNTA": lambda *each: float(sum(item is not None for item in _flat(each))),
    "COUNTIF": _countif,
    "LARGE": lambda among, place: _nth(among, place, True),
    "SMALL": lambda among, place: _nth(among, place, False),
    "RANK": _rank,
    "ABS": lambda value: abs(_number(value)),
    "INT": lambda value: float(math.floor(_number(value))),
    "ROUND": lambda value, places=0.0: round(_number(value), int(_number(places))),
    "MOD": lambda value, divisor: _number(value) - _number(divisor) * math.floor(_joined("/", value, divisor)),
    "WEEKDAY": _weekday,
    "DAY": lambda value: float(_day(value).day),
    "MONTH": lambda value: float(_day(value).month),
    "YEAR": lambda value: float(_day(value).year),
}
