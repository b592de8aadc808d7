"""SiteBrowser: a full Chromium for one site, behind a proxy that connects to no other host and port, whatever a redirect says."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Error, HttpCredentials, Playwright

from sandbox.adopting.records import Site
from sandbox.adopting.window import SIZE_PX, SiteWindow
from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.policy import NetworkPolicy, Way
from sandbox.browser.isolation.proxy import Proxy
from sandbox.browser.playwright.browser import start_chromium
from sandbox.browser.playwright.page import sandbox_errors
from sandbox.tasks.page_task import PageSettings, Surroundings, WebSettings
from warehouse.core.errors import ConfigError, SandboxError


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


_BROWSERS: dict[tuple[int, str, str], SiteBrowser] = {}


def shared_browser(site: Site, login: Path | None) -> SiteBrowser:
    """The browser of a site in this event loop. It ends with the process: Playwright's driver sees its pipe close."""
    key = (id(asyncio.get_running_loop()), site.model_dump_json(), str(login))
    return _BROWSERS.setdefault(key, SiteBrowser(site, login))
