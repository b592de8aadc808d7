"""How a session of each kind is made: one literal table. What a kind needs is imported when the first session of it is made.

Which kind a task needs is said in sources.py; who may use a session, and for how long, by the pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sandbox.browser.page_session import Limits, OpenPage, PageSession
from sandbox.page_task import PageTasks
from sandbox.session import Session
from sandbox.sources import SessionKind


class PooledSession(Session, Protocol):
    """What a pool needs of a session beside the protocol."""

    screenshots: bool

    @property
    def environment(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a session may be made of: pages in a browser of the pool, the sources that live in pages, limits of wall-clock time."""

    open_page: OpenPage
    page_tasks: PageTasks
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """`max_at_once`: how many sessions of the kind one pool keeps, unless it is told otherwise; None: as many as it has seats."""

    make: Callable[[Parts], PooledSession]
    max_at_once: int | None = None


def _page(parts: Parts) -> PooledSession:
    return PageSession(parts.open_page, parts.page_tasks, limits=parts.limits)


MAKERS: Mapping[SessionKind, Maker] = {
    "page": Maker(make=_page),
}


def limits_at_once(wanted: Mapping[SessionKind, int] | None = None) -> dict[SessionKind, int]:
    """How many sessions of a kind there may be at once: as wanted, else as the table says. Kinds without a limit are not named."""
    return {kind: maker.max_at_once for kind, maker in MAKERS.items() if maker.max_at_once is not None} | dict(wanted or {})
