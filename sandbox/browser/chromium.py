"""Chromium as a process: finding an executable, launching it in a process group of its own, making sure that it dies with us.

What is said to it over the pipe is not known here (sandbox/browser/cdp/browser.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandbox.browser.isolation import namespace
from sandbox.browser.isolation.scratch import Profile, browser_user, readable_root
from sandbox.tasks.page_task import WebSettings
from warehouse.core.errors import BrowserMissing, ConfigError
from warehouse.core.identity import content_id

EXECUTABLE_VARIABLE = "FLYWHEEL_CHROMIUM"
NO_SANDBOX_VARIABLE = "FLYWHEEL_OPEN_WITHOUT_SANDBOX"

_HEADLESS_SHELLS = ("/usr/lib/chromium/chromium-headless-shell", "/usr/lib64/chromium-browser/headless_shell")
_HEADLESS_SHELL_NAMES = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
_FULL_BROWSERS = (
    "/usr/lib/chromium/chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_FULL_BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PLAYWRIGHT_SHELLS = "chromium_headless_shell-*/*/*headless?shell"
_PLAYWRIGHT_BROWSERS = ("chromium-*/*/chrome", "chromium-*/*/*.app/Contents/MacOS/*")

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--mute-audio",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-smooth-scrolling",
    "--disable-search-engine-choice-screen",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AcceptCHFrame,BackForwardCache,Prerender2,PaintHolding,"
    # a frame that waits for a scroll which only the next frame brings is never drawn: as when a button is held on a scrollbar
    "WaitForLateScrollEvents,"
    # after an input a page's tasks wait for the next frame; where that frame waits for page time, and page time for what a click fetched,
    # nothing moves until the limit of the step
    "DeferRendererTasksAfterInput",
    "--password-store=basic",
    "--use-mock-keychain",
    # the same pixels on every machine with the same fonts
    "--lang=en-US",
    "--force-device-scale-factor=1",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--disable-partial-raster",
    # WebGL, drawn by the processor: pages that do not use it cost no more and look the same
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    # all pages and frames of a session in one process, so that one clock rules them: process clocks cannot be set to one another. Sessions
    # are browser contexts, which never share a process, whatever the limit
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
    # no name resolves, no address is reached but through a session's proxy, and nothing by UDP
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)

DEVTOOLS_FLAG = "--remote-debugging-port=0"
"""Lets programs beside us drive the browser, too (sandbox/browser/cdp/devtools.py): it listens on its own loopback and writes the port into
a file."""
_DEVTOOLS_FILE = "DevToolsActivePort"

BEGIN_FRAME_FLAGS = (
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",
    "--disable-new-content-rendering-timeout",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-checker-imaging",
    "--disable-image-animation-resync",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """A Chromium on this machine. Only the headless shell on Linux has begin-frame control."""

    path: Path
    is_headless_shell: bool

    @property
    def has_begin_frame_control(self) -> bool:
        return self.is_headless_shell and sys.platform == "linux"


def find_chromium(*, headless_shell: bool = True) -> Executable:
    """The executable named by FLYWHEEL_CHROMIUM; else a headless shell (or, if not `headless_shell`, a full Chromium first): the
    system's, then one that Playwright downloaded. Raises BrowserMissing."""
    named = os.environ.get(EXECUTABLE_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise BrowserMissing(
                f"{EXECUTABLE_VARIABLE} is {named!r}, which is not an executable file. Unset it or name a Chromium headless shell."
            )
        return _executable(Path(named))
    shells = _candidates(_HEADLESS_SHELLS, _HEADLESS_SHELL_NAMES, (_PLAYWRIGHT_SHELLS,))
    browsers = _candidates(_FULL_BROWSERS, _FULL_BROWSER_NAMES, _PLAYWRIGHT_BROWSERS)
    found = [*shells, *browsers] if headless_shell else [*browsers, *shells]
    if not found:
        raise BrowserMissing(
            "No Chromium found: neither a system one nor Playwright's. On Debian or Ubuntu as root: apt-get install "
            "chromium-headless-shell. Anywhere: playwright install chromium-headless-shell. "
            f"Or name one in {EXECUTABLE_VARIABLE}."
        )
    return _executable(found[0])


def _executable(path: Path) -> Executable:
    return Executable(path=path, is_headless_shell="headless" in path.name)


def _candidates(paths: tuple[str, ...], names: tuple[str, ...], patterns: tuple[str, ...]) -> list[Path]:
    found = [Path(path) for path in paths] + [Path(path) for name in names if (path := shutil.which(name))]
    default_cache = "Library/Caches/ms-playwright" if sys.platform == "darwin" else ".cache/ms-playwright"
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / default_cache)
    for pattern in patterns:
        found += sorted(cache.glob(pattern), reverse=True)
    return [path for path in found if path.is_file() and os.access(path, os.X_OK)]


