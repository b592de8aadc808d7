"""PlaywrightWindow: a web session driven by Playwright, in real time: the independent check of sandbox/browser/window/window.py, by its own
navigation, tabs, waiting and input, behind the same policy and proxy.

It has no file uploads, no closed shadow trees and no dialogs for the agent; it raises ConfigError for a task that asks for these dialogs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Dialog, Download, Error, Frame, Request, Response, Route
from playwright.async_api import Page as TheirPage

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.chromium import check_sandbox
from sandbox.browser.input import find_key
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.policy import POLICY_VERSION, NetworkPolicy, Way, is_below, relative_urls
from sandbox.browser.isolation.proxy import Outside, Proxy
from sandbox.browser.page import ELEMENTS_SCRIPT, SELECT_SCRIPT, call, guard_script, tabs_line
from sandbox.browser.playwright.page import PlaywrightPage, sandbox_errors, wait_for_load
from sandbox.browser.window.workspace_files import Refused, put_download
from sandbox.session import Element
from sandbox.tasks.page_task import MAX_BODY_CHARS, MAX_SENT, PageSettings, SentRequest, Surroundings, WebSettings
from warehouse.core.errors import ConfigError

_MAX_DEPTH = 5


class PlaywrightWindow(PlaywrightPage):
    """Satisfies Page and WebPage."""

    _policy: NetworkPolicy
    _proxy: Proxy

    @classmethod
    async def open(
        cls, browser: Browser, proxy_host: str, settings: PageSettings, root: Path, surroundings: Surroundings | None
    ) -> PlaywrightWindow:
        """A window with one blank tab. Raises ConfigError for settings that Playwright's sessions do not have."""
        web, around = settings.web, surroundings or Surroundings()
        if web is None or web.dialogs == "ask":
            raise ConfigError("Playwright's sessions answer dialogs by themselves: use the kind beginframe or plain for dialogs='ask'.")
        check_sandbox(web, is_sandboxed=False)
        policy = NetworkPolicy(web, has_terminal=around.connect is not None)
        proxy = Proxy(policy, connect=around.connect, outside=Outside())
        await proxy.start(namespace.listener(0, own=False))
        try:
            width, height = settings.viewport_px
            context = await browser.new_context(
                viewport={"width": width, "height": height},
                timezone_id="UTC",
                locale="en-US",
                service_workers="block",
                accept_downloads=around.workspace is not None,
                proxy={
                    "server": f"http://{proxy_host}:{proxy.port}",
                    "bypass": "<-loopback>",
                    "username": proxy.credentials.username,
                    "password": proxy.credentials.password,
                },
            )
            window = cls(browser, context, await context.new_page(), root)
            window.begin(settings, web, around)
            window._policy, window._proxy = policy, proxy
            await window.prepare()
        except BaseException:
            await proxy.close()
            raise
        return window

    def begin(self, settings: PageSettings, web: WebSettings, around: Surroundings) -> None:
        self._settings, self._web, self._around = settings, web, around
        self._tabs: list[TheirPage] = []
        self._titles: dict[TheirPage, str] = {}
        self._lines: list[str] = []
        self.sent: list[SentRequest] = []
        self._unanswered: dict[Request, SentRequest] = {}

    async def prepare(self) -> None:
        await self._context.route("**/*", self._on_request)
        await self._context.add_init_script(guard_script(opens_files=False))
        self._context.on("page", self._adopt)
        self._context.on("request", self._on_sent)
        self._context.on("response", self._on_responded)
        self._adopt(self._page)

    def _adopt(self, page: TheirPage) -> None:
        """A new tab becomes the active one."""
        self._tabs.append(page)
        self._page = page
        page.on("dialog", self._on_dialog)
        page.on("close", self._on_closed)
        page.on("download", lambda download: self._later(self._save(download)))

    def _on_closed(self, page: TheirPage) -> None:
        self._tabs.remove(page)
        if page is self._page and self._tabs:
            self._page = self._tabs[-1]

    def _on_dialog(self, dialog: Dialog) -> None:
        self.notes.dialogs.append(dialog.message)
        accepts = dialog.type == "alert" or self._web.dialogs == "accept"
        self._later(dialog.accept(dialog.default_value) if accepts else dialog.dismiss())

    async def _save(self, download: Download) -> None:
        try:
            path = await download.path()
            if path.stat().st_size > self._web.max_download_mib * 1024 * 1024:
                raise Refused(f"it is larger than {self._web.max_download_mib:g} MiB")
            if self._around.workspace is not None:
                self._lines.append(f"downloaded {put_download(self._around.workspace, path, download.suggested_filename)}")
        except (Refused, Error) as error:
            self._lines.append(f"download failed: {error}")

    def _on_sent(self, request: Request) -> None:
        if request.url.startswith(("http:", "https:")) and len(self.sent) <= MAX_SENT:
            body = request.post_data_buffer
            text = body.decode(errors="replace") if body is not None and len(body) <= MAX_BODY_CHARS else None
            sent = SentRequest(method=request.method, url=request.url, kind=request.resource_type, body=text)
            self._unanswered[request] = sent
            self.sent.append(sent)

    def _on_responded(self, response: Response) -> None:
        if (sent := self._unanswered.pop(response.request, None)) is not None:
            sent.status = response.status

    async def _on_request(self, route: Route) -> None:
        url = route.request.url
        way = self._policy.way_of_url(url)
        if way is Way.SITE:
            answer = self._policy.site_answer(url)
            await route.fulfill(status=answer.status, content_type=answer.content_type, body=answer.body)
        elif way is not Way.REFUSED or is_below(url, self._root):
            await route.continue_()
        else:
            self.notes.blocked.append(url)
            await route.abort("aborted" if route.request.is_navigation_request() else "blockedbyclient")

    # ---- WebPage ----

    @property
    def browser_version(self) -> str:
        return f"{super().browser_version}; web policy {POLICY_VERSION}"

    @property
    def url(self) -> str:
        return relative_urls(self._page.url, self._root)

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        async with sandbox_errors(self._browser):
            await wait_for_load(self._page, "networkidle", self._web.settle_limit_s)
        png = await super().settle(ms, screenshot=screenshot)
        async with sandbox_errors(self._browser):
            self._titles[self._page] = await self._page.title()
        return png

    def status(self) -> dict[str, Any]:
        return {"tabs": self._listed()}

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {"title": self._titles.get(tab, ""), "url": relative_urls(tab.url, self._root), "active": tab is self._page}
            for tab in self._tabs
        ]

    async def inspect(self, function: str, *arguments: Any) -> Any:
        """In the world of the page's scripts: Playwright has no other."""
        return await self.evaluate(call(function, *arguments))

    def news(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines + tabs_line(self._listed())

    async def elements(self) -> tuple[Element, ...]:
        width, height = self._settings.area_px
        async with sandbox_errors(self._browser):
            found = await self._read(self._page.main_frame, (0.0, 0.0, float(width), float(height)), 0)
        return tuple(Element.from_json(item) for item in found)

    async def _read(self, frame: Frame, clip: tuple[float, ...], depth: int) -> list[dict[str, Any]]:
        """One frame's elements, each inner frame replaced by what shows in it."""
        found: list[dict[str, Any]] = []
        for item in await frame.evaluate(call(ELEMENTS_SCRIPT, {"clip": clip, "frames": True})):
            if item["role"] != "frame":
                found.append(item)
            elif depth < _MAX_DEPTH and item["frame"] < len(frame.child_frames):
                for part in await self._read(frame.child_frames[item["frame"]], tuple(item["clip"]), depth + 1):
                    found.append(part | {"x": part["x"] + item["x"], "y": part["y"] + item["y"]})
        return found

    async def is_to_blame(self) -> bool:
        """Not known here: this browser is a check, not a place for pages that mean harm."""
        return False

    def end_pages(self) -> None:
        """They end with their browser."""

    async def act(self, action: Action) -> dict[str, Any] | None:
        match action:
            case actions.Navigate(url=url):
                if why := self._refusal(url):
                    return {"ignored": why}
                return await self._gone(partial(self._page.goto, url, timeout=self._web.settle_limit_s * 1000))
            case actions.NavigateBack():
                return await self._gone(partial(self._page.go_back, timeout=self._web.settle_limit_s * 1000))
            case actions.SelectOption(x=x, y=y, option=option):
                reason = await self.evaluate(call(SELECT_SCRIPT, x, y, option))
                return {"ignored": reason} if reason else {}
            case actions.Hotkey(keys=keys):
                return await self._hotkey(tuple(key.key for name in keys if (key := find_key(name)) is not None))
        return None

    def _refusal(self, url: str) -> str:
        """Why an address is not gone to; empty where it is."""
        if self._policy.way_of_url(url) is not Way.REFUSED or is_below(url, self._root):
            return ""
        self.notes.blocked.append(url)
        return f"{url} is not allowed in this session"

    async def _gone(self, go: Any) -> dict[str, Any]:
        try:
            return {} if await go() is not None else {"ignored": "there is no page to go to"}
        except Error as error:
            return {"ignored": relative_urls(str(error).splitlines()[0], self._root)}

    async def _hotkey(self, keys: tuple[str, ...]) -> dict[str, Any] | None:
        async with sandbox_errors(self._browser):
            match keys:
                case ("Control", "t"):
                    await self._context.new_page()
                case ("Control", "w"):
                    page = self._page
                    if len(self._tabs) == 1:
                        await self._context.new_page()
                    await page.close()
                case ("Control", "Tab"):
                    self._page = self._tabs[(self._tabs.index(self._page) + 1) % len(self._tabs)]
                    await self._page.bring_to_front()
                case ("Control", digit) if digit.isdigit() and 0 < int(digit) <= len(self._tabs):
                    self._page = self._tabs[int(digit) - 1]
                    await self._page.bring_to_front()
                case _:
                    return None
        return {}

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._proxy.close()
