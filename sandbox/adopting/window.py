"""SiteWindow: a tab in full Chromium, driven by Playwright, that reaches one origin and nothing else.

Held twice: Playwright's routing refuses and counts every request to another origin, and the proxy that is the browser's only way out
connects to no other host and port, whatever a redirect says. Unless the site may be written to, every method but GET and HEAD is refused
as well. What was sent is kept, for verifiers.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import Browser, BrowserContext, Error, HttpCredentials, Playwright, Request, Route, WebSocketRoute

from sandbox.adopting.records import Site, is_leaving, origin_of, parts_of, path_of
from sandbox.browser import namespace
from sandbox.browser.page import PageNotes
from sandbox.browser.playwright_browser import start_chromium
from sandbox.browser.playwright_page import sandbox_errors, wait_for_load
from sandbox.browser.playwright_window import PlaywrightWindow
from sandbox.browser.policy import NetworkPolicy, Way
from sandbox.browser.proxy import Proxy
from sandbox.session import Element
from sandbox.tasks.page_task import PageSettings, Surroundings, WebSettings
from warehouse.core.errors import ConfigError, SandboxError

SIZE_PX = (800, 640)
SETTINGS = PageSettings(
    viewport_px=SIZE_PX, area_px=SIZE_PX, step_time_ms=60.0, frame_time_ms=50.0, web=WebSettings(dialogs="accept", settle_limit_s=8.0)
)
QUIET_S = 0.06
"""A page is at rest once it has asked for nothing for so long."""
PAGE_LIMIT_S, LATE_LIMIT_S = 12.0, 4.0
"""So much longer than for pictures and the like is waited for a page that the server has not sent yet: the one before it still shows, and
a second click would request it again."""
DRAWN_S, SCRIPTS_S = 0.1, 1.0
"""A page whose scripts loaded something in the last SCRIPTS_S is at rest only if it does not change over DRAWN_S."""
SCRIPTED = frozenset({"script", "xhr", "fetch"})
PARTS = frozenset({"script", "stylesheet", "image", "font"})
"""What a page loads to be shown: an address like /drop-down.js ends or destroys nothing."""
SIZE_SCRIPT = "[document.getElementsByTagName('*').length, document.body ? document.body.textContent.length : 0].join()"
READS = frozenset({"GET", "HEAD", "OPTIONS"})
ENDLESS = frozenset({"eventsource", "websocket", "media", "ping"})
"""Kinds of requests that are not waited for."""
MAX_SENT = 2_000
MAX_LOOKS = 3
CLOSE_LIMIT_S = 20.0


@dataclass(slots=True)
class Sent:
    """One request of the page to the site."""

    method: str
    path: str
    fields: dict[str, str]
    status: int = 0
    """0 until it is answered."""


@dataclass(slots=True)
class Traffic:
    """What a window has asked for."""

    sent: list[Sent] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Addresses of other origins that were refused."""
    writes: list[str] = field(default_factory=list)
    """Requests that would have written and were refused: method and path."""


