"""Tab: one page of a web session's window. What it may load, when it has settled, and what it hears of from the browser: dialogs, file
choosers, its own end. The window that holds the tabs is window.py.

A tab has settled when the step's page time has passed, no frame is being loaded and no request is under way (open streams and media are
not waited for). Page time stands still while a request is answered, so how long a server takes does not show. The wait is bounded by
WebSettings.settle_limit_s of wall-clock time and MAX_EXTRA_MS of page time; what was not settled then is said (`unsettled`).
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

from sandbox.browser.cdp.beginframe import GESTURE_FRAME_MS, PageClock
from sandbox.browser.cdp.browser import Browser
from sandbox.browser.cdp.connection import Listener, Params
from sandbox.browser.cdp.page import PROCESS_ENDED, WORLD, CdpPage
from sandbox.browser.input import Phase
from sandbox.browser.isolation.policy import NetworkPolicy, Way, is_below
from sandbox.browser.isolation.proxy import Proxy
from sandbox.browser.page import PageNotes
from sandbox.browser.window.frames import FrameReader
from sandbox.browser.window.request_order import RequestOrder
from sandbox.tasks.page_task import MAX_BODY_CHARS, PageSettings, SentRequest, WebSettings
from warehouse.core.errors import BrowserCrashed

MAX_EXTRA_MS = 5000.0
"""Page time that may pass beyond a step's own while the page settles."""
MAX_STILL_FRAMES = 60
_TITLE_SCRIPT = "(() => { try { return String(document.title).slice(0, 500); } catch { return ''; } })()"
_QUIET_WAIT_S = 0.02
_ABORTED = "net::ERR_ABORTED"
UNAWAITED = {"EventSource", "WebSocket", "Media", "Ping", "Prefetch", "Other"}
"""Of the last kind is a worker's script where it is intercepted; where it is reported it is a Script, by an id unlike a page's own
(`2117.4`). A page never hears of its end."""


class TabWindow(Protocol):
    """What a tab needs of the window that holds it."""

    browser: Browser
    settings: PageSettings
    web: WebSettings
    root: Path
    notes: PageNotes
    policy: NetworkPolicy
    proxy: Proxy
    clock: PageClock
    requests: RequestOrder
    num_switches: int
    """How often another tab became the active one."""

    @property
    def has_downloads_under_way(self) -> bool: ...

    def on_sent(self, request: SentRequest) -> None: ...

    def on_dialog(self, tab: Tab, event: Params) -> None: ...

    def on_chooser(self, tab: Tab, event: Params) -> None: ...

    def on_closed(self, tab: Tab) -> None: ...

    def on_crashed(self) -> None: ...


