"""What a model may add to rules: a better wording of a question, and whether it knows the answer without looking. Both are protocols that a
caller fills in (chat.py has one for any OpenAI-compatible server); what is right is never asked of a model.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Protocol

from sandbox.tasks.browsing.answers import is_right, plain, says
from sandbox.tasks.browsing.instance import Instance

MAX_LENGTH_FACTOR = 3
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
_QUOTED = re.compile(r'"([^"]+)"')
_NAME = re.compile(r"(?<![.?!] )(?<!^)\b[A-Z][\w'’-]{2,}")


class Rewriter(Protocol):
    """Puts a question in other words. May raise SandboxError."""

    @property
    def name(self) -> str: ...

    def rewrite(self, question: str) -> str: ...


class ClosedBook(Protocol):
    """Answers from what it knows. May raise SandboxError."""

    def answer(self, question: str) -> str: ...


def fault(instance: Instance, wording: str) -> str | None:
    """Why a wording may not stand for a question: it says what is to be found out, or has lost what leads there."""
    if not wording or len(wording) > MAX_LENGTH_FACTOR * len(instance.question):
        return "it is empty or too long"
    if leaked := next((name for name in instance.names if says(wording, name)), None):
        return f"it names {leaked!r}"
    if any(form in plain(wording) for form in instance.forms if len(form) >= 4):
        return "it holds the answer"
    if lost := next((each for each in _must_stay(instance.question) if each not in wording), None):
        return f"it has lost {lost!r}"
    if "?" not in wording:
        return "it asks nothing"
    if _finds(instance, wording) and not _finds(instance, instance.question):
        return "one search for it finds the page with the answer"
    return None


def _finds(instance: Instance, wording: str) -> bool:
    """The site's own search has the last page of the way on its first screen."""
    return bool(instance.route) and instance.route[-1] in instance.corpus.index.results(wording)


def _must_stay(question: str) -> list[str]:
    """Figures, quotations, names and initials: without them it is another question."""
    clean = question.replace("ISO ", "")
    return list(dict.fromkeys([*_FIGURE.findall(clean), *_QUOTED.findall(clean), *_NAME.findall(clean), *_initials(clean)]))


def _initials(question: str) -> list[str]:
    return re.findall(r"begins with ([A-Z])\b", question)


def reworded(instance: Instance, wording: str, by: str) -> Instance:
    """The same question in other words. Raises ValueError with what is wrong with them."""
    wording = " ".join(wording.split())
    if (wrong := fault(instance, wording)) is not None:
        raise ValueError(wrong)
    return replace(instance, question=wording, worded_by=by)


def knows(instance: Instance, model: ClosedBook) -> bool:
    """The model answers without a look at any page."""
    return is_right(model.answer(instance.question), instance.forms)