class _SitePolicy(NetworkPolicy):
    """One host and port, wherever that is."""

    def __init__(self, site: Site) -> None:
        super().__init__(WebSettings(), has_terminal=False)
        self._site = site

    def way(self, host: str, port: int) -> Way:
        return Way.TERMINAL if (host.strip("[]").lower(), port) == (self._site.host, self._site.port) else Way.REFUSED

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError."""
        return await asyncio.open_connection(self._site.host, self._site.port)


class SiteBrowser:
    """A Chromium for one site, started when it is first needed and kept for the sessions of this process."""

    def __init__(self, site: Site, login: Path | None = None) -> None:
        self.site, self._login = site, login
        self._driver: Playwright | None = None
        self._way_out: Any = None
        self._browser: Browser | None = None
        self._starting = asyncio.Lock()
        self._free: list[SiteWindow] = []
        self._proxy: Proxy | None = None
        self.credentials: HttpCredentials | None = None
        """For HTTP authentication, of windows that are new."""
        self.refused: list[str] = []
        """Hosts and ports that the proxy was asked for beside the site's: where redirects led, and what Chromium asks for by itself."""

    async def browser(self) -> Browser:
        """Raises BrowserMissing or BrowserCrashed."""
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self.close()
                policy = _SitePolicy(self.site)
                self._proxy = proxy = Proxy(policy, connect=policy.connect, on_refused=self.refused.append)
                await proxy.start(namespace.listener(0, own=False))
                try:
                    self._driver, self._browser, proxy_host = await start_chromium(is_sandboxed=os.geteuid() != 0)
                except SandboxError:
                    await self.close()
                    raise
                self._way_out = {
                    "server": f"http://{proxy_host}:{proxy.port}",
                    "bypass": "<-loopback>",
                    "username": proxy.credentials.username,
                    "password": proxy.credentials.password,
                }
            return self._browser

    async def context(self) -> BrowserContext:
        browser, (width, height) = await self.browser(), SIZE_PX
        async with sandbox_errors(browser):
            return await browser.new_context(
                viewport={"width": width, "height": height},
                timezone_id="UTC",
                locale="en-US",
                service_workers="block",
                accept_downloads=False,
                reduced_motion="reduce",
                proxy=self._way_out,
                http_credentials=self.credentials,
                storage_state=self.state(),
            )

    def state(self) -> Any:
        """Cookies and storage of the log-in. Raises ConfigError where they are missing or malformed."""
        if self._login is None:
            return None
        try:
            return json.loads(self._login.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self._login}, the log-in of {self.site.origin}, cannot be read: {error}. Delete it and run `flywheel adopt` with "
                "--login-path and --user again."
            ) from error

    async def open(self) -> SiteWindow:
        """A window with one blank tab, and nothing stored but the log-in. A full Chromium takes a second of processor time for a window, so
        those that were closed are emptied and used again."""
        browser = await self.browser()
        while self._free:
            window = self._free.pop()
            if window.belongs_to(browser):
                with suppress(SandboxError):
                    await window.empty(self.state() or {"cookies": [], "origins": []})
                    return window
                await window.end()
        context = await self.context()
        async with sandbox_errors(browser):
            window = SiteWindow(browser, context, await context.new_page(), Path("/"))
            window.begin_at(self.site, self._free.append)
            await window.prepare()
            return window

    async def open_page(self, settings: PageSettings, root: Path, surroundings: Surroundings | None = None) -> SiteWindow:
        """As OpenPage of a PageSession."""
        return await self.open()

    async def close(self) -> None:
        browser, self._browser = self._browser, None
        self._free.clear()
        driver, self._driver = self._driver, None
        if browser is not None:
            with suppress(Error):
                await browser.close()
        if driver is not None:
            await driver.stop()
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.close()


