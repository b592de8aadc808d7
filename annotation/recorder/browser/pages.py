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

from annotation.recorder.browser.frames import Frames
from annotation.recorder.privacy.secret_names import SOURCE
from annotation.recorder.screen.sign import HEIGHT_PX
from sandbox.browser import backend
from sandbox.browser.cdp.connection import Connection, Params
from warehouse.core.errors import BrowserCrashed, RecorderUnavailable, SandboxError

SCRIPT = Path(__file__).with_name("script.js")
ELEMENTS = Path(backend.__file__).with_name("elements.js")
WORLD = "flywheel recorder"
BINDING = "flywheelTell"
SIGN_PX = (90, HEIGHT_PX)
START_S = 30.0
BLANK = ("", "about:blank")
FLAGS = (
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    # Frames in a page that comes back from the cache, or was made before it was asked for, are not reported.
    "--disable-features=Translate,BackForwardCache,Prerender2",
)


LEAVING_S = 0.6
"""After an excluded page so long no picture is taken: the next one may not be painted yet, and show the old one."""


@dataclass(slots=True, kw_only=True)
class Tab:
    """A page, and its newest picture: PNG bytes, and when they came (monotonic). Pictures of excluded pages are not kept."""

    session_id: str
    target_id: str = ""
    png: bytes = b""
    png_s: float = 0.0
    size_px: tuple[int, int] | None = None
    """Of the newest picture, also of one that was not kept."""
    url: str = ""
    """As the page reports it. A blank one has the address of the page that opened it, or that was there before: that may have filled it."""
    target_url: str = ""
    """As the browser reports it, which may be earlier or later."""
    blind_until_s: float = 0.0
    asked_by_page_s: float = field(default=0.0)
    """When the page itself last began to go elsewhere."""


Heard = Callable[[Tab, dict[str, Any]], None]
Went = Callable[[Tab, str], None]


