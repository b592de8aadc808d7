"""A box: a process namespace of its own in which a display, a session bus, a window manager and applications live, and the pipe to it.

The box is bubblewrap run as the unprivileged user of sandbox/browser/isolation/scratch.py: no network, no capabilities, of the host only
/usr and a few files below /etc, read-only; its home and /tmp are in memory. So nothing of it lies on the host, its display has no socket
that another program could find, and it ends as a whole, in an instant, when its first process does: on close, when we end (however we end),
and when its input ends. What runs inside is sandbox/desktop/inside; what is said to it is sandbox/desktop/local.py's business.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import psutil

from sandbox.browser.isolation.scratch import browser_user, readable_root, scratch_root
from sandbox.desktop.apps import require
from sandbox.desktop.wine import TEMPLATE_ROOT, template_root
from sandbox.terminal.bubblewrap import find_bubblewrap
from sandbox.terminal.cgroups import Cgroup
from sandbox.terminal.seccomp import filter_program
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxError, SandboxTimeout, missing_extra

HOME = "/home/user"
LIBRARY = "/opt/flywheel"
INSIDE = Path(__file__).with_name("inside")
ETC = ("fonts", "ld.so.cache", "alternatives", "libreoffice")
"""What of /etc programs need: fonts, where libraries are, which program an alternative means."""

FONT_CACHE = "/var/cache/fontconfig"
"""Without it every desktop would read every font again."""
CLOSE_LIMIT_S = 10.0

ENVIRONMENT = {
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "PATH": "/usr/bin:/bin:/usr/games",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONPATH": LIBRARY,
    "PYTHONDONTWRITEBYTECODE": "1",
    "XDG_RUNTIME_DIR": "/tmp/run",
    "XDG_DATA_DIRS": "/usr/share",
    # settings of GTK programs are the defaults and are forgotten with the program
    "GSETTINGS_BACKEND": "memory",
    # accessibility: of GTK 2, of GTK 3, of LibreOffice
    "GTK_MODULES": "gail:atk-bridge",
    "GTK_A11Y": "atspi",
    "SAL_ACCESSIBILITY_ENABLED": "1",
    "SAL_USE_VCLPLUGIN": "gtk3",
    "GTK_OVERLAY_SCROLLING": "0",
    "LIBGL_ALWAYS_SOFTWARE": "1",
    "GIO_USE_VFS": "local",
    "WINEDEBUG": "-all",
    "WINEDLLOVERRIDES": "mscoree=;mshtml=;winemenubuilder.exe=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSettings:
    """Sizes and limits of a box."""

    width_px: int = 1024
    height_px: int = 768
    memory_files_mib: int = 256
    """Of the home and of /tmp, each; both are in memory."""
    memory_mib: int = 3072
    """Of all its processes and files together; this, the number of processes and the processors' time are held by control groups, where
    this process may make some."""
    processes: int = 400
    cpus: float = 2.0
    start_s: float = 90.0
    call_s: float = 60.0


def host_programs() -> tuple[Path, ...]:
    """The Python packages of ours that are bound into a box. Raises DesktopMissing where one is not installed."""
    found = []
    for name in ("mss", "Xlib", "six"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise DesktopMissing(missing_extra(name, "desktop"))
        path = Path(spec.origin)
        found.append(path.parent if path.name == "__init__.py" else path)
    return tuple(found)


def _accounts() -> Path:
    """A folder with the account files for programs in a box; written once."""
    folder = scratch_root() / "desktop-accounts-1"
    if not folder.exists():
        aside = scratch_root() / f"aside-accounts-{os.getpid()}-{threading.get_ident()}"
        aside.mkdir(mode=0o755)
        texts = {
            "passwd": f"user:x:1000:1000:User:{HOME}:/bin/bash\n",
            "group": "user:x:1000:\n",
            "machine-id": "0123456789abcdef0123456789abcdef\n",
            "hosts": "127.0.0.1 localhost desktop\n",
        }
        for name, text in texts.items():
            (aside / name).write_text(text)
            (aside / name).chmod(0o644)
        try:
            aside.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def command_line(settings: BoxSettings, workshop: Path | None, filter_fd: int, info_fd: int, held_fd: int) -> list[str]:
    """The command that starts a box, with a filter of system calls, which reports its first process and waits until it may go on."""
    user, size = browser_user(), str(settings.memory_files_mib << 20)
    change = [] if user.is_us else [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    command = ["setpriv", *change, "--pdeathsig=KILL", "--", find_bubblewrap(), "--unshare-all", "--unshare-user", "--disable-userns"]
    command += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "desktop"]
    command += ["--seccomp", str(filter_fd), "--info-fd", str(info_fd), "--block-fd", str(held_fd)]
    command += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--dir", "/var", "--dir", "/run"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        command += ["--symlink", f"usr/{name}", f"/{name}"]
    command += ["--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", HOME, "--perms", "1777", "--dir", "/tmp/.X11-unix"]
    command += ["--perms", "0700", "--dir", "/tmp/run"]
    for name in ETC:
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    command += ["--ro-bind-try", FONT_CACHE, FONT_CACHE]
    for file in sorted(_accounts().iterdir()):
        command += ["--ro-bind", str(file), f"/etc/{file.name}"]
    for path in host_programs():
        readable = readable_root(path) if path.is_dir() else readable_root_of_file(path)
        command += ["--ro-bind", str(readable), f"{LIBRARY}/{path.name}"]
    command += ["--ro-bind", str(readable_root(INSIDE)), f"{LIBRARY}/sandbox/desktop/inside"]
    command += ["--ro-bind", str(template_root()), TEMPLATE_ROOT] if workshop is None else ["--bind", str(workshop), TEMPLATE_ROOT]
    command += ["--clearenv", *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)), "--chdir", HOME]
    command += ["/usr/bin/python3", "-m", "sandbox.desktop.inside.main", str(settings.width_px), str(settings.height_px)]
    return command


def readable_root_of_file(path: Path) -> Path:
    """A copy of one file that the boxes' user can read."""
    copy = scratch_root() / f"{path.stem}-{path.stat().st_mtime_ns}{path.suffix}"
    if not copy.exists():
        aside = copy.with_suffix(f".{os.getpid()}")
        shutil.copy2(path, aside)
        aside.chmod(0o644)
        aside.replace(copy)
    return copy


