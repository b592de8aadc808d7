"""The Page protocol: one web page under our hands, whatever drives it. And the small values that cross it.

Implementations: sandbox/browser/cdp/beginframe.py (frames and time under control), sandbox/browser/cdp/plain.py (any Chromium, real time),
sandbox/browser/playwright/page.py.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sandbox.actions import Action
from sandbox.browser.input import Phase
from sandbox.session import Element
from sandbox.tasks.page_task import SentRequest
from warehouse.core.errors import SandboxError, SandboxTimeout
from warehouse.storage.screenshots import pictures

ELEMENTS_SCRIPT = Path(__file__).with_name("elements.js").read_text(encoding="utf-8").strip()
SELECT_SCRIPT = Path(__file__).with_name("select.js").read_text(encoding="utf-8")


@dataclass(slots=True, kw_only=True)
class PageNotes:
    """What happened beside the page since it was last asked: dialogs that were answered, navigations and requests that were refused,
    and whether the page was left all the same. `has_stored` stays true: something was stored in the page's browser context, which would
    outlive the document."""

    dialogs: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    left_for: str | None = None
    has_stored: bool = False


STORED_EVENTS = (
    "DOMStorage.domStorageItemAdded",
    "DOMStorage.domStorageItemUpdated",
    "Storage.indexedDBListUpdated",
    "Storage.cacheStorageListUpdated",
)
"""Events of DevTools that report something stored, once STORED_COMMANDS were sent. File addresses are one origin, without cookies."""
STORED_COMMANDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("DOMStorage.enable", {}),
    ("Storage.trackIndexedDBForOrigin", {"origin": "file://"}),
    ("Storage.trackCacheStorageForOrigin", {"origin": "file://"}),
)

HAS_STORED_SCRIPT = "(() => { try { return localStorage.length + sessionStorage.length > 0; } catch { return true; } })()"
"""What a page can say at once. One that may not look is not a page of files any more."""
USAGE_COMMAND: tuple[str, dict[str, Any]] = ("Storage.getUsageAndQuota", {"origin": "file://"})
"""What the browser can say of databases and caches; by its answer the events of what was stored before have come."""


class Page(Protocol):
    """One page in a browser. Every method may raise a SandboxError; a cancelled one leaves the page unusable."""

    @property
    def browser_version(self) -> str: ...

    @property
    def time_ms(self) -> float:
        """Page time since the page was opened."""
        ...

    @property
    def notes(self) -> PageNotes: ...

    async def load(self, url: str) -> None:
        """Open an address and wait for its load event."""
        ...

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression. Raises SandboxError where it throws."""
        ...

    async def perform(self, phases: Sequence[Phase]) -> None:
        """Carry out input gestures."""
        ...

    async def rest(self) -> None:
        """Let go of every button and key, take the pointer out of sight, drop focus and where Tab goes on from, selection, scrolling,
        copied text, the window's name and, of a page of one task, the history. What the page's scripts hold in memory stays: a task
        whose restart does not set that right needs a fresh page."""
        ...

    async def is_reusable(self) -> bool:
        """Whether the next episode may start in it: nothing was stored that would outlive the document. Asks the page itself."""
        ...

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        """Let page time pass and draw; PNG of the viewport, or of no more than the observed area, if asked for."""
        ...

    async def close(self) -> None:
        """May be called twice."""
        ...


@runtime_checkable
class HasDevTools(Protocol):
    """A Page that a program beside us may drive, too."""

    async def devtools(self) -> str:
        """The address of its browser for the DevTools protocol."""
        ...


@runtime_checkable
class Untrusted(Protocol):
    """A Page that shows what the agent chose, or that a program beside us drives: where it fails, that may be the agent's doing."""

    async def is_to_blame(self) -> bool:
        """Whether a step or a look that failed or did not end is the doing of what is shown or of that program, and not of the browser or
        the machine."""
        ...

    def end_pages(self) -> None:
        """End the process of the pages, whatever their scripts do; they can only be closed then."""
        ...


@runtime_checkable
class WebPage(Untrusted, Protocol):
    """What a Page of a web session has besides (sandbox/browser/window/window.py)."""

    @property
    def url(self) -> str:
        """Address of what is shown; a page of the task by its path below the root."""
        ...

    async def elements(self) -> tuple[Element, ...]:
        """What is shown, frames included."""
        ...

    @property
    def sent(self) -> Sequence[SentRequest]:
        """As in WebStepContext."""
        ...

    async def inspect(self, function: str, *arguments: Any) -> Any:
        """As in WebStepContext."""
        ...

    async def act(self, action: Action) -> dict[str, Any] | None:
        """What the window does of itself with an action, for Transition.info; None: the action is the page's."""
        ...

    def status(self) -> dict[str, Any]:
        """For Transition.info."""
        ...

    def news(self) -> list[str]:
        """Lines for the agent about what happened beside the page since this was last asked."""
        ...


REST_SCRIPT = """(() => {
  if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
  const selection = getSelection();
  if (selection) selection.removeAllRanges();
  // where Tab goes on from: the beginning
  const start = document.createElement("span");
  start.tabIndex = -1;
  document.documentElement.prepend(start);
  start.focus({preventScroll: true});
  start.remove();
  scrollTo(0, 0);
  window.name = "";
})()"""


FORGET_SCRIPT = "if (location.hash || history.state !== null) history.replaceState(null, '', location.pathname + location.search);"
FORGET_COMMAND: tuple[str, dict[str, Any]] = ("Page.resetNavigationHistory", {})
"""For pages of one task, which go nowhere: what their scripts made of the history, refused while a navigation is under way."""


def crop_png(png: bytes, size_px: tuple[int, int]) -> bytes:
    """The top left part of an image, pixels unchanged, as a lightly compressed PNG."""
    with pictures.opened(png) as image:
        if image.size == size_px:
            return png
        part = image.convert("RGB").crop((0, 0, *size_px))
    out = io.BytesIO()
    part.save(out, format="PNG", compress_level=1)
    return out.getvalue()


def tabs_line(tabs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The agent's line about the tabs of `WebPage.status`; none for a single one."""
    names = [f"{'*' if tab['active'] else ''}[{n}] {tab['title'] or tab['url']}" for n, tab in enumerate(tabs, start=1)]
    return ["tabs: " + " ".join(names)] if len(tabs) > 1 else []


def call(function: str, *arguments: Any) -> str:
    """JavaScript expression that calls a function expression with JSON arguments."""
    return f"({function})({', '.join(json.dumps(argument) for argument in arguments)})"


def guard_script(*, opens_files: bool, images: Sequence[str] = (), is_drawn: bool = False) -> str:
    """What every document runs first. With `opens_files` a click on a file field asks for a file; other pickers stay shut. `images` are
    addresses of pictures to load with the document; `is_drawn`: it wants every frame, for pages whose frames we draw."""
    pickers = ["color", "date", "datetime-local", "month", "time", "week", *([] if opens_files else ["file"])]
    return call(Path(__file__).with_name("guard.js").read_text(encoding="utf-8").strip(), pickers, list(images), is_drawn)


@asynccontextmanager
async def time_limit(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises SandboxTimeout where the body takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, SandboxError):  # raised inside, with more to say
            raise
        raise SandboxTimeout(f"{what} took longer than {seconds:g} s; the browser hangs or the machine is overloaded.") from error
