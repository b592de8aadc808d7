"""The words of the training tasks' pages: what the quickstart tokenizer gives a token of its own, and what tutorials are written with.

One list a curriculum (assets/seed_data/curricula.py), as data (words/web.txt …), made by assets/seed_data/build_words.py from what oracles
see on training instances and from the lessons' own wording.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from warehouse.core.errors import ConfigError

WORDS_FOLDER = Path(__file__).with_name("words")


def words_file(curriculum: str) -> Path:
    return WORDS_FOLDER / f"{curriculum}.txt"


@cache
def words(*curricula: str) -> tuple[str, ...]:
    """The words of some curricula together, in alphabetical order. Raises ConfigError for one that has no list."""
    found = {word for name in curricula for word in _listed(name)}
    return tuple(sorted(found))


def _listed(curriculum: str) -> Iterable[str]:
    try:
        return words_file(curriculum).read_text(encoding="ascii").split()
    except FileNotFoundError as error:
        there_are = ", ".join(sorted(path.stem for path in WORDS_FOLDER.glob("*.txt")))
        raise ConfigError(f"curriculum {curriculum!r} has no word list; known are {there_are}") from error
