"""Points and escaped text as the UI-TARS family writes them. Which scale a point is in is the grammar's business.

Accepted for a point, whatever the generation: `<|box_start|>(x,y)<|box_end|>`, `<point>x y</point>`, `<bbox>x1 y1 x2 y2</bbox>`,
`[x1, y1, x2, y2]`, `(x, y)`, `x y`; a box stands for its middle; numbers may have decimals.
"""

from __future__ import annotations

import re

from agent.grammars.base import BadText

_TAG = re.compile(r"</?(?:point|bbox|box|\|?box_start\|?|\|?box_end\|?)>|<\|/?(?:point|box_start|box_end)\|>")
_FILLER = re.compile(r"[\s()\[\],;]+")
_NUMBER = re.compile(r"-?\d{1,7}(?:\.\d{1,12})?")
_TEXT_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TEXT_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}
_TEXT_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", '"': '\\"'})


def read_point(text: str) -> tuple[float, float]:
    """The point, in the units it is written in. Raises BadText."""
    numbers = [part for part in _FILLER.split(_TAG.sub(" ", text)) if part]
    if len(numbers) not in (2, 4) or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise BadText(f"{text[:60]!r} is not a point; write two numbers, or four for a box")
    values = [float(number) for number in numbers]
    return (values[0], values[1]) if len(values) == 2 else ((values[0] + values[2]) / 2, (values[1] + values[3]) / 2)


def escape_text(text: str) -> str:
    """Text between single quotes: backslash, quotes and line ends escaped."""
    return text.translate(_TEXT_ESCAPED)


def unescape_text(text: str) -> str:
    """The inverse of `escape_text`. An unknown escape stays as it is."""
    return _TEXT_ESCAPE.sub(lambda match: _TEXT_UNESCAPED.get(match.group(1), match.group(0)), text)
