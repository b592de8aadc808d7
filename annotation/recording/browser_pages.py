"""A Chromium that a person uses, with the recorder's ear in each of its pages: the DevTools protocol over a pipe, which no other program
can reach, unlike a debugging port. What is heard is browser_recorder.py's business.

The profile is one of its own under the recordings' home, so that a person's own passwords and cookies are not in reach of a recording.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from annotation.recording.secret_names import SOURCE
from annotation.recording.sign import HEIGHT_PX
from sandbox.browser import host
from sandbox.browser.cdp import Connection, Params
from warehouse.errors import BrowserCrashed, RecorderUnavailable, SandboxError

SCRIPT = Path(__file__).with_name("browser_script.js")
ELEMENTS = Path(host.__file__).with_name("elements.js")
WORLD = "flywheel recorder"
BINDING = "flywheelTell"
SIGN_PX = (90, HEIGHT_PX)
START_S = 30.0
FLAGS = ("--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-features=Translate")


@dataclass(slots=True, kw_only=True)
class Tab:
    """A page, and its newest picture: PNG bytes, and when they came (monotonic)."""

    session_id: str
    png: bytes = b""
    png_s: float = 0.0
    url: str = ""
    asked_by_page_s: float = field(default=0.0)
    """When the page itself last began to go elsewhere."""


Heard = Callable[[Tab, dict[str, Any]], None]
Went = Callable[[Tab, str], None]


class BrowserPages:
    """`heard` is called with what the script tells, `went` when a person went elsewhere by the address bar or a bookmark."""

    def __init__(self, heard: Heard, went: Went, changed: Callable[[Tab], None]) -> None:
        self._heard, self._went, self._changed = heard, went, changed
        self.connection = Connection()
        self.tabs: dict[str, Tab] = {}
        self._contexts: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        listing = ELEMENTS.read_text(encoding="utf-8").rstrip().rstrip(";")
        body = SCRIPT.read_text(encoding="utf-8").rstrip().rstrip(";")
        self._script = f"({body})({listing}, {json.dumps(SIGN_PX)}, {json.dumps(SOURCE)}, (text) => {BINDING}(text));"

    async def launch(self, executable: Path, profile: Path, url: str, flags: tuple[str, ...] = ()) -> None:
        """Start the browser with one page. Raises RecorderUnavailable."""
        profile.mkdir(parents=True, exist_ok=True, mode=0o700)
        child_read, write_fd = os.pipe()
        read_fd, child_write = os.pipe()
        # Chromium finds its ends of the pipes at 3 and 4.
        shell = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        command = [
            "/bin/bash", "-c", shell, "record", str(child_read), str(child_write), str(executable), "--remote-debugging-pipe",
            f"--user-data-dir={profile}", *FLAGS, *flags, "about:blank",
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(child_read, child_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        finally:
            os.close(child_read)
            os.close(child_write)
        await self.connection.open(read_fd=read_fd, write_fd=write_fd)
        self.connection.listen(None, "Target.attachedToTarget", self._attached)
        self.connection.listen(None, "Target.detachedFromTarget", lambda event: self._detached(str(event["sessionId"])))
        attaching = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        try:
            async with asyncio.timeout(START_S):
                await self.connection.send("Target.setAutoAttach", attaching)
                while not self.tabs:
                    await asyncio.sleep(0.02)
                tab = next(iter(self.tabs.values()))
                tab.asked_by_page_s = time.monotonic()
                await self.connection.send("Page.navigate", {"url": url}, tab.session_id)
        except (TimeoutError, SandboxError) as error:
            await self.close()
            raise RecorderUnavailable(f"{executable} did not start with a debugging pipe: {error}") from error

    @property
    def is_open(self) -> bool:
        """Whether any page is left to record."""
        return bool(self.tabs) and not self.connection.is_lost

    async def close(self) -> None:
        process, self._process = self._process, None
        with suppress(SandboxError, BrowserCrashed, TimeoutError):
            async with asyncio.timeout(5.0):
                await self.connection.send("Browser.close")
        self.connection.close()
        if process is not None:
            for _ in range(100):
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.05)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def show_sign(self, is_paused: bool) -> None:
        for session_id in list(self.tabs):
            self._evaluate(session_id, f"window.__flywheelSign && window.__flywheelSign({json.dumps(is_paused)})")

    def _evaluate(self, session_id: str, expression: str) -> None:
        context = self._contexts.get(session_id)
        if context is not None:
            self._send("Runtime.evaluate", {"expression": expression, "contextId": context}, session_id)

    def _send(self, method: str, params: Params | None, session_id: str) -> None:
        """A command whose failure says only that the page is gone."""
        self.connection.send(method, params, session_id)

    def _attached(self, event: Params) -> None:
        session_id, info = str(event["sessionId"]), event["targetInfo"]
        if info["type"] != "page":
            self._send("Runtime.runIfWaitingForDebugger", None, session_id)
            return
        tab = self.tabs[session_id] = Tab(session_id=session_id, url=info.get("url", ""))
        listen = self.connection.listen
        listen(session_id, "Runtime.bindingCalled", lambda told: self._told(tab, told))
        listen(session_id, "Runtime.executionContextCreated", lambda told: self._context(tab, told["context"]))
        listen(session_id, "Page.screencastFrame", lambda frame: self._pictured(tab, frame))
        listen(session_id, "Page.frameRequestedNavigation", lambda _: self._asked(tab))
        listen(session_id, "Page.frameNavigated", lambda told: self._navigated(tab, told["frame"]))
        self._send("Page.enable", None, session_id)
        self._send("Runtime.addBinding", {"name": BINDING, "executionContextName": WORLD}, session_id)
        self._send("Runtime.enable", None, session_id)
        script = {"source": self._script, "worldName": WORLD, "runImmediately": True}
        self._send("Page.addScriptToEvaluateOnNewDocument", script, session_id)
        self._send("Page.startScreencast", {"format": "png", "everyNthFrame": 1}, session_id)
        self._send("Runtime.runIfWaitingForDebugger", None, session_id)

    def _context(self, tab: Tab, context: Params) -> None:
        if context["name"] == WORLD:
            self._contexts[tab.session_id] = context["id"]

    def _detached(self, session_id: str) -> None:
        if self.tabs.pop(session_id, None) is not None:
            self.connection.forget(session_id)

    def _told(self, tab: Tab, told: Params) -> None:
        if told["name"] == BINDING:
            with suppress(ValueError, KeyError, TypeError):
                self._heard(tab, json.loads(told["payload"]))

    def _pictured(self, tab: Tab, frame: Params) -> None:
        self._send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]}, tab.session_id)
        tab.png, tab.png_s = b64decode(frame["data"]), time.monotonic()
        self._changed(tab)

    def _asked(self, tab: Tab) -> None:
        tab.asked_by_page_s = time.monotonic()

    def _navigated(self, tab: Tab, frame: Params) -> None:
        if "parentId" in frame:
            return
        url, before = frame["url"] + frame.get("urlFragment", ""), tab.url
        tab.url = url
        if time.monotonic() - tab.asked_by_page_s > 5.0 and url != before and url.startswith(("http:", "https:", "file:")):
            self._went(tab, url)


def check_display() -> None:
    """Whether a window of a browser has somewhere to show. Raises RecorderUnavailable."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RecorderUnavailable("There is no display for a browser: set DISPLAY, or log in to a desktop.")
