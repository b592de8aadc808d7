"""WebWindow: a browser window for one episode, satisfying Page and WebPage. Its tabs, its network, its downloads, and what of the agent's
actions the window answers itself. It lives in a browser context of its own, and nothing of it outlives the episode.

Beside clicks and keys in the page an agent may, in the action set there is:

    Navigate, NavigateBack               http, https and the task's own pages; a host without scheme is https, localhost http
    alt+left, alt+right, f5, ctrl+r      back, forward, reload
    ctrl+t, ctrl+w, ctrl+1 … ctrl+9      new tab, close the active one, go to one
    ctrl+tab, ctrl+shift+tab             next and previous tab
    TypeText after a click on a file field     the workspace paths of files to upload, one a line; escape chooses none

A page that opens a window opens a tab, which becomes the active one. All else of a browser's own window (address bar, menus) is missing.
What happened beside the page is said in Transition.info (`status`) and in Observation.output (`news`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.cdp.beginframe import PageClock
from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Params
from sandbox.browser.cdp.page import create_target
from sandbox.browser.chromium import check_sandbox
from sandbox.browser.input import Phase, find_key
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.policy import POLICY_VERSION, NetworkPolicy, Way, is_below, relative_urls
from sandbox.browser.isolation.proxy import Outside, Proxy
from sandbox.browser.page import SELECT_SCRIPT, PageNotes, tabs_line
from sandbox.browser.window.dialogs import Dialogs
from sandbox.browser.window.downloads import Downloads
from sandbox.browser.window.request_order import RequestOrder
from sandbox.browser.window.tab_kinds import FramedTab, tab_class
from sandbox.browser.window.tabs import Tab
from sandbox.browser.window.uploads import Uploads
from sandbox.browser.window.workspace_files import Staging
from sandbox.session import Element
from sandbox.tasks.page_task import MAX_SENT, PageSettings, SentRequest, Surroundings
from warehouse.core.errors import BrowserCrashed, ConfigError, SandboxError

MAX_TABS = 20
MAX_READS = 3


class WebWindow:
    def __init__(self, browser: Browser, settings: PageSettings, root: Path, surroundings: Surroundings | None) -> None:
        if settings.web is None:
            raise ConfigError("A web window needs PageSettings.web.")
        check_sandbox(settings.web, is_sandboxed=browser.process.is_sandboxed)
        self.browser, self.settings, self.root, self.web = browser, settings, root, settings.web
        self.surroundings = surroundings or Surroundings()
        self.notes = PageNotes()
        self.clock = PageClock()
        self.requests = RequestOrder()
        self.policy = NetworkPolicy(self.web, has_terminal=self.surroundings.connect is not None)
        self.proxy = Proxy(
            self.policy, connect=self.surroundings.connect, on_refused=lambda name: self.notes.blocked.append(name), outside=Outside()
        )
        self.sent: list[SentRequest] = []
        self.num_switches = 0
        self._tabs: list[Tab] = []
        self._active: Tab | None = None
        self._starting: list[asyncio.Future[Params]] = []
        self._staging = Staging(browser.process.files)
        self._downloads: Downloads | None = None
        self._context_id = ""
        self._dialogs = Dialogs(self.web.dialogs, settings.area_px)
        self._uploads = Uploads(self.surroundings.workspace, self._staging.path)
        self._last_png: bytes | None = None
        self._is_closed = False
        self.has_crashed = False
        """The process of its pages has ended."""

    @classmethod
    async def open(cls, browser: Browser, settings: PageSettings, root: Path, surroundings: Surroundings | None) -> Self:
        """A window with one blank tab."""
        window = cls(browser, settings, root, surroundings)
        try:
            await window._open()
        except BaseException:
            await window.close()
            raise
        return window

    async def _open(self) -> None:
        connection = self.browser.connection
        await self.proxy.start(namespace.listener(self.browser.process.pid))
        server = f"http://{self.browser.process.proxy_host}:{self.proxy.port}"
        self._context_id = await self.browser.create_context(self._on_target, proxyServer=server, proxyBypassList="<-loopback>")
        denied = {"permission": {"name": "clipboard-read"}, "setting": "denied", "browserContextId": self._context_id}
        await connection.send("Browser.setPermission", denied)
        self._downloads = Downloads(
            self.browser, self._context_id, self.web, workspace=self.surroundings.workspace, staging=self._staging.path
        )
        await self._downloads.start()
        await self._new_tab()
        if isinstance(self.active, FramedTab):
            await self.active.align_clock()

    # ---- tabs ----

    def _on_target(self, info: Params, session_id: str) -> None:
        if info["type"] != "page":
            if self._active is not None:
                self._active.guard_worker(session_id)
            else:  # nobody is left to ask what it may load
                self.browser.connection.send("Target.closeTarget", {"targetId": info["targetId"]})
            return
        kind = tab_class(begin_frame=self.browser.begin_frame, real_time=self.settings.real_time)
        tab: Tab = kind(self, info, session_id)
        self._starting += tab.start()
        if len(self._tabs) >= MAX_TABS or self._is_closed:
            self.notes.blocked.append("a tab beyond the limit")
            self.browser.connection.send("Target.closeTarget", {"targetId": tab.target_id})
            return
        self._tabs.append(tab)
        self._activate(tab)

    async def _new_tab(self) -> None:
        await create_target(self.browser, self.settings, self._context_id)
        await self._started()

    async def _started(self) -> None:
        """New tabs have taken their settings. One that was closed at once has nothing to say."""
        answers, self._starting = self._starting, []
        for answer in answers:
            with suppress(SandboxError):
                await answer

    @property
    def active(self) -> Tab:
        """Raises SandboxError where the last tab was closed."""
        if self._active is None:
            raise SandboxError("The window has no tab; start the episode again.")
        return self._active

    def _activate(self, tab: Tab) -> None:
        self._active = tab
        self.num_switches += 1

    def on_closed(self, tab: Tab) -> None:
        if tab not in self._tabs:
            return
        place = self._tabs.index(tab)
        self._tabs.remove(tab)
        self._uploads.tab_closed(tab)
        self._dialogs.tab_closed(tab)
        if self._active is tab:
            self._active = None
            if self._tabs:
                self._activate(self._tabs[max(place - 1, 0)])

    async def _close_tab(self, tab: Tab) -> None:
        """The last one gives way to a blank one."""
        if len(self._tabs) == 1:
            await self._new_tab()
        await tab.close()
        self.on_closed(tab)

    # ---- what the browser says ----

    def on_dialog(self, tab: Tab, event: Params) -> None:
        """None may stay open while others wait for the page: for its frame, or for the clipboard."""
        self._dialogs.opened(tab, event, is_awaited=tab.is_pasting or self.browser.is_drawing(tab.session_id))

    def on_sent(self, request: SentRequest) -> None:
        if len(self.sent) <= MAX_SENT:
            self.sent.append(request)

    def on_crashed(self) -> None:
        self.has_crashed = True

    def on_chooser(self, tab: Tab, event: Params) -> None:
        self._uploads.asked(tab, event)

    @property
    def has_downloads_under_way(self) -> bool:
        return self._downloads is not None and self._downloads.is_pending

    # ---- Page ----

    @property
    def browser_version(self) -> str:
        return f"{self.browser.version}; web policy {POLICY_VERSION}"

    @property
    def time_ms(self) -> float:
        return self.active.time_ms

    async def load(self, url: str) -> None:
        reason = await self._dialogs.unless_one_opens(self.active.go(url), "")
        if reason:
            raise SandboxError(
                f"The page {relative_urls(url, self.root)} could not be opened: {reason}. Does the task's network policy allow it?"
            )
        await self.settle(0, screenshot=False)

    async def evaluate(self, expression: str) -> Any:
        """In the active tab's main frame. Raises SandboxError while a dialog is open: the page's scripts stand still then."""
        if self._dialogs.current is not None:
            raise SandboxError("A dialog is open in the page.")
        return await self.active.evaluate(expression)

    async def perform(self, phases: Sequence[Phase]) -> None:
        tab = self.active
        try:
            await self._dialogs.unless_one_opens(tab.perform(phases), None)
        except BrowserCrashed:
            raise
        except SandboxError:
            if not await self._is_gone(tab):
                raise

    async def _is_gone(self, tab: Tab) -> bool:
        """Whether a tab that failed us closed itself under our hands; then it is taken off the list."""
        if not tab.is_closed:
            listed = await self.browser.connection.send("Target.getTargets")
            if any(info["targetId"] == tab.target_id for info in listed["targetInfos"]):
                return False
        self.on_closed(tab)
        return True

    async def rest(self) -> None:
        await self.active.rest()

    async def is_reusable(self) -> bool:
        return False

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        """While a dialog is open nothing passes: the screenshot is the last one with the dialog over it."""
        await self._started()
        if self._dialogs.current is None:
            png = await self._dialogs.unless_one_opens(self._settle_active(ms, screenshot=screenshot), None)
            self._last_png = png = png or (self._last_png if screenshot else None)
        if self._dialogs.current is None:
            return png
        return self._dialogs.current.draw(self._last_png) if screenshot else None

    async def _settle_active(self, ms: float, *, screenshot: bool) -> bytes | None:
        """Settle the active tab, again where another became it meanwhile."""
        for _ in range(MAX_TABS):
            tab = self.active
            try:
                png = await tab.settle(ms, screenshot=screenshot)
            except BrowserCrashed:
                raise
            except SandboxError:
                if not await self._is_gone(tab):
                    raise
                if not self._tabs:
                    await self._new_tab()
                continue
            await self._started()
            if tab is self._active:
                await tab.read_title()
                return png
        raise SandboxError("Pages went on opening and closing; start the episode again.")

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._dialogs.close()
        try:
            for tab in self._tabs:
                await self.browser.finish_frame(tab.session_id)
            if self._downloads is not None:
                await self._downloads.close()
            if self._context_id and self.browser.is_alive:
                with suppress(BrowserCrashed):
                    await self.browser.dispose_context(self._context_id)
        finally:
            for tab in self._tabs:
                self.browser.connection.forget(tab.session_id)
            await self.proxy.close()
            self._staging.remove()

    # ---- WebPage ----

    @property
    def url(self) -> str:
        """The active tab's address; a page of the task by its path below the root."""
        return relative_urls(self.active.url, self.root)

    async def elements(self) -> tuple[Element, ...]:
        if self._dialogs.current is not None:
            return self._dialogs.current.elements()
        for _ in range(MAX_READS):
            try:
                return await self.active.frames.elements(self.settings.area_px)
            except BrowserCrashed:
                raise
            except SandboxError:  # the document went away meanwhile
                if self.has_crashed:
                    raise
        return ()

    async def inspect(self, function: str, *arguments: Any) -> Any:
        """Raises SandboxError while a dialog is open, too."""
        if self._dialogs.current is not None:
            raise SandboxError("A dialog is open in the page.")
        return await self.active.frames.inspect(function, *arguments)

    def status(self) -> dict[str, Any]:
        """For Transition.info: the tabs, and what has not settled."""
        info: dict[str, Any] = {"tabs": self._listed()}
        if self._dialogs.current is None and self.active.unsettled is not None:
            info["unsettled"] = self.active.unsettled
        return info

    def _listed(self) -> list[dict[str, Any]]:
        return [{"title": tab.title, "url": relative_urls(tab.url, self.root), "active": tab is self._active} for tab in self._tabs]

    def news(self) -> list[str]:
        """For the agent, a line each: downloads that came, a file field that waits, the tabs where there are several."""
        lines = self._downloads.came() if self._downloads is not None else []
        if self._uploads.is_asked:
            lines.append("a file field waits: type the path of a workspace file, or press escape")
        return lines + tabs_line(self._listed())

    async def is_to_blame(self) -> bool:
        """Whether a step that failed or did not end is the doing of what is shown: the browser and the machine are well, or it is the pages
        that keep them busy."""
        return self.browser.is_alive and (self.has_crashed or await self.browser.is_well() or await self.browser.is_busy())

    def end_pages(self) -> None:
        """All pages of a window live in one process, which a script may hold for ever: end it."""
        if not self.has_crashed and self._tabs:
            self.browser.crash_page(self._tabs[0].session_id)

    async def act(self, action: Action) -> dict[str, Any] | None:
        """What the window does of itself with an action, for Transition.info; None: it is the page's."""
        if self._dialogs.current is not None:
            return await self._dialogs.take(action)
        if self._uploads.is_asked and (done := await self._uploads.take(action)) is not None:
            return done
        match action:
            case actions.Navigate(url=url):
                return await self._navigate(url)
            case actions.NavigateBack():
                return _outcome(await self._dialogs.unless_one_opens(self.active.go_back(), ""))
            case actions.Hotkey(keys=keys):
                return await self._hotkey(tuple(key.key for name in keys if (key := find_key(name)) is not None))
            case actions.SelectOption(x=x, y=y, option=option):
                return _outcome(await self._dialogs.unless_one_opens(self.active.frames.select(x, y, SELECT_SCRIPT, option), ""))
        return None

    async def _navigate(self, text: str) -> dict[str, Any]:
        url = text.strip()
        if "://" not in url and not url.startswith("about:"):
            plain = url.partition("/")[0].partition(":")[0] in {"localhost", "127.0.0.1"}
            url = f"{'http' if plain else 'https'}://{url}"
        scheme = url.partition(":")[0].lower()
        if scheme in {"http", "https"}:
            if self.policy.way_of_url(url) is Way.REFUSED:
                self.notes.blocked.append(url)
                return {"ignored": f"{url} is not allowed in this session"}
        elif url != "about:blank" and (scheme != "file" or not is_below(url, self.root)):
            return {"ignored": f"addresses of the scheme {scheme!r} cannot be opened; http and https can"}
        return _outcome(await self._dialogs.unless_one_opens(self.active.go(url), ""))

    async def _hotkey(self, keys: tuple[str, ...]) -> dict[str, Any] | None:
        match keys:
            case ("Alt", "ArrowLeft"):
                return _outcome(await self._dialogs.unless_one_opens(self.active.go_back(), ""))
            case ("Alt", "ArrowRight"):
                return _outcome(await self._dialogs.unless_one_opens(self.active.go_back(by=1), ""))
            case ("F5",) | ("Control", "r"):
                return _outcome(await self._dialogs.unless_one_opens(self.active.reload(), ""))
            case ("Control", "t"):
                await self._new_tab()
            case ("Control", "w"):
                await self._close_tab(self.active)
            case ("Control", "Tab") | ("Control", "Shift", "Tab") | ("Shift", "Control", "Tab"):
                place = self._tabs.index(self.active) + (1 if len(keys) == 2 else -1)
                self._activate(self._tabs[place % len(self._tabs)])
            case ("Control", digit) if digit in set("123456789"):
                if int(digit) > len(self._tabs):
                    return {"ignored": f"there are {len(self._tabs)} tabs"}
                self._activate(self._tabs[int(digit) - 1])
            case _:
                return None
        return {}


def _outcome(reason: str) -> dict[str, Any]:
    return {"ignored": reason} if reason else {}