class SiteWindow(PlaywrightWindow):
    """Satisfies Page and WebPage."""

    site: Site
    traffic: Traffic

    def begin_at(self, site: Site, when_closed: Callable[[SiteWindow], None]) -> None:
        self.begin(SETTINGS, SETTINGS.web or WebSettings(), Surroundings())
        self.site, self.traffic, self._when_closed = site, Traffic(), when_closed
        self._under_way: set[Request] = set()
        self._given_up: set[Request] = set()
        """Requests that once outlived the limit."""
        self._asked_s = self._scripted_s = 0.0
        self.is_trying = False
        """While the crawl tries what a button does, writing is refused everywhere."""
        self.is_logging_in = False
        """A log-in is sent by POST, to a site that is only read, too."""
        self._by_request: dict[Request, Sent] = {}

    def belongs_to(self, browser: Browser) -> bool:
        return self._browser is browser

    async def empty(self, state: Any) -> None:
        """Cookies and storage are the state's; the tab is new since the window was closed."""
        await self.take(state)
        self._held.clear()
        self._buttons.clear()
        self.notes, self.traffic = PageNotes(), Traffic()
        self._lines, self._under_way, self._given_up, self._by_request = [], set(), set(), {}
        self.sent, self._unanswered = [], {}
        self.is_trying = self.is_logging_in = False

    async def take(self, state: Any) -> None:
        """Cookies and storage."""
        async with sandbox_errors(self._browser):
            await self._context.set_storage_state(state)

    async def prepare(self) -> None:
        await super().prepare()
        await self._context.route_web_socket("**/*", self._on_socket)
        self._context.on("request", self._on_begun)
        self._context.on("requestfinished", self._on_over)
        self._context.on("requestfailed", self._on_over)

    def allows(self, method: str, url: str, kind: str = "document") -> bool:
        """Whether a request may be sent, by Playwright's kind of resource; notes those that may not."""
        parts = parts_of(url)
        if parts is not None and parts.scheme in {"data", "blob", "about"}:
            return True
        if origin_of(url) != self.site.origin:
            self.traffic.elsewhere.append(url)
            return False
        is_read = method in READS and (kind in PARTS or not is_leaving(url))
        if (self.is_trying or not self.site.allow_writes) and not is_read and not self.is_logging_in:
            self.traffic.writes.append(f"{method} {urlsplit(url).path}")
            return False
        return True

    async def _on_request(self, route: Route) -> None:
        request = route.request
        if self.allows(request.method, request.url, request.resource_type):
            await route.continue_()
        else:
            self.notes.blocked.append(request.url)
            await route.abort("aborted" if request.is_navigation_request() else "blockedbyclient")

    async def _on_socket(self, socket: WebSocketRoute) -> None:
        """Sockets may carry anything, so they are for sites that may be written to."""
        url = socket.url.replace("ws", "http", 1)
        if origin_of(url) == self.site.origin and self.site.allow_writes:
            socket.connect_to_server()
        else:
            self.allows("SOCKET", url)
            await socket.close()

    def _on_begun(self, request: Request) -> None:
        self._asked_s = time.monotonic()
        if request.resource_type in SCRIPTED:
            self._scripted_s = self._asked_s
        if request.resource_type not in ENDLESS:
            self._under_way.add(request)
        if origin_of(request.url) == self.site.origin and len(self.traffic.sent) < MAX_SENT:
            self._by_request[request] = sent = Sent(request.method, urlsplit(request.url).path, _fields(request))
            self.traffic.sent.append(sent)

    def _on_over(self, request: Request) -> None:
        self._asked_s = time.monotonic()
        if request.resource_type in SCRIPTED:
            self._scripted_s = self._asked_s
        self._under_way.discard(request)
        if (sent := self._by_request.pop(request, None)) is not None:
            self._later(self._note_status(request, sent))

    @staticmethod
    async def _note_status(request: Request, sent: Sent) -> None:
        with suppress(Error):
            response = await request.response()
            sent.status = response.status if response is not None else 599

    @property
    def browser_version(self) -> str:
        return f"Chrome/{self._browser.version}; full Chromium by Playwright"

    @property
    def full_url(self) -> str:
        return self._page.url

    def asks_to_log_in(self, asked: str) -> bool:
        """Whether the site has led from the address that was asked for to its log-in page."""
        login = self.site.login_path
        return (
            login is not None
            and path_of(self.full_url) == path_of(login) != path_of(asked)
            and origin_of(self.full_url) == self.site.origin
        )

    async def rest(self) -> None:
        """There is nothing to let go of: each episode has a tab of its own."""

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        async with sandbox_errors(self._browser):
            try:  # what an input has started has begun by then
                await self._page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
            except Error as error:
                if not is_of_navigation(error):
                    raise
        await self.rest_of_loading()
        async with sandbox_errors(self._browser):
            await asyncio.sleep(ms / 1000)
            return await self._page.screenshot(timeout=0, animations="disabled", caret="hide") if screenshot else None

    async def evaluate(self, expression: str) -> Any:
        async with sandbox_errors(self._browser):
            return await self._in_rest(partial(self._page.evaluate, expression))

    async def elements(self) -> tuple[Element, ...]:
        (width, height), read = SIZE_PX, self._read
        async with sandbox_errors(self._browser):
            found = await self._in_rest(lambda: read(self._page.main_frame, (0.0, 0.0, float(width), float(height)), 0))
        return tuple(Element.from_json(item) for item in found)

    async def _in_rest(self, look: Callable[[], Awaitable[Any]]) -> Any:
        """Look again where the page was left for another meanwhile."""
        for _ in range(MAX_LOOKS):
            try:
                return await look()
            except Error as error:
                if not is_of_navigation(error):
                    raise
                await self.rest_of_loading()
        return await look()

    async def rest_of_loading(self) -> None:
        """Wait until the page has what it asked for, or the limit is over."""
        deadline = time.monotonic() + self._web.settle_limit_s
        async with sandbox_errors(self._browser):
            await wait_for_load(self._page, "load", self._web.settle_limit_s)
        is_left = False
        while (now_s := time.monotonic()) < deadline or (now_s < deadline + PAGE_LIMIT_S and self._is_page_awaited()):
            is_left = is_left or self._is_page_awaited()
            quiet_s = time.monotonic() - self._asked_s
            if quiet_s >= QUIET_S and not self._under_way - self._given_up and await self._is_drawn():
                return
            await asyncio.sleep(0.02)
        if is_left:  # the page that has come has to be read, too
            async with sandbox_errors(self._browser):
                await wait_for_load(self._page, "load", LATE_LIMIT_S)
        self._given_up |= self._under_way

    def _is_page_awaited(self) -> bool:
        return any(request.resource_type == "document" for request in self._under_way - self._given_up)

    async def _is_drawn(self) -> bool:
        """Whether scripts that have loaded something have put it on the page: they may draw, or ask for more, long after it came."""
        if time.monotonic() - self._scripted_s > SCRIPTS_S:
            return True
        asked_s = self._asked_s
        async with sandbox_errors(self._browser):
            try:
                before = await self._page.evaluate(SIZE_SCRIPT)
                await asyncio.sleep(DRAWN_S)
                return bool(await self._page.evaluate(SIZE_SCRIPT) == before and asked_s == self._asked_s)
            except Error as error:
                if not is_of_navigation(error):
                    raise
                return False

    def _refusal(self, url: str) -> str:
        parts = parts_of(url)
        if parts is not None and parts.scheme in {"http", "https"} and self.allows("GET", url):
            return ""
        return f"{url} is not allowed in this session: only {self.site.origin} is"

    async def go(self, url: str, limit_ms: float) -> str:
        """Open an address and wait until the page is at rest. Why it is not a page to use, or nothing."""
        try:
            response = await self._page.goto(url, timeout=limit_ms)
        except Error as error:
            return "did not load: " + str(error).splitlines()[0].split(" at ")[0][:80]
        await self.rest_of_loading()
        if origin_of(self._page.url) != self.site.origin:
            return "leads elsewhere"
        if response is not None and response.status >= 400:
            return f"answers with status {response.status}"
        kind = await self.evaluate("document.contentType")
        return "" if kind in ("text/html", "application/xhtml+xml") else f"is {kind}"

    async def click(self, x: int, y: int) -> None:
        """Click, wait until the page is at rest, and close every tab but the one that is shown then."""
        async with sandbox_errors(self._browser):
            await self._page.mouse.click(x, y)
        await self.settle(SETTINGS.step_time_ms, screenshot=False)
        async with sandbox_errors(self._browser):
            for tab in [tab for tab in self._tabs if tab is not self._page]:
                await tab.close()

    async def log_in(self, script: str, arguments: list[str], url: str) -> None:
        """Fill in a form by a script that says why it cannot, and send it by enter. Raises SandboxError."""
        async with sandbox_errors(self._browser):
            if why_not := await self._page.evaluate(script, arguments):
                raise SandboxError(f"Logging in at {url} did not work: {why_not}.")
            await self._page.keyboard.press("Enter")
        await self.settle(300, screenshot=False)
        async with sandbox_errors(self._browser):
            is_asked_again = await self._page.locator("input[type=password]:visible").count() > 0
        if is_asked_again:
            raise SandboxError(f"Logging in at {url} did not work: the page asks for the password again. Check --user and its password.")

    async def cookies(self) -> str:
        """Cookies and storage of the site, as JSON."""
        return json.dumps(await self._context.storage_state())

    async def fetch(self, url: str) -> tuple[int, str]:
        """Status and text at an address of the site; 0 where nothing answers."""
        try:
            answer = await self._page.goto(url, timeout=10_000)
            return (answer.status, await answer.text()) if answer is not None else (0, "")
        except Error:
            return 0, ""

    async def close(self) -> None:
        """Its tabs end now: they run no longer against the application. Its next user finds one that is new, and empties the storage."""
        if not self._browser.is_connected():
            return
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S), sandbox_errors(self._browser):
                old = list(self._tabs)
                await self._context.new_page()
                for tab in old:
                    await tab.close()
        except (SandboxError, TimeoutError):
            await self.end()
        else:
            self._when_closed(self)

    async def end(self) -> None:
        if self._browser.is_connected():
            with suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(CLOSE_LIMIT_S), sandbox_errors(self._browser):
                    await self._context.close()


