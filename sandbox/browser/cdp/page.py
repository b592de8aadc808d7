"""What the pages that we drive by the DevTools protocol share: opening, the network policy, dialogs, crashes, evaluation, input.

Policy: a page may load files below its root and nothing else; a navigation away is answered with "no content", which leaves the page
where it is; dialogs are accepted, popups closed, downloads refused. What a web session may do beyond that: sandbox/browser/window/tabs.py.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.clipboard import pastes
from sandbox.browser.cdp.connection import Listener, Params
from sandbox.browser.input import CdpInput, Gesture, Phase, PointerMove, PointerUp, Wheel
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
from sandbox.tasks.page_task import PageSettings
from warehouse.core.errors import BrowserCrashed, SandboxError

WORLD = "flywheel"
"""The isolated world of our own scripts in every document."""

COPIED = "flywheelCopied"
PROCESS_ENDED = "The page's process ended: it crashed, had too much memory, or was closed by the page."

COMPILE_FROM_CHARS = 1000
"""Longer expressions are kept in the page as functions."""


class CdpPage:
    """A page in a browser context (hence a renderer process) of its own. Subclasses add time, frames and screenshots."""

    _fetch_options: ClassVar[Params] = {"patterns": [{"urlPattern": "*"}]}
    _opens_files: ClassVar[bool] = False
    """A click on a file field asks for a file."""
    _is_drawn: ClassVar[bool] = False
    """Its frames are drawn by us, one at a time."""

    def __init__(self, browser: Browser, settings: PageSettings, root: Path) -> None:
        self.browser = browser
        self.notes = PageNotes()
        self._settings = settings
        self._root = root
        self._input = CdpInput()
        self._loading = False
        self._wanted_loader_id = self._loaded_loader_id = ""
        self._is_closed = False
        self._compiled: dict[str, str] = {}
        self._drag: Params | None = None
        """What the page drags, as the browser names it."""
        self._is_drag_over = False
        self._copied = ""
        self.is_pasting = False
        """Others wait for the clipboard."""
        self._context_id = self._target_id = self._session_id = ""

    @classmethod
    async def open(cls, browser: Browser, settings: PageSettings, root: Path) -> Self:
        """A blank page of the settings' size that may load files below `root`."""
        page = cls(browser, settings, root)
        try:
            await page._open()
        except BaseException:
            await page.close()
            raise
        return page

    @property
    def browser_version(self) -> str:
        return self.browser.version

    async def _open(self) -> None:
        self._context_id = await self.browser.create_context(self._on_target)
        self.browser.connection.send("Browser.setDownloadBehavior", {"behavior": "deny", "browserContextId": self._context_id})
        self._target_id = await create_target(self.browser, self._settings, self._context_id)
        if not self._session_id:
            raise SandboxError("The browser opened a page without letting us attach to it; start the episode again.")
        await asyncio.gather(*self._set_up())

    def _on_target(self, info: Params, session_id: str) -> None:
        """The first page of our context is ours; what a page opens is closed before it runs."""
        if not self._session_id and info["type"] == "page":
            self._session_id = session_id
            self._send("Runtime.runIfWaitingForDebugger")
        elif info["type"] == "page":
            self.browser.refuse_target(info, session_id)
        else:
            self._guard_worker(session_id)

    def _guard_worker(self, session_id: str) -> None:
        """The requests of a worker that several pages may share go the way of a page's own."""
        self.browser.connection.listen(session_id, "Fetch.requestPaused", lambda event: self._on_request(event, session_id))
        self.browser.connection.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}, session_id)
        self.browser.connection.send("Runtime.runIfWaitingForDebugger", None, session_id)

    def _set_up(self) -> list[asyncio.Future[Params]]:
        """Listen, and send what a page needs before its first document. Returned are the answers to come."""
        for event, listener in self._listeners().items():
            self.browser.connection.listen(self._session_id, event, listener)
        return [
            self._send("Emulation.setDeviceMetricsOverride", self._metrics()),
            self._send("Page.enable"),
            self._send("Page.setLifecycleEventsEnabled", {"enabled": True}),
            self._send("Inspector.enable"),
            self._send("Runtime.enable"),
            self._send("Fetch.enable", self._fetch_options),
            self._send("Input.setInterceptDrags", {"enabled": True}),
            self._send("Runtime.addBinding", {"name": COPIED, "executionContextName": WORLD}),
            self._send("Page.addScriptToEvaluateOnNewDocument", {"source": self._guard(), "worldName": WORLD}),
            *(self._send(method, params) for method, params in STORED_COMMANDS),
        ]

    def _guard(self) -> str:
        images = [(self._root / path).as_uri() for path in self._settings.images]
        return guard_script(opens_files=self._opens_files, images=images, is_drawn=self._is_drawn)

    def _metrics(self) -> Params:
        width, height = self._settings.viewport_px
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        if self.browser.begin_frame:
            metrics["dontSetVisibleSize"] = True  # laid out for the whole viewport, drawn for the observed area
        return metrics

    def _listeners(self) -> dict[str, Listener]:
        return {
            "Page.lifecycleEvent": self._on_lifecycle,
            "Page.frameNavigated": self._on_navigated,
            "Page.javascriptDialogOpening": self._on_dialog,
            "Fetch.requestPaused": self._on_request,
            "Inspector.targetCrashed": self._on_crash,
            "Inspector.detached": self._on_crash,
            "Runtime.bindingCalled": self._on_binding,
            "Input.dragIntercepted": self._on_drag,
            **dict.fromkeys(STORED_EVENTS, self._on_stored),
        }

    def _send(self, method: str, params: Params | None = None) -> asyncio.Future[Params]:
        return self.browser.connection.send(method, params, self._session_id)

    def _on_lifecycle(self, event: Params) -> None:
        if event["name"] == "load" and event["frameId"] == self._target_id:
            self._loaded_loader_id = event["loaderId"]

    @property
    def _is_loaded(self) -> bool:
        """The document that was asked for last has fired its load event, not one before it."""
        return self._loaded_loader_id == self._wanted_loader_id

    def _on_navigated(self, event: Params) -> None:
        if "parentId" not in event["frame"] and not self._loading:
            self.notes.left_for = str(event["frame"]["url"])

    def _on_dialog(self, event: Params) -> None:
        self.notes.dialogs.append(str(event["message"]))
        self._send("Page.handleJavaScriptDialog", {"accept": True, "promptText": str(event.get("defaultPrompt", ""))})

    def _on_crash(self, _: Params) -> None:
        """What the page was asked is never answered. The pages beside it have processes of their own and go on; but where it ended in the
        middle of a frame of its own, no frame of theirs may ever be drawn, so the browser ends with it."""
        if self.browser.is_drawing(self._session_id):
            self.browser.kill(PROCESS_ENDED)
        self.browser.connection.end(self._session_id, PROCESS_ENDED)

    def _on_request(self, event: Params, session_id: str | None = None) -> None:
        url, request_id = str(event["request"]["url"]), event["requestId"]
        answer = partial(self.browser.connection.send, session_id=session_id or self._session_id)
        is_navigation = event.get("resourceType") == "Document" and event.get("frameId") == self._target_id
        if is_navigation and not self._loading:
            self.notes.blocked.append(url)
            answer("Fetch.fulfillRequest", {"requestId": request_id, "responseCode": 204})
        elif is_below(url, self._root):
            answer("Fetch.continueRequest", {"requestId": request_id})
        else:
            self.notes.blocked.append(url)
            answer("Fetch.failRequest", {"requestId": request_id, "errorReason": "BlockedByClient"})

    def _on_stored(self, _: Params) -> None:
        self.notes.has_stored = True

    async def _navigate(self, url: str) -> None:
        """Returns when the new document was committed, not when it is loaded."""
        self.notes = PageNotes(has_stored=self.notes.has_stored)
        self._compiled.clear()
        self._drag = None
        answer = await self._send("Page.navigate", {"url": url})
        if answer.get("errorText"):
            where = relative_urls(url, self._root)
            raise SandboxError(f"The page {where} could not be opened: {answer['errorText']}. Is the file there, below its source's root?")
        self._wanted_loader_id = answer["loaderId"]

    def _on_binding(self, event: Params) -> None:
        """A message of the guard: a text that was copied."""
        if event["name"] == COPIED:
            self._copied = str(event["payload"])

    async def perform(self, phases: Sequence[Phase]) -> None:
        if self._input.is_modified(phases) and pastes(phases):
            async with self.browser.clipboard_writer.lending(self._copied):
                self.is_pasting = True
                try:
                    await self._perform(phases)
                finally:
                    self.is_pasting = False
        else:
            await self._perform(phases)

    @property
    @abstractmethod
    def time_ms(self) -> float: ...

    @abstractmethod
    async def rest(self) -> None: ...

    async def is_reusable(self) -> bool:
        has_stored = await self.evaluate(HAS_STORED_SCRIPT)
        usage = (await self._send(*USAGE_COMMAND))["usage"]
        return not (has_stored or usage or self.notes.has_stored)

    @abstractmethod
    async def _perform(self, phases: Sequence[Phase]) -> None:
        """Carry out gestures, in the page's time."""

    async def evaluate(self, expression: str) -> Any:
        """A long expression is sent and compiled once a document."""
        if len(expression) < COMPILE_FROM_CHARS:
            answer = await self._send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        else:
            if (function_id := self._compiled.get(expression)) is None:
                answer = await self._send("Runtime.evaluate", {"expression": f"() => ({expression})"})
                self._compiled[expression] = function_id = str(answer["result"].get("objectId"))
            calling = {"functionDeclaration": "function() { return this(); }", "objectId": function_id, "returnByValue": True}
            answer = await self._send("Runtime.callFunctionOn", calling)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            reason = details.get("exception", {}).get("description") or details.get("text")
            reason = relative_urls(str(reason), self._root)[:300]
            raise SandboxError(f"A script failed in the page: {reason}. The script began with {expression[:80]!r}.")
        return answer["result"].get("value")

    def _on_drag(self, event: Params) -> None:
        """The drag is ours from here. Left to the browser it races with the input that follows, which the browser then refuses."""
        self._drag, self._is_drag_over = event["data"], False
        if not self._input.is_dragging:  # the button was let go before the page knew that it drags
            self._end_drag()

    def _end_drag(self) -> list[asyncio.Future[Params]]:
        """Let go of what is dragged, over nothing."""
        if self._drag is None:
            return []
        cancelling = self._send_drag(["dragCancel"], {"x": 0, "y": 0, "modifiers": 0})
        self._drag = None
        return cancelling

    def _send_gesture(self, gesture: Gesture) -> list[asyncio.Future[Params]]:
        """While the page drags something, the pointer carries it."""
        commands = list(self._input.commands(gesture))
        if self._drag is None or not isinstance(gesture, PointerMove | PointerUp):
            return [self._send(method, params) for method, params in commands]
        is_let_go = isinstance(gesture, PointerUp)
        kinds = [*([] if self._is_drag_over else ["dragEnter"]), "dragOver", *(["drop"] if is_let_go else [])]
        answers = self._send_drag(kinds, commands[0][1])
        self._is_drag_over = True
        if is_let_go:
            self._drag = None
        return answers

    def _send_drag(self, kinds: list[str], at: Params) -> list[asyncio.Future[Params]]:
        point = {"x": at["x"], "y": at["y"], "data": self._drag, "modifiers": at["modifiers"]}
        return [self._send("Input.dispatchDragEvent", {"type": kind, **point}) for kind in kinds]

    async def _send_rest(self) -> list[asyncio.Future[Params]]:
        self._copied = ""
        await asyncio.gather(*self._end_drag())
        width, height = self._settings.viewport_px
        commands = [self._send(method, params) for method, params in self._input.rest(width - 1, height - 1)]
        if self._settings.web is not None:
            return [*commands, self._send("Runtime.evaluate", {"expression": REST_SCRIPT})]
        self._send(*FORGET_COMMAND)
        return [*commands, self._send("Runtime.evaluate", {"expression": f"{REST_SCRIPT}; {FORGET_SCRIPT}"})]

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._context_id and self.browser.is_alive:
            with suppress(BrowserCrashed):
                await self.browser.finish_frame(self._session_id)
                await self.browser.dispose_context(self._context_id)
        self.browser.connection.forget(self._session_id)


async def create_target(browser: Browser, settings: PageSettings, context_id: str) -> str:
    """A blank page in a context; its id. By then the context's owner has had the event."""
    width, height = settings.area_px if browser.begin_frame else settings.viewport_px
    target = {"url": "about:blank", "browserContextId": context_id, "width": width, "height": height}
    if browser.begin_frame:
        target["enableBeginFrameControl"] = True
    return str((await browser.connection.send("Target.createTarget", target))["targetId"])


def answers_without_frame(phase: tuple[Gesture, ...]) -> bool:
    """Presses and keys are answered at once; moves and scrolls wait for a frame, unless a press after them flushes them out."""
    return not isinstance(phase[-1], PointerMove | Wheel)
