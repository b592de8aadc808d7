"""What is private in a text, and the text without it. Pure; where it stands on the screen is pixels.py's.

The patterns and their proofs (a card's check digit, an IBAN's remainder) are those of warehouse/quality/personal_data.py. Beside them:
words that look random, as keys do; and texts that were seen to be secret in this session, e.g. what was typed into a password field. Those
are kept in memory only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from annotation.recordings.bundle import MAX_QUERY, TaskQuery
from warehouse.quality.personal_data import KINDS, is_card

NAMES = {
    "an e-mail address": "e-mail",
    "a card number": "card",
    "a bank account": "bank account",
    "a telephone number": "telephone",
    "a secret token": "token",
}
"""What a kind is called in brackets where it was taken out."""
_KINDS = tuple((NAMES[name], re.compile(pattern, re.ASCII), verify) for name, pattern, verify in KINDS)
_WORD = re.compile(r"[A-Za-z0-9+_~-]{20,}={0,2}")
_LOOSE = (
    ("e-mail", re.compile(r"[\w.%+-]{1,64}\s?[@©®]\s?[\w-]+(?:\.[\w-]+)*\.\s?[A-Za-z]{2,24}\b")),
    ("card", re.compile(r"(?<!\w)[\dOoIl](?:[ .-]?[\dOoIlSB]){12,18}(?!\w)")),
    (
        "token",
        re.compile(
            r"\b(?:AKIA|ASIA)[A-Z0-9]{6,}|\bgh[pousr]_?\s?[A-Za-z0-9]{8,}|\bgithub_pat_\w{4,}|\bsk-[\w-]{8,}|\bxox[abprs]-[\w-]{4,}"
            r"|\beyJ[\w-]{8,}"
        ),
    ),
)
"""For what shows on the screen, where a letter may be misread and a field may show a part: too much is taken out rather than too little."""
ENTROPY_BITS = 3.6
"""Bits a character, of the characters' own distribution: English words put together stay below, random letters and digits are above."""
HEX_BITS = 3.0
MIN_LITERAL = 4
MIN_BEGINNING = 5
_SPOKEN = {
    "zero": "0",
    "oh": "0",
    "o": "0",
    "one": "1",
    "two": "2",
    "to": "2",
    "too": "2",
    "three": "3",
    "four": "4",
    "for": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "ate": "8",
    "nine": "9",
}
SPOKEN_DIGITS = 9
"""So many digits said one after the other are taken for a number of somebody's."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A private part of a text: characters from `start` to before `end`."""

    start: int
    end: int
    kind: str


