"""The words of the training tasks' pages: what the quickstart tokenizer gives a token of its own, and what tutorials are written with.

The list is data (words.txt), made by agent/build_words.py from what oracles see on training instances and from the lessons' own wording.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

WORDS_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> tuple[str, ...]:
    """The committed list, one word a line, in alphabetical order."""
    return tuple(WORDS_FILE.read_text(encoding="ascii").split())
