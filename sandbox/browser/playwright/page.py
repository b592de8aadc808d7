"""PlaywrightPage: a page driven by Playwright in a full Chromium, in real time. The independent check of our own sessions, and the way
to sites that need a whole browser.

Its own input, its own waiting, its own screenshots: only the tasks are the same. Playwright starts Chromium without its sandbox.
Its pages share the browser's clipboard, so a text that one episode copied can be pasted in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, BrowserContext, CDPSession, Dialog, Error, Frame, Request, Route
from playwright.async_api import Page as TheirPage

from sandbox.browser.cdp.browser import NO_SANDBOX
from sandbox.browser.input import Gesture, Insert, KeyStroke, Pause, Phase, PointerDown, PointerMove, PointerUp, Wheel, find_key
from sandbox.browser.isolation.policy import is_below, relative_urls
from sandbox.browser.page import (
    FORGET_COMMAND,
    FORGET_SCRIPT,
    HAS_STORED_SCRIPT,
    REST_SCRIPT,
    STORED_COMMANDS,
    STORED_EVENTS,
    USAGE_COMMAND,
    PageNotes,
    guard_script,
)
from warehouse.core.errors import BrowserCrashed, SandboxError


async def wait_for_load(page: TheirPage, state: Literal["load", "networkidle"], limit_s: float) -> None:
    """Until the page has loaded, has closed, or the limit is over."""
    try:
        await page.wait_for_load_state(state, timeout=limit_s * 1000)
    except Error as error:
        if "Timeout" not in str(error) and "closed" not in str(error):
            raise


class PlaywrightPage:
    def __init__(self, browser: Browser, context: BrowserContext, page: TheirPage, root: Path) -> None:
        self.notes = PageNotes()
        self._browser, self._context, self._page, self._root = browser, context, page, root
        self._is_loading = False
        self._held: set[str] = set()
        self._buttons: set[str] = set()
        self._born_s = time.monotonic()
        self._answers: set[asyncio.Future[None]] = set()
        self._devtools: CDPSession | None = None
        """For what Playwright has no word for; a web session's window does without."""

    @property
    def browser_version(self) -> str:
        return f"Chrome/{self._browser.version}{NO_SANDBOX}"

    @property
    def time_ms(self) -> float:
        return (time.monotonic() - self._born_s) * 1000

    async def prepare(self) -> None:
        """Network policy and handlers, before anything is loaded."""
        await self._context.route("**/*", self._on_request)
        await self._page.add_init_script(guard_script(opens_files=False))
        self._page.on("dialog", self._on_dialog)
        self._page.on("popup", lambda popup: self._later(popup.close()))
        self._page.on("framenavigated", self._on_navigated)
        self._devtools = devtools = await self._context.new_cdp_session(self._page)
        for event in STORED_EVENTS:
            devtools.on(event, self._on_stored)
        for method, params in STORED_COMMANDS:
            await devtools.send(method, params)

    def _on_stored(self, _: Any) -> None:
        self.notes.has_stored = True

    def _later(self, work: Any) -> None:
        answer = asyncio.ensure_future(work)
        self._answers.add(answer)
        answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[None]) -> None:
        self._answers.discard(answer)
        if not answer.cancelled():
            answer.exception()  # a dialog or popup that was gone before we came

    def _on_dialog(self, dialog: Dialog) -> None:
        self.notes.dialogs.append(dialog.message)
        self._later(dialog.accept(dialog.default_value))

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None and not self._is_loading:
            self.notes.left_for = frame.url

    async def _on_request(self, route: Route) -> None:
        url = route.request.url
        if not self._is_loading and self._leads_away(route.request):
            self.notes.blocked.append(url)
            await route.fulfill(status=204)
        elif is_below(url, self._root):
            await route.continue_()
        else:
            self.notes.blocked.append(url)
            await route.abort("blockedbyclient")

    def _leads_away(self, request: Request) -> bool:
        """A navigation of our page, or of a popup before it has a frame."""
        if not request.is_navigation_request():
            return False
        try:
            return request.frame.parent_frame is None
        except Error:
            return True

    async def load(self, url: str) -> None:
        self._is_loading = True
        try:
            async with sandbox_errors(self._browser, self._root):
                await self._page.goto(url, timeout=0)
        finally:
            self._is_loading = False
        self.notes = PageNotes(has_stored=self.notes.has_stored)

    async def evaluate(self, expression: str) -> Any:
        async with sandbox_errors(self._browser, self._root):
            return await self._page.evaluate(expression)

    async def perform(self, phases: Sequence[Phase]) -> None:
        async with sandbox_errors(self._browser):
            for phase in phases:
                if isinstance(phase, Pause):
                    await asyncio.sleep(phase.ms / 1000)
                else:
                    for gesture in phase:
                        await self._perform(gesture)

    async def _perform(self, gesture: Gesture) -> None:
        mouse, keyboard = self._page.mouse, self._page.keyboard
        match gesture:
            case PointerMove(x=x, y=y):
                await mouse.move(x, y)
            case PointerDown(button=button, count=count):
                self._buttons.add(button)
                await mouse.down(button=button, click_count=count)
            case PointerUp(button=button, count=count):
                self._buttons.discard(button)
                await mouse.up(button=button, click_count=count)
            case Wheel(dx=dx, dy=dy):
                await mouse.wheel(dx, dy)
            case KeyStroke(name=name, is_down=is_down):
                key = find_key(name)
                if key is not None:
                    # by its code Playwright lets a held Shift capitalise a letter, by its name it does not
                    code = key.code if "Shift" in self._held and key.text.isalpha() else key.key
                    (self._held.add if is_down else self._held.discard)(code)
                    await (keyboard.down if is_down else keyboard.up)(code)
            case Insert(text=text):
                await keyboard.insert_text(text)

    async def rest(self) -> None:
        async with sandbox_errors(self._browser):
            for button in sorted(self._buttons):
                await self._page.mouse.up(button=button)  # type: ignore[arg-type]
            for key in sorted(self._held):
                await self._page.keyboard.up(key)
            self._buttons.clear()
            self._held.clear()
            size = self._page.viewport_size or {"width": 1, "height": 1}
            await self._page.mouse.move(size["width"] - 1, size["height"] - 1)
            await self._page.evaluate(REST_SCRIPT)
            if self._devtools is not None:
                await self._page.evaluate(FORGET_SCRIPT)
                with suppress(Error):  # a navigation is just being refused: the next episode's rest forgets it
                    await self._devtools.send(*FORGET_COMMAND)

    async def is_reusable(self) -> bool:
        if self._devtools is None:
            return False
        async with sandbox_errors(self._browser):
            has_stored = await self._page.evaluate(HAS_STORED_SCRIPT)
            usage = (await self._devtools.send(*USAGE_COMMAND))["usage"]
        return not (has_stored or usage or self.notes.has_stored)

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        async with sandbox_errors(self._browser):
            await asyncio.sleep(ms / 1000)
            return await self._page.screenshot(timeout=0) if screenshot else None

    async def close(self) -> None:
        if self._browser.is_connected():
            async with sandbox_errors(self._browser):
                await self._context.close()


@asynccontextmanager
async def sandbox_errors(browser: Browser, root: Path = Path("/")) -> AsyncIterator[None]:
    """Playwright's errors as ours, with files named by their path from `root`."""
    try:
        yield
    except Error as error:
        if not browser.is_connected() or "crashed" in str(error):
            raise BrowserCrashed(f"The browser went away while Playwright drove it: {str(error)[:300]}") from error
        raise SandboxError(f"Playwright could not go on: {relative_urls(str(error), root)[:300]}") from error
