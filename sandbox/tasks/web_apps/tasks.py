"""What a web task is made of: the application, where the agent starts, its instruction, the changes of state or the answer that are wanted,
and the way that an oracle takes. Instances are made by compose.py; what runs them is session.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.tasks.web_apps.apps import WebApp
from sandbox.tasks.web_apps.functions import Finder, Function
from sandbox.tasks.web_apps.state import Change, State, difference, unmet


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is typed into a finder to come nearer to a page."""

    finder: Finder
    column: str
    """Which column is looked in, where the finder lets one choose."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How to come to a page by what can be clicked: its path, then those that lead there, the nearest first, and a search that shows one
    of them."""

    paths: tuple[str, ...]
    search: Search | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a function: what is set in its form, and what changes by it."""

    function: Function
    route: Route
    values: Mapping[str, str]
    """By the field's name: text that is typed, the shown text of a choice, the value of a radio button."""
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A page where the answer is read. `texts` stand in one line of a table, or the page is the row's own (`route.paths[0]`)."""

    route: Route
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebInstance:
    """One instance. Success: the application's state differs from what it was by `changes`, all of them and nothing else, and the answer
    is given where there is one."""

    app: WebApp
    start: str
    instruction: str
    changes: tuple[Change, ...] = ()
    answer: str | None = None
    plan: tuple[Use | Look, ...]
    difficulty: float
    provenance: Mapping[str, str]
    content: Any
    dropped: Mapping[str, int] = field(default_factory=dict)


def reasons_against(instance: WebInstance, before: State, after: State, answer: str | None) -> list[str]:
    """Why an episode has not reached what is wanted; none where it has."""
    reasons = unmet(list(instance.changes), difference(before, after))
    if instance.answer is not None:
        if answer is None:
            reasons.append("no answer was given")
        elif plain(answer) != plain(instance.answer):
            reasons.append("the answer is another one")
    return reasons


def reference_of(instance: WebInstance) -> str:
    """What is wanted, for a judge that cannot look into the application."""
    wanted = [f"the answer {instance.answer!r} is given"] if instance.answer is not None else []
    wanted += [f"what is stored changes by: {change.describe()}" for change in instance.changes]
    return f"Right is that {'; and that '.join(wanted)}; and that nothing else that is stored changes."


def plain(text: str) -> str:
    """Case, quotes, and a full stop at the end do not count."""
    return " ".join(text.split()).strip(".\"'“”").casefold()


def is_done(use: Use, found: Sequence[Change]) -> bool:
    """Whether what a use changes is among what has changed. Of several uses of one row an update may hold the cells together."""
    for change in found:
        same_row = (change.op, change.table, change.key) == (use.change.op, use.change.table, use.change.key)
        if same_row and use.change.cells.items() <= change.cells.items():
            return True
    return False
