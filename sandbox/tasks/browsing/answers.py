"""Whether what an agent answered is the answer: equal after normalisation, to the name or one of its other names. A pure function of the
two texts; no page has a say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MAX_ANSWER_CHARS = 200
"""A longer answer is none."""
_QUOTES = "\"'`“”‘’«»"
_APOSTROPHES = str.maketrans("‘’ʻʼ`´", "''''''")
_NUMBER = re.compile(r"[-+]?\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?")


def plain(text: str) -> str:
    """Lower case without accents and without what surrounds it: spaces, quotation marks, a full stop, `the`."""
    text = unicodedata.normalize("NFKD", text.translate(_APOSTROPHES)).casefold()
    text = "".join(each for each in text if not unicodedata.combining(each))
    text = " ".join(text.split()).strip(_QUOTES + " ")
    if len(text) > 1 and text.endswith(".") and not text[:-1].endswith("."):
        text = text[:-1].rstrip(_QUOTES + " ")
    return text.removeprefix("the ")


def accepted_forms(name: str, aliases: Iterable[str] = ()) -> tuple[str, ...]:
    """What is right, in normal form. A number is also right without the marks between its thousands, and without its unit."""
    forms = {plain(each) for each in (name, *aliases)}
    number = _NUMBER.match(name)
    if number and number.end() < len(name) and name[number.end()] not in " °%":
        number = None  # "1-268" is not a number
    if number is not None:
        bare = number[0].replace(",", "").replace(" ", "")
        rest = name[number.end() :]
        forms |= {plain(bare + rest), plain(name)}
        if _is_unit(rest):
            forms |= {plain(bare), plain(number[0])}
    return tuple(sorted(forms - {""}))


def _is_unit(text: str) -> bool:
    """A unit may be left out; a side of the equator may not, and a list goes on with what is not a unit."""
    return text.strip() in {"", "km²", "g/cm³", "u", "Å", "KB"}


def is_right(answer: str | None, forms: Iterable[str]) -> bool:
    return answer is not None and len(answer) <= MAX_ANSWER_CHARS and plain(answer) in set(forms)


def says(text: str, name: str) -> bool:
    """Whether a text names it: its words in a row, or, of a name of several words, any long word of it."""
    words = re.findall(r"\w+", plain(text))
    parts = re.findall(r"\w+", plain(name))
    if not parts:
        return False
    in_row = any(words[start : start + len(parts)] == parts for start in range(len(words) - len(parts) + 1))
    return in_row or any(len(part) >= 4 and part in words for part in parts)
