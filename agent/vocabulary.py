"""The words of the training tasks' pages: what the quickstart tokenizer gives a token of its own, and what tutorials are written with.

The list is data (words.txt): words that oracles' episodes showed on three or more of the first 60 training seeds of the quickstart tasks,
without those of suggestion lists, and the lessons' own wording. Nothing of a held-out instance or task was looked at.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

WORDS_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> tuple[str, ...]:
    """The committed list, one word a line, in alphabetical order."""
    return tuple(WORDS_FILE.read_text(encoding="ascii").split())
