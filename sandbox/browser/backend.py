"""Browser backends: a running browser together with the kind of pages it opens. The kinds, and which one suits this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from sandbox.browser.cdp.beginframe import FramedPage
from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.devtools import DrivenPage
from sandbox.browser.cdp.plain import LivePage
from sandbox.browser.cdp.realtime import RealTimePage
from sandbox.browser.chromium import DEVTOOLS_FLAG, find_chromium
from sandbox.browser.page import Page
from sandbox.browser.window.window import WebWindow
from sandbox.tasks.page_task import PageSettings, Surroundings
from warehouse.core.errors import ConfigError

Kind = Literal["auto", "beginframe", "plain", "devtools", "playwright"]
"""devtools: plain, with an address by which a program beside us drives the pages (sandbox/browser/cdp/devtools.py)."""
KINDS: tuple[Kind, ...] = ("auto", "beginframe", "plain", "devtools", "playwright")


class BrowserBackend(Protocol):
    """One running browser that opens pages."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def pid(self) -> int:
        """Process id of the browser, 0 where it is not ours to know."""
        ...

    async def open_page(self, settings: PageSettings, root: Path, surroundings: Surroundings | None = None) -> Page:
        """A blank page of the settings' size that may load files below `root`. Raises ConfigError for settings that this kind
        of backend cannot give."""
        ...

    async def ping(self) -> None:
        """Returns once the browser answers: never where it hangs. Raises BrowserCrashed where it is gone."""
        ...

    def memory_mib(self) -> float: ...

    def end_heavy_pages(self, excess_mib: float, *, above_mib: float) -> float:
        """End the processes of its heaviest pages, until so much memory is given back; how many MiB were. 0 where they are not known."""
        ...

    def kill(self, reason: str) -> None: ...

    async def close(self) -> None:
        """May be called twice."""
        ...


class CdpBackend:
    """A browser of ours, driven by the DevTools protocol."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    @property
    def is_alive(self) -> bool:
        return self.browser.is_alive

    @property
    def pid(self) -> int:
        return self.browser.process.pid

    async def open_page(self, settings: PageSettings, root: Path, surroundings: Surroundings | None = None) -> Page:
        if settings.web is not None:
            return await WebWindow.open(self.browser, settings, root, surroundings)
        if self.browser.has_devtools:
            return await DrivenPage.open(self.browser, settings, root)
        if not self.browser.begin_frame:
            return await LivePage.open(self.browser, settings, root)
        return await (RealTimePage if settings.real_time else FramedPage).open(self.browser, settings, root)

    async def ping(self) -> None:
        await self.browser.connection.send("Browser.getVersion")

    def memory_mib(self) -> float:
        return self.browser.memory_mib()

    def end_heavy_pages(self, excess_mib: float, *, above_mib: float) -> float:
        return self.browser.end_heavy_pages(excess_mib, above_mib=above_mib)

    def kill(self, reason: str) -> None:
        self.browser.kill(reason)

    async def close(self) -> None:
        await self.browser.close()


def resolve(kind: Kind) -> Kind:
    """What `auto` means here: begin-frame control where a browser has it, else plain. Raises BrowserMissing, ConfigError."""
    if kind not in KINDS:
        raise ConfigError(f"Unknown kind of browser session {kind!r}; known are {', '.join(KINDS)}.")
    if kind != "auto":
        return kind
    return "beginframe" if find_chromium().has_begin_frame_control else "plain"


async def launch(kind: Kind) -> BrowserBackend:
    """Start a browser for sessions of a kind. Raises BrowserMissing, BrowserCrashed, ConfigError."""
    kind = resolve(kind)
    if kind == "playwright":
        from sandbox.browser.playwright.browser import PlaywrightBackend  # a heavy import that few need

        return await PlaywrightBackend.launch()
    flags = (DEVTOOLS_FLAG,) if kind == "devtools" else ()
    return CdpBackend(await Browser.launch(begin_frame=kind == "beginframe", flags=flags))