class ChromiumProcess:
    """A running Chromium with its debugging pipe: `read_fd` and `write_fd` are ours to read and write.

    It leads a process group of its own, runs as the unprivileged user, and ends when we do, however we end: the kernel kills it with
    the thread that launched it (Linux), and it exits by itself when its pipe closes.
    """

    def __init__(self, executable: Executable, flags: tuple[str, ...], *, sandboxed: bool = True) -> None:
        """Blocks for some milliseconds. Raises ConfigError or OSError where the program cannot be started."""
        self._profile = Profile()
        self._is_reaped = False
        self.is_sandboxed = sandboxed
        self.log_path = self._profile.path / "chromium.log"
        self.proxy_host = f"{secrets.token_hex(16)}.invalid"
        """The one name that resolves in this browser, to its loopback: where the proxies of its sessions listen. No page knows it."""
        self.has_devtools = DEVTOOLS_FLAG in flags
        self.flags_digest = content_id("flags", [*FLAGS, *flags]).partition("-")[2][:12]
        sandbox_flags = () if sandboxed else ("--no-sandbox",)
        program = _readable(executable.path)
        own_flags = (resolver_flag(self.proxy_host), f"--user-data-dir={self._profile.path}")
        command = [str(program), *FLAGS, *flags, *sandbox_flags, *own_flags, "about:blank"]
        child_read, self.write_fd = os.pipe()
        self.read_fd, child_write = os.pipe()
        # The child finds its ends at 3 and 4; copies above keep the one from overwriting the other.
        high_read, high_write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (child_read, child_write))
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        moves = ((null, 0), (null, 1), (log, 2), (high_read, 3), (high_write, 4))
        try:
            apart = namespace.wrapper_with_loopback() if self.has_devtools else namespace.wrapper()
            argv = [*apart, *_wrapper(), *command]
            self.pid = os.posix_spawn(
                argv[0], argv, self._environment(), setpgroup=0, file_actions=[(os.POSIX_SPAWN_DUP2, source, to) for source, to in moves]
            )
        except BaseException:
            os.close(self.read_fd)
            os.close(self.write_fd)
            self._profile.remove()
            raise
        finally:
            for fd in (child_read, child_write, high_read, high_write, log, null):
                os.close(fd)

    def _environment(self) -> dict[str, str]:
        """Little of ours: no secret reaches a page's process, and the time zone is the same everywhere."""
        home = str(self._profile.path)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH") if name in os.environ}
        return kept | {
            "HOME": home,
            "TMPDIR": home,
            "XDG_CONFIG_HOME": home,
            "XDG_CACHE_HOME": home,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",
        }

    @property
    def files(self) -> Path:
        """A folder of the browser's user that lasts as long as the browser."""
        return self._profile.path

    def devtools_port(self) -> int:
        """Where the browser listens, on its own loopback. Raises OSError or ValueError where it has not said so, or was not asked to."""
        return int((self._profile.path / _DEVTOOLS_FILE).read_text().splitlines()[0])

    def log_tail(self) -> str:
        """The last lines Chromium wrote, for an error message."""
        try:
            return self.log_path.read_text(errors="replace")[-2000:].strip()
        except OSError:
            return ""

    def is_alive(self) -> bool:
        """Whether the browser's main process still runs. Leaves a dead one unreaped, so that its group's id stays ours until close."""
        if self._is_reaped:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def has_exited(self) -> bool:
        """Whether the browser's main process ended by itself, without an error. False once it was closed."""
        if self._is_reaped:
            return False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)

    def kill(self) -> None:
        """Kill the whole group, at once: helpers outlive a main process that crashed."""
        if not self._is_reaped:
            with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted when only a zombie is left
                os.killpg(self.pid, signal.SIGKILL)

    async def close(self, grace_s: float = 2.0) -> None:
        """Wait for an exit that was asked for, kill what is left, remove the profile. May be called twice."""
        deadline = time.monotonic() + grace_s
        while self.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.kill()
        while self.is_alive():
            await asyncio.sleep(0.005)
        if not self._is_reaped:
            os.waitpid(self.pid, 0)
            self._is_reaped = True
        self._profile.remove()


def check_sandbox(web: WebSettings, *, is_sandboxed: bool) -> None:
    """Raises ConfigError where a web session would show whatever the open network holds in a Chromium without a sandbox of its own."""
    if web.network == "open" and not is_sandboxed and os.environ.get(NO_SANDBOX_VARIABLE) != "1":
        raise ConfigError(
            "This task's network is 'open' and Chromium runs without its own sandbox here, so a page that breaks its renderer has the "
            "rights of the browser's user. Let unprivileged users make namespaces (kernel.unprivileged_userns_clone=1, or the container's "
            f"seccomp profile) and use the kind beginframe or plain; or set {NO_SANDBOX_VARIABLE}=1 to run such tasks all the same."
        )


def resolver_flag(proxy_host: str) -> str:
    """One name resolves, to the browser's loopback, and no other. Comes after FLAGS, whose rule it replaces."""
    return f"--host-resolver-rules=MAP {proxy_host} 127.0.0.1, MAP * ~NOTFOUND"


def _wrapper() -> list[str]:
    """Changes the user and asks to be killed with the parent, in this order (a change of user clears the request), then becomes the
    browser. Nothing of Python runs between fork and exec, so a large, threaded parent is safe."""
    user = browser_user()
    if sys.platform != "linux":
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if user.is_us:
            return []
        raise ConfigError(
            "We are root and there is no setpriv to run Chromium as an unprivileged user. Install util-linux, or run as another user."
        )
    change = [] if user.is_us else [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    return [setpriv, *change, "--pdeathsig=KILL", "--"]


def _readable(program: Path) -> Path:
    """The program, or a copy of its folder that the browser's user can execute (Playwright's browsers under root's home)."""
    return readable_root(program.resolve().parent) / program.resolve().name
