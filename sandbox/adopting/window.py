"""SiteWindow: a tab in full Chromium, driven by Playwright, that reaches one origin and nothing else, and how it waits until a page is at
rest.

Held twice: Playwright's routing refuses and counts every request to another origin, and the proxy that is the browser's only way out
(site_browser.py) connects to no other host and port. Unless the site may be written to, every method but GET and HEAD is refused as well.
What was sent is kept (traffic.py), for verifiers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Error, Request, Route, WebSocketRoute

from sandbox.adopting.records import Site, is_leaving, origin_of, parts_of, path_of
from sandbox.adopting.traffic import READS, Sent, Traffic, fields_of
from sandbox.browser.page import PageNotes
from sandbox.browser.playwright.page import sandbox_errors, wait_for_load
from sandbox.browser.playwright.window import PlaywrightWindow
from sandbox.session import Element
from sandbox.tasks.page_task import PageSettings, Surroundings, WebSettings
from warehouse.core.errors import SandboxError

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
ENDLESS = frozenset({"eventsource", "websocket", "media", "ping"})
"""Kinds of requests that are not waited for."""
MAX_SENT = 2_000
MAX_LOOKS = 3
CLOSE_LIMIT_S = 20.0


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
            self._by_request[request] = sent = Sent(request.method, urlsplit(request.url).path, fields_of(request))
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