def is_of_navigation(error: Error) -> bool:
    return "Execution context was destroyed" in str(error) or "Cannot find context" in str(error)


def _fields(request: Request) -> dict[str, str]:
    """Of the query, and of a form that was sent."""
    found = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
    body = None if request.method in READS else _body(request)
    kind = request.headers.get("content-type", "")
    if body and "urlencoded" in kind:
        found |= dict(parse_qsl(body, keep_blank_values=True))
    elif body and "multipart" in kind:
        found |= _parts(body)
    elif body and "json" in kind:
        found |= _of_json(body)
    return found


def _body(request: Request) -> str | None:
    try:
        data = request.post_data_buffer
    except Error:
        return None
    return data.decode("utf-8", "replace") if data else None


def _parts(body: str) -> dict[str, str]:
    """Text fields of a multipart form."""
    boundary = body.split("\r\n", 1)[0]
    found: dict[str, str] = {}
    if not boundary:
        return found
    for part in body.split(boundary)[1:-1]:
        head, _, value = part.strip("\r\n").partition("\r\n\r\n")
        name = head.partition('name="')[2].partition('"')[0]
        if name and "filename=" not in head:
            found[name] = value
    return found


def _of_json(body: str) -> dict[str, str]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(each) for name, each in value.items() if isinstance(each, str | int | float)} if isinstance(value, dict) else {}


_BROWSERS: dict[tuple[int, str, str], SiteBrowser] = {}


def shared_browser(site: Site, login: Path | None) -> SiteBrowser:
    """The browser of a site in this event loop. It ends with the process: Playwright's driver sees its pipe close."""
    key = (id(asyncio.get_running_loop()), site.model_dump_json(), str(login))
    return _BROWSERS.setdefault(key, SiteBrowser(site, login))