class Tab(CdpPage):
    """A mix-in before the class that gives a page its time and frames."""

    _fetch_options: ClassVar[Params] = {"patterns": [{"urlPattern": "*"}], "handleAuthRequests": True}
    _opens_files: ClassVar[bool] = True
    _max_missed_frames: ClassVar[int] = 20
    """A frame that is drawn while a page moves to another process has no picture."""

    def __init__(self, window: TabWindow, info: Params, session_id: str) -> None:
        super().__init__(window.browser, window.settings, window.root)
        self.window = window
        self.notes = window.notes
        self.unsettled: str | None = None
        self.url, self.title = "about:blank", ""
        self.frames = FrameReader(self._send, WORLD)
        self._target_id, self._session_id = str(info["targetId"]), session_id
        self._input.composes = True
        self._requests: dict[str, str] = {}
        self._sent: dict[str, SentRequest] = {}
        """By id, those that are not answered yet."""
        self._loading_frames: set[str] = set()
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._limit_at_s = 0.0

    @property
    def target_id(self) -> str:
        return self._target_id

    @property
    def session_id(self) -> str:
        return self._session_id

    def start(self) -> list[asyncio.Future[Params]]:
        """What a new page needs, and leave to run; the answers to come."""
        self.browser.when_gone(self._session_id, self._on_gone)
        answers = self._set_up()
        for method, params in (
            ("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": MAX_BODY_CHARS}),
            ("Performance.enable", {}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.setInterceptFileChooserDialog", {"enabled": True}),
            ("Runtime.runIfWaitingForDebugger", {}),
        ):
            answers.append(self._send(method, params))
        return answers

    def _metrics(self) -> Params:
        width, height = self._settings.viewport_px
        return {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}

    def _listeners(self) -> dict[str, Listener]:
        return super()._listeners() | {
            "Page.frameStartedLoading": lambda event: self._note_loading(event["frameId"], True),
            "Page.frameStoppedLoading": lambda event: self._note_loading(event["frameId"], False),
            "Page.frameDetached": lambda event: self._note_loading(event["frameId"], False),
            "Page.fileChooserOpened": lambda event: self.window.on_chooser(self, event),
            "Page.navigatedWithinDocument": self._on_moved,
            "Network.requestWillBeSent": self._on_request_sent,
            "Network.responseReceived": self._on_responded,
            "Network.loadingFinished": self._on_request_done,
            "Network.loadingFailed": self._on_request_done,
            "Fetch.authRequired": self._on_auth,
            "Inspector.detached": lambda _: None,  # closed: `_on_gone` hears of it
            "Inspector.targetCrashed": lambda _: self._on_crashed(),
        }

    # ---- what the page asks for ----

    def _on_request(self, event: Params, session_id: str | None = None) -> None:
        self._answer(event, session_id)

    def _answer(self, event: Params, session_id: str | None = None) -> asyncio.Future[Params]:
        """The first wall: the proxy is the second. A page that may not be opened leaves the tab where it is."""
        url, request_id = str(event["request"]["url"]), event["requestId"]
        session_id = session_id or self._session_id
        send = self.browser.connection.send
        way = self.window.policy.way_of_url(url)
        if way is Way.SITE:
            file = self.window.policy.site_answer(url)
            headers = {"Content-Type": file.content_type, "Cache-Control": "max-age=3600"}
            response: Params = {
                "requestId": request_id,
                "responseCode": file.status,
                "body": b64encode(file.body).decode(),
                "responseHeaders": [{"name": name, "value": value} for name, value in headers.items()],
            }
            return send("Fetch.fulfillRequest", response, session_id)
        if way is not Way.REFUSED or is_below(url, self._root):
            return send("Fetch.continueRequest", {"requestId": request_id}, session_id)
        self.notes.blocked.append(url)
        is_page = event.get("resourceType") == "Document" and event.get("frameId") == self._target_id
        reason = "Aborted" if is_page else "BlockedByClient"
        answer = send("Fetch.failRequest", {"requestId": request_id, "errorReason": reason}, session_id)
        if is_page:
            self._send("Page.stopLoading")  # else page time would wait for the refused page
        return answer

    def _on_auth(self, event: Params, session_id: str | None = None) -> None:
        """Credentials go to our proxy and to nobody else."""
        answer: Params = {"response": "CancelAuth"}
        if event["authChallenge"].get("source") == "Proxy":
            credentials = self.window.proxy.credentials
            answer = {"response": "ProvideCredentials", "username": credentials.username, "password": credentials.password}
        params = {"requestId": event["requestId"], "authChallengeResponse": answer}
        self.browser.connection.send("Fetch.continueWithAuth", params, session_id or self._session_id)

    def guard_worker(self, session_id: str) -> None:
        """Requests of workers that pages share (service workers too) go the same way."""
        connection = self.browser.connection
        connection.listen(session_id, "Fetch.requestPaused", lambda event: self._on_request(event, session_id))
        connection.listen(session_id, "Fetch.authRequired", lambda event: self._on_auth(event, session_id))
        connection.send("Fetch.enable", self._fetch_options, session_id)
        connection.send("Runtime.runIfWaitingForDebugger", None, session_id)

    def _on_request_sent(self, event: Params) -> None:
        url = str(event["request"]["url"])
        is_of_worker = event.get("type") == "Script" and "." not in event["requestId"]
        if not url.startswith(("data:", "blob:", "file:")):
            self._note_sent(event)
        if event.get("type") not in UNAWAITED and not is_of_worker and not url.startswith(("data:", "blob:")):
            self._requests[event["requestId"]] = str(event["loaderId"])
            self._changed.set()

    def _note_sent(self, event: Params) -> None:
        """A redirect is reported as a request of the same id."""
        if (before := self._sent.pop(event["requestId"], None)) is not None and "redirectResponse" in event:
            before.status = int(event["redirectResponse"]["status"])
        asked = event["request"]
        body = asked.get("postData")
        sent = SentRequest(
            method=str(asked["method"]),
            url=str(asked["url"]),
            kind=str(event.get("type", "other")).lower(),
            body=body if body is None or len(body) <= MAX_BODY_CHARS else None,
        )
        self._sent[event["requestId"]] = sent
        self.window.on_sent(sent)

    def _on_responded(self, event: Params) -> None:
        if (sent := self._sent.pop(event["requestId"], None)) is not None:
            sent.status = int(event["response"]["status"])

    def _on_request_done(self, event: Params) -> None:
        self._requests.pop(event["requestId"], None)
        self._sent.pop(event["requestId"], None)
        self._changed.set()

    def _note_loading(self, frame_id: str, is_loading: bool) -> None:
        (self._loading_frames.add if is_loading else self._loading_frames.discard)(frame_id)
        self._changed.set()
        if frame_id == self._target_id and not is_loading:
            self._arrived.set()

    def _on_navigated(self, event: Params) -> None:
        frame = event["frame"]
        if "parentId" not in frame:
            self._arrived.set()
            self.url = str(frame["url"]) + str(frame.get("urlFragment", ""))
            self._compiled.clear()
            self.frames.forget()
            self._requests = {key: loader for key, loader in self._requests.items() if loader == frame["loaderId"]}
            self._loading_frames &= {frame["id"]}
            self._drag = None

    def _on_moved(self, event: Params) -> None:
        if event["frameId"] == self._target_id:
            self.url = str(event["url"])
            self._loading_frames.discard(self._target_id)
            self._arrived.set()

    def _on_dialog(self, event: Params) -> None:
        self.notes.dialogs.append(str(event["message"]))
        self.window.on_dialog(self, event)

    def answer_dialog(self, *, accept: bool, text: str) -> None:
        self._send("Page.handleJavaScriptDialog", {"accept": accept, "promptText": text})

    def _on_gone(self) -> None:
        """The page closed itself, or was closed."""
        self._is_closed = True
        self.window.on_closed(self)

    def _on_crashed(self) -> None:
        """What the page was asked is never answered: the process is gone, of this page and of the window's others."""
        self.window.on_crashed()
        self.browser.connection.end(self._session_id, PROCESS_ENDED)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # ---- gestures ----

    async def perform(self, phases: Sequence[Phase]) -> None:
        self._limit_at_s = time.monotonic() + self.window.web.settle_limit_s
        await super().perform(phases)

    async def set_files(self, node_id: int, files: list[str]) -> None:
        """Fill a file field."""
        await self._send("DOM.setFileInputFiles", {"files": files, "backendNodeId": node_id})

    # ---- going elsewhere ----

    async def go(self, url: str) -> str:
        """Open an address; what went wrong, or "". Returns when the new document came, or after the limit while it still may come."""
        return await self._gone(self._send("Page.navigate", {"url": url}))

    async def go_back(self, *, by: int = -1) -> str:
        history = await self._send("Page.getNavigationHistory")
        index = history["currentIndex"] + by
        entries = history["entries"]
        if not 0 <= index < len(entries) or (entries[index]["url"] == "about:blank" and index == 0):
            return f"there is no page to go {'back' if by < 0 else 'forward'} to"
        return await self._gone(self._send("Page.navigateToHistoryEntry", {"entryId": entries[index]["id"]}), is_answered_early=True)

    async def reload(self) -> str:
        return await self._gone(self._send("Page.reload"), is_answered_early=True)

    async def _gone(self, answer: asyncio.Future[Params], *, is_answered_early: bool = False) -> str:
        """No frame may be drawn until the new document came: one that is drawn while a page moves to another process never ends."""
        self._loading_frames.add(self._target_id)
        self._arrived.clear()
        limit_at_s = time.monotonic() + self.window.web.settle_limit_s
        await asyncio.wait([answer], timeout=self.window.web.settle_limit_s)
        if not answer.done():
            return ""
        if is_answered_early:
            await answer
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_at_s - time.monotonic()):
                    await self._arrived.wait()
            return ""
        refusal = answer.exception()
        if refusal is not None and (self._is_closed or isinstance(refusal, BrowserCrashed)):
            raise refusal
        error = str(refusal or answer.result().get("errorText", ""))  # refused: an address that is none
        if error and refusal is None and error != _ABORTED:  # an error page comes, after the answer
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_at_s - time.monotonic()):
                    await self._arrived.wait()
        if error:
            self._loading_frames.discard(self._target_id)
        return "" if error == _ABORTED else error  # a download, or an answer without content

    async def load(self, url: str) -> None:
        await self.go(url)
        await self.settle(0, screenshot=False)

    # ---- settling ----

    def _pending(self) -> str | None:
        if self._loading_frames:
            return "a page is being loaded"
        if self._requests:
            return f"{len(self._requests)} requests are under way"
        return "a download is under way" if self.window.has_downloads_under_way else None

    async def settle(self, ms: float, *, screenshot: bool) -> bytes | None:
        self._limit_at_s = time.monotonic() + self.window.web.settle_limit_s
        extra_ms = 0.0
        await self._pass_time(ms)
        png = await self._draw(ms, screenshot=screenshot)
        while (reason := self._pending()) is not None and time.monotonic() < self._limit_at_s and extra_ms < MAX_EXTRA_MS:
            self._changed.clear()
            if self._pending() is not None:
                await self._wait_for_change()
            extra_ms += GESTURE_FRAME_MS
            png = await self._draw(GESTURE_FRAME_MS, screenshot=screenshot and self._pending() is None)
        for _ in range(self._max_missed_frames if screenshot and png is None else 0):
            if (png := await self._draw(GESTURE_FRAME_MS, screenshot=True)) is not None:
                break
        if self.window.web.still_frames and png is not None:
            png, is_still = await self._until_still(png)
            reason = reason or (None if is_still else "the page keeps moving")
        self.unsettled = reason
        await self._hold()
        return png

    async def _until_still(self, png: bytes) -> tuple[bytes, bool]:
        for _ in range(MAX_STILL_FRAMES):
            again = await self._draw(GESTURE_FRAME_MS, screenshot=True)
            if again is None or again == png:
                return png, True
            png = again
            if time.monotonic() > self._limit_at_s:
                break
        return png, False

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUIET_WAIT_S):
                await self._changed.wait()

    @abstractmethod
    async def _pass_time(self, ms: float) -> None:
        """All of a step's page time but what `_draw` lets pass."""

    @abstractmethod
    async def _draw(self, ms: float, *, screenshot: bool) -> bytes | None: ...

    async def _hold(self) -> None:
        """Nothing may move until we come back."""

    async def read_title(self) -> None:
        self.title = str(await self.evaluate(_TITLE_SCRIPT))

    async def close(self) -> None:
        """Only this page; the window disposes of what the tabs share."""
        if not self._is_closed:
            self._is_closed = True
            await self.browser.finish_frame(self._session_id)
            self.browser.connection.send("Target.closeTarget", {"targetId": self._target_id})
        self.browser.connection.forget(self._session_id)