class BrowserPages:
    """`heard` is called with the script's messages, `went` when a person went elsewhere by the address bar or a bookmark. Of pages whose
    address `excludes` says yes to, or that of a frame in them, no picture is kept."""

    def __init__(
        self, heard: Heard, went: Went, changed: Callable[[Tab], None], excludes: Callable[[str], bool] = lambda url: False
    ) -> None:
        self._heard, self._went, self._changed, self._excludes = heard, went, changed, excludes
        self.connection = Connection()
        self.tabs: dict[str, Tab] = {}
        self._frames: dict[str, Frames] = {}
        """By the session of the tab."""
        self._contexts: dict[str, int] = {}
        """By the session of the tab: the script's world in the page itself, not in its frames."""
        self._is_paused = False
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
            "/bin/bash",
            "-c",
            shell,
            "record",
            str(child_read),
            str(child_write),
            str(executable),
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            *FLAGS,
            *flags,
            "about:blank",
        ]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(child_read, child_write),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        finally:
            os.close(child_read)
            os.close(child_write)
        await self.connection.open(read_fd=read_fd, write_fd=write_fd)
        self.connection.listen(None, "Target.attachedToTarget", self._attached)
        self.connection.listen(None, "Target.detachedFromTarget", lambda event: self._detached(str(event["sessionId"])))
        self.connection.listen(None, "Target.targetInfoChanged", lambda event: self._target_changed(event["targetInfo"]))
        attaching = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        try:
            async with asyncio.timeout(START_S):
                await self.connection.send("Target.setDiscoverTargets", {"discover": True})
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
        self._is_paused = is_paused
        for tab in list(self.tabs.values()):
            self._sign(tab)

    def _sign(self, tab: Tab) -> None:
        """Have the sign in a page say what is so."""
        word = "PAUSED" if self._is_paused else "EXCLUDED" if self.is_excluded(tab) else "RECORDING"
        context = self._contexts.get(tab.session_id)
        if context is not None:
            shows = f"window.__flywheelShows = {json.dumps(word)}; window.__flywheelSign && window.__flywheelSign()"
            self._send("Runtime.evaluate", {"expression": shows, "contextId": context}, tab.session_id)

    def _send(self, method: str, params: Params | None, session_id: str) -> None:
        """A command whose failure says only that the page is gone."""
        self.connection.send(method, params, session_id)

    def _attached(self, event: Params) -> None:
        session_id, info = str(event["sessionId"]), event["targetInfo"]
        if info["type"] != "page":
            self._send("Runtime.runIfWaitingForDebugger", None, session_id)
            return
        tab = Tab(session_id=session_id, target_id=info["targetId"], url=info.get("url", ""), target_url=info.get("url", ""))
        opener = next((one for one in self.tabs.values() if one.target_id == info.get("openerId")), None)
        if tab.url in BLANK and opener is not None:
            tab.url, tab.target_url = opener.url, opener.target_url
        self.tabs[session_id] = tab
        listen = self.connection.listen
        listen(session_id, "Runtime.bindingCalled", lambda params: self._on_binding(tab, params))
        listen(session_id, "Runtime.executionContextCreated", lambda params: self._context(tab, params["context"]))
        listen(session_id, "Page.screencastFrame", lambda frame: self._pictured(tab, frame))
        listen(session_id, "Page.frameRequestedNavigation", lambda _: self._asked(tab))
        listen(session_id, "Page.frameNavigated", lambda params: self._navigated(tab, params["frame"]))
        self._frames[session_id] = Frames(self.connection, session_id, tab.target_id, self._excludes, lambda: self._frames_changed(tab))
        # In this order: a page that goes to another process between the two would hear nothing, its worlds being given no binding.
        self._send("Runtime.enable", None, session_id)
        self._send("Runtime.addBinding", {"name": BINDING, "executionContextName": WORLD}, session_id)
        script = {"source": self._script, "worldName": WORLD, "runImmediately": True}
        self._send("Page.addScriptToEvaluateOnNewDocument", script, session_id)
        self._look(session_id)
        self._send("Runtime.runIfWaitingForDebugger", None, session_id)

    def _context(self, tab: Tab, context: Params) -> None:
        if context["name"] == WORLD and context["auxData"].get("frameId") == tab.target_id:
            self._contexts[tab.session_id] = context["id"]
            self._sign(tab)

    def _detached(self, session_id: str) -> None:
        if self.tabs.pop(session_id, None) is not None:
            self._frames.pop(session_id).forget()

    def _on_binding(self, tab: Tab, params: Params) -> None:
        if params["name"] == BINDING:
            with suppress(ValueError, KeyError, TypeError):
                self._heard(tab, json.loads(params["payload"]))

    def _pictured(self, tab: Tab, frame: Params) -> None:
        self._send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]}, tab.session_id)
        png, now_s = b64decode(frame["data"]), time.monotonic()
        tab.size_px = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
        if now_s < tab.blind_until_s or self.is_excluded(tab):
            tab.png = b""
            return
        tab.png, tab.png_s = png, now_s
        self._changed(tab)

    def is_excluded(self, tab: Tab) -> bool:
        frames = self._frames.get(tab.session_id)
        return self._excludes(tab.url) or self._excludes(tab.target_url) or (frames is not None and frames.has_excluded)

    def _look(self, session_id: str) -> None:
        """Have the page pictured, now and whenever it changes."""
        if session_id in self.tabs and not self.connection.is_lost:
            self._send("Page.stopScreencast", None, session_id)
            self._send("Page.startScreencast", {"format": "png", "everyNthFrame": 1}, session_id)

    def _asked(self, tab: Tab) -> None:
        tab.asked_by_page_s = time.monotonic()

    def _navigated(self, tab: Tab, frame: Params) -> None:
        was_excluded = self.is_excluded(tab)
        self._frames[tab.session_id].navigated(frame)
        if "parentId" in frame:
            return
        url, before = frame["url"] + frame.get("urlFragment", ""), tab.url
        if url not in BLANK:
            tab.url = frame.get("unreachableUrl") or url  # the browser's own page says whose place it takes
        if time.monotonic() - tab.asked_by_page_s > 5.0 and url != before and url.startswith(("http:", "https:", "file:")):
            self._went(tab, url)
        tab.png = b""
        self._sign(tab)
        if was_excluded:
            self._leave(tab)

    def _target_changed(self, info: Params) -> None:
        for frames in list(self._frames.values()):
            frames.target_changed(info)
        tab = next((tab for tab in self.tabs.values() if tab.target_id == info["targetId"]), None)
        if tab is None or info["url"] in BLANK or info["url"] == tab.target_url:
            return
        was_excluded, tab.target_url = self.is_excluded(tab), info["url"]
        self._sign(tab)
        if was_excluded or self.is_excluded(tab):
            tab.png = b""
            self._leave(tab)

    def _frames_changed(self, tab: Tab) -> None:
        """A frame of an excluded site came or went."""
        tab.png = b""
        self._sign(tab)
        self._leave(tab)

    def _leave(self, tab: Tab) -> None:
        """Take no picture for a moment. A page that stands still is pictured once, so it is pictured again after that."""
        tab.blind_until_s = time.monotonic() + LEAVING_S
        asyncio.get_running_loop().call_later(LEAVING_S, self._look, tab.session_id)


def check_display() -> None:
    """Whether a window of a browser has somewhere to show. Raises RecorderUnavailable."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RecorderUnavailable("There is no display for a browser: set DISPLAY, or log in to a desktop.")
