"""PageView: what a verifier or an oracle of a web page may look at. The page as it is now, what it has asked for, and a database.

Verifiers are plain functions. They run in a thread of their own, so they may wait: for the page, which `text` and `query` ask, for a
database, for a server of theirs.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sandbox.actions import Action, Click, Scroll
from sandbox.session import Observation
from sandbox.tasks.page_task import MAX_SENT, SentRequest, WebStepContext
from warehouse.core.errors import SandboxError

QUERY_SCRIPT = Path(__file__).with_name("page_view.js").read_text(encoding="utf-8").partition("\n")[2].strip()
TEXT_SCRIPT = "() => [document.title, document.body ? document.body.innerText.slice(0, 1_000_000) : '']"
MAX_NODES = 1_000
ASK_S = 20.0


class NotThere(LookupError):
    """The page does not show what was asked for, or cannot be asked now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An element of the page's main frame. `text` is what of it is shown, `value` what a field holds; `checked` of a box, a choice or an
    option. The point is its centre, in pixels of the viewport; `shown` also where that lies outside of it."""

    tag: str
    text: str
    value: str
    checked: bool
    attributes: Mapping[str, str]
    shown: bool
    x: float
    y: float


class PageView:
    """`facts` are the instance's, `answer` what the agent finished with, None where it has not; `requests` all that the page has asked for
    since the start; `database` the task's file, if it has one."""

    def __init__(
        self,
        context: WebStepContext,
        *,
        facts: Mapping[str, Any],
        answer: str | None,
        database: Path | None,
        observation: Observation | None = None,
    ) -> None:
        self.url = context.url
        self.actions: Sequence[Action] = tuple(context.actions)
        self.facts, self.answer, self.database = facts, answer, database
        self.observation = observation
        """Of an oracle: what the agent sees."""
        self._context = context
        self._loop = asyncio.get_running_loop()

    @property
    def requests(self) -> Sequence[SentRequest]:
        """Raises NotThere where there were too many to keep."""
        if len(self._context.sent) > MAX_SENT:
            raise NotThere(f"the page made more than {MAX_SENT} requests")
        return tuple(self._context.sent)

    @property
    def title(self) -> str:
        return self._shown[0]

    @property
    def text(self) -> str:
        """What the page's main frame shows, as a person would copy it."""
        return self._shown[1]

    @cached_property
    def _shown(self) -> tuple[str, str]:
        title, text = self._ask(TEXT_SCRIPT)
        return str(title), str(text)

    def query(self, selector: str) -> tuple[Node, ...]:
        """The elements that a CSS selector matches, up to MAX_NODES. Raises ValueError for a bad selector, NotThere where no page is
        shown."""
        found = self._ask(QUERY_SCRIPT, selector, MAX_NODES)
        if found is None:
            raise ValueError(f"{selector!r} is not a CSS selector")
        return tuple(Node(**each) for each in found)

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Of a query of the database, which is opened for reading only. Raises ValueError where the task has none, sqlite3.Error."""
        if self.database is None:
            raise ValueError("the task names no database: give it one")
        with closing(sqlite3.connect(f"{self.database.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]

    def click(self, selector: str) -> Action:
        """For an oracle: a click on the first shown element that a selector matches, or a scroll towards it. Raises NotThere
        where none is shown."""
        node = next((each for each in self.query(selector) if each.shown), None)
        if node is None:
            raise NotThere(f"the page shows no {selector!r}")
        height = self.observation.height_px if self.observation is not None else node.y + 1
        if not 0 <= node.y < height:
            return Scroll(direction="up" if node.y < 0 else "down")
        return Click(x=round(node.x), y=round(node.y))

    async def _inspect(self, function: str, *arguments: Any) -> Any:
        return await self._context.inspect(function, *arguments)

    def _ask(self, function: str, *arguments: Any) -> Any:
        asking = asyncio.run_coroutine_threadsafe(self._inspect(function, *arguments), self._loop)
        try:
            return asking.result(ASK_S)
        except (SandboxError, TimeoutError, CancelledError) as error:
            asking.cancel()
            raise NotThere(f"the page cannot be read: {error or type(error).__name__}") from error
