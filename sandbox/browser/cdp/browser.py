"""One running browser: its process, its debugging pipe, and what all its pages share: the frame lock, and who owns a new page.

What happens inside a page is the business of the page classes (page.py, beginframe.py, plain.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from sandbox.browser.cdp.clipboard import ClipboardWriter
from sandbox.browser.cdp.connection import Connection, OnTarget, Params
from sandbox.browser.chromium import BEGIN_FRAME_FLAGS, ChromiumProcess, Executable, find_chromium
from warehouse.core.errors import BrowserCrashed, BrowserMissing, SandboxError

_LOG = logging.getLogger(__name__)

LAUNCH_TIMEOUT_S = 60.0
FRAME_TIMEOUT_S = 2.0
STUCK_FRAME_S = 15.0
"""A frame that is not drawn after so long, while another page waits to draw, costs its page its process."""
PROBE_TIMEOUT_S = 5.0
EXIT_S = 2.0
BUSY_LOOK_S, BUSY_SHARE = 2.0, 0.5
NO_SANDBOX = "; no sandbox"
"""Ends the version of a browser without Chromium's own sandbox."""
_NO_SANDBOX_SIGNS = ("No usable sandbox", "Failed to move to new namespace", "sandbox_linux.cc", "zygote_host_impl_linux.cc")