class Redactor:
    """Finds what is private. Learns secrets while a session goes on."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}

    def learn(self, secret: str, kind: str = "password") -> None:
        """Take a text for secret from now on, wherever it stands. Short ones would hit at random."""
        secret = secret.strip()
        if len(secret) >= MIN_LITERAL:
            self._secrets[secret.casefold()] = kind

    def find(self, text: str, *, loose: bool = False) -> list[Finding]:
        """Findings in order, which do not overlap. `loose` for text that was read off pixels."""
        found = [
            Finding(start=match.start(), end=match.end(), kind=name)
            for name, pattern, verify in _KINDS
            for match in pattern.finditer(text)
            if verify(match.group())
        ]
        found += [Finding(start=m.start(), end=m.end(), kind="token") for m in _WORD.finditer(text) if is_random(m.group())]
        found += self._found_learned(text, with_beginnings=loose)
        if loose:
            found += [Finding(start=m.start(), end=m.end(), kind=name) for name, pattern in _LOOSE for m in pattern.finditer(text)]
            found += self._nearly(text)
        return _apart(found)

    def _found_learned(self, text: str, *, with_beginnings: bool = False) -> list[Finding]:
        folded, places = _folded(text)
        learned = [*self._learned(folded), *(self._begun(folded) if with_beginnings else ())]
        return [Finding(start=places[f.start], end=places[f.end - 1] + 1, kind=f.kind) for f in learned]

    def _learned(self, folded: str) -> Iterable[Finding]:
        """Learned secrets, each wherever it stands, also where it overlaps itself."""
        for secret, kind in self._secrets.items():
            at = folded.find(secret)
            while at >= 0:
                yield Finding(start=at, end=at + len(secret), kind=kind)
                at = folded.find(secret, at + 1)

    def _begun(self, folded: str) -> Iterable[Finding]:
        """The beginning of a learned secret: a picture may be from a moment at which it was not typed to its end."""
        for secret, kind in self._secrets.items():
            for length in range(len(secret) - 1, max(MIN_BEGINNING, len(secret) // 3) - 1, -1):
                at = folded.find(secret[:length])
                if at >= 0:
                    yield Finding(start=at, end=at + length, kind=kind)
                    break

    def _nearly(self, text: str) -> Iterable[Finding]:
        """Words that are a learned secret but for a letter or two that were misread, or the beginning of one."""
        for match in re.finditer(r"\S{4,}", text):
            word = match.group().casefold()
            for secret, kind in self._secrets.items():
                is_part = len(word) >= 6 and (word in secret or secret in word)
                if is_part or (abs(len(word) - len(secret)) <= 2 and _distance(word, secret) <= max(1, len(secret) // 5)):
                    yield Finding(start=match.start(), end=match.end(), kind=kind)

    def redact(self, text: str, *, loose: bool = False) -> tuple[str, tuple[str, ...]]:
        """The text with each finding's kind in brackets instead, and the kinds."""
        findings = self.find(text, loose=loose)
        return replace_findings(text, findings), tuple(finding.kind for finding in findings)

    def redact_run(self, texts: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Several texts that were typed one after the other, redacted as if they were one: an address is one whether or not its writer
        paused in the middle. What crosses from one into the next is named in the first."""
        results, offset = [], 0
        findings = self.find("".join(texts))
        for text in texts:
            end = offset + len(text)
            own = [
                Finding(start=max(f.start, offset) - offset, end=min(f.end, end) - offset, kind=f.kind)
                for f in findings
                if f.start < end and f.end > offset
            ]
            results.append((replace_findings(text, own), tuple(finding.kind for finding in own)))
            offset = end
        return results

    def redact_words(self, words: Sequence[str]) -> list[str | None]:
        """For each spoken word the kind that it is part of, or None: numbers said digit by digit, addresses said with "at" and "dot", and
        what was learned, also where it is several words."""
        kinds: list[str | None] = [None] * len(words)
        digits = [_SPOKEN.get(word.casefold(), word if word.isdigit() else "") for word in words]
        run: list[int] = []
        for index in range(len(words) + 1):
            if index < len(words) and digits[index]:
                run.append(index)
                continue
            number = "".join(digits[i] for i in run)
            if len(number) >= SPOKEN_DIGITS:
                kind = "card" if is_card(number) else "number"
                for i in run:
                    kinds[i] = kind
            run = []
        for at, dot in (
            (i, j)
            for i, w in enumerate(words)
            if w.casefold() == "at"
            for j in range(i + 2, min(i + 6, len(words) - 1))
            if words[j].casefold() == "dot"
        ):
            for i in range(max(0, at - 3), dot + 2):
                kinds[i] = "e-mail"
        learned, end = self._found_learned(" ".join(words)), -1
        for i, word in enumerate(words):
            start, end = end + 1, end + 1 + len(word)
            found = [*self.find(word), *(one for one in learned if one.start < end and one.end > start)]
            kinds[i] = kinds[i] or (found[0].kind if found else None)
        return kinds


def redacted_task(task: TaskQuery, redactor: Redactor) -> tuple[TaskQuery, tuple[str, ...]]:
    """What a person set out to do, without what is private in its words, and the kinds that were taken out. The redactor learns them."""
    texts = (task.query, *task.applications)
    findings = [(text, redactor.find(text)) for text in texts]
    for text, found in findings:
        for finding in found:
            redactor.learn(text[finding.start : finding.end], finding.kind)
    query, *applications = (replace_findings(text, found) for text, found in findings)
    kinds = tuple(finding.kind for _, found in findings for finding in found)
    return task.model_copy(update={"query": query[:MAX_QUERY], "applications": tuple(applications)}), kinds


def replace_findings(text: str, findings: Iterable[Finding]) -> str:
    parts, at = [], 0
    for finding in findings:
        parts += [text[at : finding.start], f"[{finding.kind}]"]
        at = finding.end
    return "".join([*parts, text[at:]])


def is_random(word: str) -> bool:
    """Whether a long word looks like a key: letters and digits mixed, and as many different ones as chance gives."""
    digits = sum(character.isdigit() for character in word)
    letters = sum(character.isalpha() for character in word)
    if not digits or not letters or digits < len(word) // 12:
        return False
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in Counter(word).values())
    is_hex = len(word) >= 32 and re.fullmatch(r"[0-9a-fA-F-]+", word) is not None
    return bits >= (HEX_BITS if is_hex else ENTROPY_BITS)


def _folded(text: str) -> tuple[str, Sequence[int]]:
    """A text in which letters' case makes no difference, and for each of its characters the place in the text that it came from: a letter
    may become several, e.g. ß two."""
    folded = text.casefold()
    if len(folded) == len(text):  # none becomes nothing, so each became one
        return folded, range(len(text))
    return folded, [place for place, character in enumerate(text) for _ in character.casefold()]


def _apart(findings: Iterable[Finding]) -> list[Finding]:
    """In order; what overlaps becomes one, named after the one that began first."""
    merged: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (f.start, -f.end)):
        if merged and finding.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Finding(start=last.start, end=max(last.end, finding.end), kind=last.kind)
        else:
            merged.append(finding)
    return merged


def _distance(one: str, other: str) -> int:
    """Edits from one word to the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row, before = [i], row
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]
