"""The search of a site: the index that its pages carry, and its ranking in Python. web/search.js ranks by the same rule in the page; that
both agree is tested. Integers throughout, so that they can.

A word counts by its rarity, round(100 · ln(pages / pages with it)), three times where the title has it; words on more than a third of the
pages count nothing.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FIRST_SCREEN = 8
"""So many results are shown; there is no second screen."""
TITLE_WEIGHT = 3
_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Runs of ASCII letters and digits in lower case, accents taken off. Marks between thousands split a number, as in the page."""
    decomposed = unicodedata.normalize("NFD", text)
    return _WORD.findall("".join(each for each in decomposed if not unicodedata.category(each).startswith("M")).lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """`pages` are [title, kind, path]; `words` are [rarity, places of pages with it in the title, of others with it]."""

    pages: Sequence[tuple[str, str, str]]
    words: Mapping[str, tuple[int, Sequence[int], Sequence[int]]]

    def results(self, query: str) -> list[str]:
        """Paths of the pages on the first screen, best first."""
        scores: dict[int, int] = {}
        for word in dict.fromkeys(words(query)):
            rarity, in_title, in_body = self.words.get(word, (0, (), ()))
            for places, weight in ((in_title, TITLE_WEIGHT), (in_body, 1)):
                for place in places:
                    scores[place] = scores.get(place, 0) + rarity * weight
        ranked = sorted((place for place, score in scores.items() if score > 0), key=lambda place: (-scores[place], place))
        return [self.pages[place][2] for place in ranked[:FIRST_SCREEN]]

    def as_json(self) -> dict[str, object]:
        return {"pages": self.pages, "words": self.words}


def index_of(documents: Iterable[tuple[str, str, str, str]]) -> Index:
    """From title, kind, path and text of each page, in an order that settles ties."""
    pages: list[tuple[str, str, str]] = []
    found: dict[str, tuple[list[int], list[int]]] = {}
    for title, kind, path, text in documents:
        place, in_title = len(pages), set(words(title))
        pages.append((title, kind, path))
        for word in in_title:
            found.setdefault(word, ([], []))[0].append(place)
        for word in set(words(f"{kind} {text}")) - in_title:
            found.setdefault(word, ([], []))[1].append(place)
    rarities = {word: round(100 * math.log(len(pages) / (len(title) + len(body)))) for word, (title, body) in found.items()}
    common = round(100 * math.log(3))
    return Index(
        pages=tuple(pages),
        words={
            word: (rarities[word], tuple(title), tuple(body))
            for word, (title, body) in sorted(found.items())
            if rarities[word] > common or len(pages) < 9
        },
    )