class Browser:
    """A headless Chromium of ours. `await Browser.launch(…)`, then open pages on it, then `close()`."""

    def __init__(self, process: ChromiumProcess, *, begin_frame: bool) -> None:
        self.process = process
        self.begin_frame = begin_frame
        self.connection = Connection(on_lost=self._end)
        self.version = ""
        self._on_target: dict[str, OnTarget] = {}
        self._on_gone: dict[str, Callable[[], None]] = {}
        self.clipboard_writer = ClipboardWriter(self.connection, self.create_context, begin_frame=begin_frame)
        self._frame_lock = asyncio.Lock()
        self._frame_in_flight: asyncio.Future[Params] | None = None
        self._framed_session_id = ""

    @classmethod
    async def launch(cls, *, begin_frame: bool, executable: Executable | None = None, flags: tuple[str, ...] = ()) -> Browser:
        """Start a browser and wait until it answers. Where the kernel allows Chromium no sandbox of its own it starts without,
        still as the unprivileged user, and its version says so. Raises BrowserMissing or BrowserCrashed."""
        executable = executable or find_chromium()
        if begin_frame and not executable.has_begin_frame_control:
            raise BrowserMissing(
                f"{executable.path} has no begin-frame control: only Chromium's headless shell on Linux has. Install "
                "chromium-headless-shell, or use the kind 'plain'."
            )
        flags = (*(BEGIN_FRAME_FLAGS if begin_frame else ()), *flags)
        log = ""
        for sandboxed in (True, False):
            process = ChromiumProcess(executable, flags, sandboxed=sandboxed)
            browser = cls(process, begin_frame=begin_frame)
            try:
                async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                    await browser._start()
            except (BrowserCrashed, TimeoutError):
                log = process.log_tail()
                await browser.close()
                if not any(sign in log for sign in _NO_SANDBOX_SIGNS):
                    break
            except BaseException:
                await browser.close()
                raise
            else:
                if not sandboxed:
                    _LOG.warning("Chromium runs without its own sandbox: the kernel gives an unprivileged user no namespaces.")
                return browser
        raise BrowserCrashed(
            f"{executable.path} did not start within {LAUNCH_TIMEOUT_S:.0f} s. It wrote: {log[-600:] or 'nothing'}. "
            "Run `flywheel doctor` to see what it lacks."
        )

    async def _start(self) -> None:
        await self.connection.open(read_fd=self.process.read_fd, write_fd=self.process.write_fd)
        self.connection.listen(None, "Target.attachedToTarget", self._on_attached)
        self.connection.listen(None, "Target.detachedFromTarget", self._on_detached)
        attaching = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        version, _ = await asyncio.gather(
            self.connection.send("Browser.getVersion"), self.connection.send("Target.setAutoAttach", attaching)
        )
        self.version = f"{version['product']}; flags {self.process.flags_digest}" + ("" if self.process.is_sandboxed else NO_SANDBOX)

    async def create_context(self, on_target: OnTarget, **options: Any) -> str:
        """A browser context: cookies, storage and caches of its own. `on_target` gets its pages and workers, each before it runs, and
        has to let them (`Runtime.runIfWaitingForDebugger`) or close them."""
        answer = await self.connection.send("Target.createBrowserContext", {"disposeOnDetach": True, **options})
        context_id = str(answer["browserContextId"])
        self._on_target[context_id] = on_target
        return context_id

    async def dispose_context(self, context_id: str) -> None:
        """Close its pages and forget all that it kept."""
        try:
            await self.connection.send("Target.disposeBrowserContext", {"browserContextId": context_id})
        finally:
            self._on_target.pop(context_id, None)

    def when_gone(self, session_id: str, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once when a target was closed. What is awaited of it fails then."""
        self._on_gone[session_id] = on_gone

    def _on_detached(self, event: Params) -> None:
        on_gone = self._on_gone.pop(str(event["sessionId"]), None)
        if on_gone is not None:
            self.connection.forget(str(event["sessionId"]))
            on_gone()

    def _on_attached(self, event: Params) -> None:
        info, session_id = event["targetInfo"], str(event["sessionId"])
        on_target = self._on_target.get(info.get("browserContextId", ""))
        if on_target is not None:
            on_target(info, session_id)
        elif self.has_devtools:
            self.refuse_target(info, session_id)
        else:
            self.connection.send("Runtime.runIfWaitingForDebugger", None, session_id)

    def refuse_target(self, info: Params, session_id: str) -> None:
        """A page or worker that somebody opened beside ours: nothing that it asks for is answered, and a page is closed. It has to run for
        that: its opener waits until it does."""
        self.connection.send("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}, session_id)
        self.connection.send("Runtime.runIfWaitingForDebugger", None, session_id)
        if info["type"] == "page":
            self.connection.send("Target.closeTarget", {"targetId": info["targetId"]})

    @property
    def has_devtools(self) -> bool:
        """Whether programs beside us may drive it (devtools.py)."""
        return self.process.has_devtools

    @property
    def is_alive(self) -> bool:
        return not self.connection.is_lost

    def _end(self) -> None:
        """Once its pipe is closed. One that a program may have closed gets the time to exit by itself."""
        if self.has_devtools:
            asyncio.get_running_loop().call_later(EXIT_S, self.process.kill)
        else:
            self.process.kill()

    async def was_asked_to_close(self) -> bool:
        """Whether it exited by itself, and neither crashed nor was killed."""
        for _ in range(round(EXIT_S / 0.05)):
            if not self.process.is_alive():
                break
            await asyncio.sleep(0.05)
        return self.process.has_exited()

    async def begin_frame_now(self, session_id: str, params: Params) -> Params:
        """Issue one frame. Two at a time kill the browser, so they queue here; one whose caller was cancelled is waited for."""
        async with self._frame_lock:
            if self._frame_in_flight is not None and not self._frame_in_flight.done():
                await self._end_frame_in_flight(self._frame_in_flight)
            self._framed_session_id = session_id
            self._frame_in_flight = self.connection.send("HeadlessExperimental.beginFrame", params, session_id)
            return await asyncio.shield(self._frame_in_flight)

    async def _end_frame_in_flight(self, frame: asyncio.Future[Params]) -> None:
        """Wait for another page's frame, but not for ever: a page whose scripts never end must not stop its neighbours."""
        await asyncio.wait([frame], timeout=STUCK_FRAME_S)
        if not frame.done():
            self.crash_page(self._framed_session_id)
            await asyncio.wait([frame], timeout=FRAME_TIMEOUT_S)
        if not frame.done():
            self.kill(f"A page drew a frame for more than {STUCK_FRAME_S:g} s and could not be ended.")

    def crash_page(self, session_id: str) -> None:
        """End the process that a page runs in, whatever its scripts do; `Inspector.targetCrashed` follows."""
        self.connection.send("Page.crash", None, session_id)

    async def is_well(self) -> bool:
        """Whether a new page opens and answers at once. Then neither the browser nor the machine keeps another page from answering."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._probe()
        except (TimeoutError, SandboxError):
            return False
        return True

    async def is_busy(self) -> bool:
        """Whether its pages and their workers take half a processor or more, now."""
        members = _group_members(self.process.pid)
        before_s = sum(map(_processor_s, members))
        await asyncio.sleep(BUSY_LOOK_S)
        return sum(map(_processor_s, members)) - before_s > BUSY_SHARE * BUSY_LOOK_S

    async def _probe(self) -> None:
        answers: list[asyncio.Future[Params]] = []

        def on_target(_: Params, session_id: str) -> None:
            self.connection.send("Runtime.runIfWaitingForDebugger", None, session_id)
            answers.append(self.connection.send("Runtime.evaluate", {"expression": "0"}, session_id))

        context_id = await self.create_context(on_target)
        try:
            target = {"url": "about:blank", "browserContextId": context_id, "enableBeginFrameControl": self.begin_frame}
            await self.connection.send("Target.createTarget", target)
            await asyncio.gather(*answers)
        finally:
            self._on_target.pop(context_id, None)
            self.connection.send("Target.disposeBrowserContext", {"browserContextId": context_id})

    def is_drawing(self, session_id: str) -> bool:
        """Whether a frame of this page is in flight."""
        return self._frame_in_flight is not None and not self._frame_in_flight.done() and self._framed_session_id == session_id

    async def finish_frame(self, session_id: str) -> None:
        """Before a page is closed: give the frame that it may be drawing a moment to end."""
        if self._frame_in_flight is not None and self._framed_session_id == session_id:
            await asyncio.wait([self._frame_in_flight], timeout=FRAME_TIMEOUT_S)

    def kill(self, reason: str) -> None:
        """End the browser at once; everyone who waits for it gets BrowserCrashed."""
        self.process.kill()
        self.connection.close(reason)

    def memory_mib(self) -> float:
        """Proportional memory of the browser's process group, 0 where the system does not say (only Linux does)."""
        return sum(_proportional_mib(pid) for pid in _group_members(self.process.pid))

    def end_heavy_pages(self, excess_mib: float, *, above_mib: float) -> float:
        """End the processes of pages, the heaviest first, until so much memory is given back; none that has no more than `above_mib`, and
        nobody beside them. `Inspector.targetCrashed` follows. How many MiB were given back."""
        ended_mib = 0.0
        for mib, pid in sorted(((_proportional_mib(pid), pid) for pid in _renderers(self.process.pid)), reverse=True):
            if ended_mib >= excess_mib or mib <= above_mib:
                break
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended_mib += mib
        return ended_mib

    async def close(self) -> None:
        """End the browser and remove its files; may be called twice."""
        if self.is_alive:
            self.connection.send("Browser.close")
        try:
            await self.process.close(grace_s=1.0 if self.is_alive else 0.0)
        finally:
            self.connection.close()


@lru_cache(maxsize=1)
def fonts_digest() -> str:
    """Digest of the installed fonts (names and sizes), which decide about pixels; "unknown" without fontconfig."""
    lister = shutil.which("fc-list")
    if lister is None:
        return "unknown"
    listed = subprocess.run([lister, "--format", "%{file}\n"], capture_output=True, text=True, timeout=60, check=False).stdout
    files = sorted({path for line in listed.splitlines() if (path := Path(line)).is_file()})
    return hashlib.sha256(repr([(path.name, path.stat().st_size) for path in files]).encode()).hexdigest()[:12]


def environment(browser_version: str, source_version: str, **more: Any) -> str:
    """What an episode's pixels and behaviour depend on, as one line for `Episode.environment`."""
    extra = "".join(f"; {name} {value}" for name, value in more.items())
    return f"{source_version}; {browser_version}; fonts {fonts_digest()}{extra}"


def _group_members(pgid: int) -> list[int]:
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid:
            members.append(int(folder.name))
    return members


def _renderers(pgid: int) -> list[int]:
    """The processes in which a browser's pages live."""
    found = []
    for pid in _group_members(pgid):
        with suppress(OSError):
            if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _proportional_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