class Box:
    """A running box. Calls go to it one at a time, on a thread of its own, so that a caller that was cancelled leaves the pipe in order."""

    def __init__(self, settings: BoxSettings, workshop: Path | None = None) -> None:
        """Starts it; `ready` waits until it is up. `workshop` is a folder of the boxes' user where a Wine template is to be made.

        Raises DesktopMissing.
        """
        require()
        self.settings = settings
        self._is_closed = False
        self._said: deque[str] = deque(maxlen=20)
        self._cgroup = Cgroup(memory_mib=settings.memory_mib, processes=settings.processes, cpus=settings.cpus)
        self._info_fd, telling = os.pipe()
        held, self._releasing = os.pipe()
        filter_fd = os.memfd_create("filter")
        os.write(filter_fd, filter_program())
        os.lseek(filter_fd, 0, os.SEEK_SET)
        try:
            self._process = subprocess.Popen(
                command_line(settings, workshop, filter_fd, telling, held),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                process_group=0,
                pass_fds=(filter_fd, telling, held),
                env={},  # programs in the box can read what its process 1 was started with
            )
        except BaseException:
            os.close(self._info_fd)
            os.close(self._releasing)
            raise
        finally:
            for fd in (filter_fd, telling, held):
                os.close(fd)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._commands, self._answers, self._words = (cast(BinaryIO, pipe) for pipe in pipes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desktop")
        self._first: int | None = None
        self._entered = self._thread.submit(self._enter)
        self._listener = threading.Thread(target=self._listen, name="desktop-log", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self._process.poll() is None

    def memory_mib(self) -> float:
        """Proportional set size of all its processes."""
        total = 0
        with suppress(psutil.Error):
            root = psutil.Process(self.pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    total += process.memory_full_info().pss
        return total / 2**20

    async def ready(self) -> None:
        """Wait until it is up. Raises DesktopCrashed or SandboxTimeout."""

        def first_answer() -> tuple[dict[str, Any], bytes]:
            self._entered.result()
            return self._receive()

        await self._on_thread(first_answer, self.settings.start_s, "Starting a desktop")

    def _enter(self) -> None:
        """Learn which process is the first of the box, put it into the control group, and let it go on."""
        with os.fdopen(self._info_fd, "rb") as info:
            pid = int(json.loads(info.read() or b"{}")["child-pid"])
        self._first = os.pidfd_open(pid)
        self._cgroup.add(pid)
        os.write(self._releasing, b"1")

    async def call(self, method: str, blob: bytes = b"", *, limit_s: float | None = None, **arguments: Any) -> tuple[Any, bytes]:
        """What a command gives: its result and a blob. Raises DesktopCrashed, SandboxTimeout, SandboxError for a command that failed."""

        def exchange() -> tuple[dict[str, Any], bytes]:
            self._send({"method": method, "arguments": arguments}, blob)
            return self._receive()

        return await self._on_thread(exchange, limit_s or self.settings.call_s, f"{method!r} on a desktop")

    async def _on_thread(self, work: Any, limit_s: float, what: str) -> tuple[Any, bytes]:
        if self._is_closed:
            raise DesktopCrashed("The desktop is closed; open another one.")
        try:
            async with asyncio.timeout(limit_s):
                header, blob = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            self.kill()
            raise SandboxTimeout(f"{what} took more than {limit_s:g} s; the desktop was ended.") from error
        except (OSError, EOFError, KeyError, struct.error) as error:
            self.kill()
            raise DesktopCrashed(f"{what} failed: the desktop ended. It said last: {self._last_words()}") from error
        if "error" in header:
            raise SandboxError(f"{what} failed: {header['error']}")
        return header["result"], blob

    def _send(self, header: dict[str, Any], blob: bytes) -> None:
        encoded = json.dumps(header).encode()
        self._commands.write(struct.pack(">II", len(encoded), len(blob)) + encoded + blob)
        self._commands.flush()

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        head = self._answers.read(8)
        if len(head) < 8:
            raise EOFError
        header_length, blob_length = struct.unpack(">II", head)
        return json.loads(self._answers.read(header_length)), self._answers.read(blob_length)

    def _listen(self) -> None:
        for line in self._words:
            self._said.append(line.decode("utf-8", "replace").strip())

    def _last_words(self) -> str:
        self._listener.join(timeout=1.0)
        return "; ".join(self._said) or "nothing"

    def kill(self) -> None:
        """End every process of the box, at once: with its first process the kernel ends all, and bubblewrap ends by itself."""
        with suppress(ProcessLookupError):
            if self._first is not None:
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            else:
                self._process.kill()

    def close(self) -> None:
        """Kill it and wait until every process of it is gone: some milliseconds. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        # bubblewrap ties its child's life to its own only at the end of its work: never kill it before its first process is known.
        wait([self._entered], timeout=self.settings.start_s)
        self.kill()
        with suppress(OSError):  # what was not written yet goes nowhere
            self._commands.close()
        if self._first is not None:
            poll = select.poll()  # readable once the namespace is empty
            poll.register(self._first, select.POLLIN)
            poll.poll(CLOSE_LIMIT_S * 1000)
        try:
            self._process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._thread.shutdown(wait=True)
        self._answers.close()
        self._words.close()
        os.close(self._releasing)
        if self._first is not None:
            os.close(self._first)
        self._cgroup.remove()
