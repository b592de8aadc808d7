"""PlaywrightBackend: the Chromium that Playwright starts. It opens pages (page.py) and windows (window.py)."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from playwright.async_api import Browser, Error, Playwright, async_playwright

from sandbox.browser.chromium import FLAGS, find_chromium, resolver_flag
from sandbox.browser.page import Page
from sandbox.browser.playwright.page import PlaywrightPage, sandbox_errors
from sandbox.browser.playwright.window import PlaywrightWindow
from sandbox.tasks.page_task import PageSettings, Surroundings
from warehouse.core.errors import BrowserCrashed, BrowserMissing

_OWN_FLAGS = frozenset({"--headless", "--remote-debugging-pipe"})
"""Flags of ours that Playwright sets itself."""


async def start_chromium(*, is_sandboxed: bool) -> tuple[Playwright, Browser, str]:
    """The driver, the system's Chromium, and the only host name that it resolves, its proxy's. Raises BrowserMissing or BrowserCrashed."""
    executable, proxy_host = find_chromium(headless_shell=False), f"{secrets.token_hex(16)}.invalid"
    flags = [*(flag for flag in FLAGS if flag not in _OWN_FLAGS), resolver_flag(proxy_host)]
    driver = await async_playwright().start()
    try:
        browser = await driver.chromium.launch(
            executable_path=str(executable.path), args=flags, chromium_sandbox=is_sandboxed, env={"TZ": "UTC"}
        )
    except Error as error:
        await driver.stop()
        kind = BrowserMissing if "doesn't exist" in str(error) else BrowserCrashed
        raise kind(f"Playwright could not start {executable.path}: {str(error)[:400]}") from error
    return driver, browser, proxy_host


class PlaywrightBackend:
    """A Chromium started by Playwright, with the driver process that steers it."""

    def __init__(self, driver: Playwright, browser: Browser, proxy_host: str) -> None:
        self._driver, self._browser, self._proxy_host = driver, browser, proxy_host
        self._is_closed = False

    @classmethod
    async def launch(cls) -> PlaywrightBackend:
        """Start the system's Chromium. Raises BrowserMissing or BrowserCrashed."""
        return cls(*await start_chromium(is_sandboxed=False))

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self._browser.is_connected()

    @property
    def pid(self) -> int:
        return 0

    async def open_page(self, settings: PageSettings, root: Path, surroundings: Surroundings | None = None) -> Page:
        width, height = settings.viewport_px
        async with sandbox_errors(self._browser):
            if settings.web is not None:
                return await PlaywrightWindow.open(self._browser, self._proxy_host, settings, root, surroundings)
            context = await self._browser.new_context(
                viewport={"width": width, "height": height}, timezone_id="UTC", locale="en-US", accept_downloads=False
            )
            page = PlaywrightPage(self._browser, context, await context.new_page(), root)
            await page.prepare()
            return page

    async def ping(self) -> None:
        async with sandbox_errors(self._browser):
            await (await self._browser.new_browser_cdp_session()).detach()

    def memory_mib(self) -> float:
        return 0.0

    def end_heavy_pages(self, excess_mib: float, *, above_mib: float) -> float:
        return 0.0

    def kill(self, reason: str) -> None:
        """Playwright exposes no process id: the browser is asked to close, and counts as gone."""
        if not self._is_closed:
            self._is_closed = True
            self._closing = asyncio.ensure_future(self._stop())

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._closing = asyncio.ensure_future(self._stop())
        await self._closing

    async def _stop(self) -> None:
        try:
            await self._browser.close()
        finally:
            await self._driver.stop()
