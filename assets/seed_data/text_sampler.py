"""The text sampler of lessons: names, words, numbers, phrasings and running text, drawn from one random generator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from assets.seed_data.practice_page import PracticePage, Widget
from assets.seed_data.vocabulary import words

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
SYLLABLES = tuple("an be chi do en fa gri ha in ka la ma ni or pa ri sa ta ur ver ya".split())  # noqa: SIM905  one word is easier to read
CONFIRM = ("Submit", "Login", "OK", "Ok", "Send", "Save", "Done", "Search", "Next")


class TextSampler:
    """`vocabulary` are the words that it draws from: by default those of the web curriculum."""

    def __init__(self, rng: random.Random, vocabulary: Sequence[str] | None = None) -> None:
        self.rng = rng
        self._words = words("web") if vocabulary is None else vocabulary

    def often(self, share: float) -> bool:
        return self.rng.random() < share

    def word(self) -> str:
        return self.rng.choice(self._words)

    def words(self, *counts: int) -> str:
        """Running text of as many words as one of `counts`."""
        return " ".join(self.word() for _ in range(self.rng.choice(counts)))

    def label(self) -> str:
        """A label of a line on a page: one or two words, the first capitalised, of those whose lower-case form is a word too."""
        label = self.rng.choice(_both_cases(tuple(self._words)) or self._words).capitalize()
        return f"{label} {self.word().lower()}" if self.often(0.3) else label

    def string(self, longest: int = 8, shortest: int = 1) -> str:
        return "".join(self.rng.choice(CHARACTERS) for _ in range(self.rng.randint(shortest, longest)))

    def name(self) -> str:
        """A name: a random string, a word, two words, a word with a mark or a number."""
        kind = self.rng.random()
        if kind < 0.5:
            return self.string(self.rng.choice((3, 5, 8)))
        if kind < 0.78:
            return self.word()
        if kind < 0.86:
            return f"{self.word()} {self.word()}"
        if kind < 0.9:
            return f"{self.word()} {self.string(5)}"
        ending = self.rng.choice((",", ".", "!", "?", ":", f" #{self.rng.randint(1, 9)}", f" of {self.word()}", f"-{self.string(3)}"))
        return self.word() + ending

    def names(self, num: int) -> list[str]:
        """Distinct names; sometimes with a common stem, such as Part 1, Part 2, Part 3."""
        if num > 1 and self.often(0.15):
            stem = self.rng.choice((self.word() + " ", self.word() + " #", self.string(4, 2)))
            return [f"{stem}{number}" for number in self.rng.sample(range(1, 10), num)]
        drawn: dict[str, None] = {}
        while len(drawn) < num:
            drawn[self.name()] = None
        return list(drawn)

    def proper_name(self) -> str:
        """A made-up name of one or two words, long enough for prefixes and suffixes of it."""
        parts = ["".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.randint(3, 4))).capitalize()]
        if self.often(0.3):
            parts.append(self.rng.choice((self.word(), self.string(5, 3).capitalize())))
        return " ".join(parts)

    def quoted(self, name: str) -> str:
        """A name as an instruction writes it: quoted or not, sometimes in lower case."""
        said = name.lower() if self.often(0.08) else name
        return f'"{said}"' if self.often(0.4) and '"' not in said else said

    def confirm(self) -> Widget:
        return Widget("button", self.rng.choice(CONFIRM) if self.often(0.8) else self.name())

    def say(self, *phrasings: str, **parts: str) -> str:
        """One of several phrasings; sometimes with other words around it, so that phrasings are not memorised."""
        text = self.rng.choice(phrasings).format(**parts)
        if self.often(0.12):
            text = f"{self.words(1, 2, 3)}: {text}"
        return f"{text} {self.words(1, 2, 3)}." if self.often(0.06) else text

    def page(self, core: list[Widget], noise: float = 0.25) -> PracticePage:
        """The widgets in their order, sometimes with running text in between."""
        widgets = list(core)
        if self.often(noise):
            for _ in range(self.rng.randint(1, 2)):
                widgets.insert(self.rng.randint(0, len(widgets)), Widget("text", self.words(1, 2, 3, 6)))
        return PracticePage(widgets)


@cache
def _both_cases(vocabulary: tuple[str, ...]) -> tuple[str, ...]:
    """Words that are there with a capital as well."""
    known = set(vocabulary)
    return tuple(word for word in vocabulary if word.islower() and word.capitalize() in known)
