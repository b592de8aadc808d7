"""`flywheel doctor`: looks at every part that this machine must bring, really uses it where it can, and says how to fix what is missing.

Each check is a function that returns a Check and leaves nothing behind but the home folder. What the parts are for is documented where they
live; here is only whether they work.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.orchestration.shipped import shipped
from sandbox.browser.cdp.browser import Browser
from sandbox.browser.chromium import EXECUTABLE_VARIABLE, Executable, find_chromium
from sandbox.desktop.apps import APPS, missing_packages
from sandbox.tasks.registry import SOURCES
from sandbox.terminal.bubblewrap import OPEN_FILES_NEEDED, JailLimits
from sandbox.terminal.jail import Jail
from warehouse.core.checks import Check, Status
from warehouse.core.errors import ConfigError, FlywheelError, MachineLimit, SandboxError, StoreUnreachable
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.core.store import STORE_VARIABLE, Store

LOCK = "constraints.txt"
LOCKED_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
"""Of which the lock is, and everything is tested with; and the newest with which a home was read."""
PORTS = {"Dagster": 3000}
"""What `flywheel ui` wants; the Prefect server takes another port where its own is in use."""
GIB = 1024**3
DISK_NEEDED_GIB, DISK_WANTED_GIB = 1.0, 5.0
"""A quickstart of three iterations writes some hundred MiB, most of it checkpoints and screenshots."""
MEMORY_NEEDED_GIB, MEMORY_WANTED_GIB = 2.0, 5.0
"""Two trainers, two browsers and both servers hold about 4 GiB at their peak."""
BROWSER_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 15.0

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_PAGE = "data:text/html,<body style='background:teal'>flywheel</body>"
_PLAIN_LOSSES = (
    "lost without begin-frame control: frames on demand (a step takes about 45 ms, not 10), and virtual time, so that tasks which move "
    "are not reproducible"
)


def check_python() -> Check:
    version, locked = platform.python_version(), ".".join(map(str, LOCKED_PYTHON))
    fix = f"The lock holds for {locked}: make setup PYTHON=python{locked}"
    if sys.version_info[:2] == LOCKED_PYTHON:
        return Check(name="python", status="ok", found=f"{version} at {sys.executable}")
    if LOCKED_PYTHON < sys.version_info[:2] <= NEWEST_PYTHON:
        return Check(name="python", status="warn", found=f"{version}: homes are read; training was not tried with it", fix=fix)
    return Check(name="python", status="fail", found=version, fix=fix)


def check_packages(lock: Path | None = None) -> Check:
    """Installed versions against the lock's. A pinned package that is not installed belongs to an extra, unless we ask for it ourselves."""
    fix = "make setup installs what the lock says"
    try:
        pins = read_lock(lock or shipped(LOCK))
    except (OSError, ConfigError) as error:
        return Check(name="packages", status="warn", found=f"no lock to compare with ({error})", fix="run from a checkout of the project")
    installed = {_normal(found.name): found.version.partition("+")[0] for found in metadata.distributions()}
    missing = sorted(name for name in _required() if name not in installed)
    other = sorted(f"{name} {installed[name]}, not {pin}" for name, pin in pins.items() if installed.get(name, pin) != pin)
    if missing:
        return Check(name="packages", status="fail", found=f"not installed: {_some(missing)}", fix=fix)
    if other:
        return Check(name="packages", status="warn", found=f"not as locked: {_some(other)}", fix=fix)
    present = sum(name in installed for name in pins)
    return Check(name="packages", status="ok", found=f"{present} as locked; {len(pins) - present} of extras that are not installed")


def read_lock(lock: Path) -> dict[str, str]:
    """Pinned version by normalised package name."""
    lines = (line.strip() for line in lock.read_text(encoding="utf-8").splitlines())
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {_normal(name): version for name, _, version in pins}


def _required() -> list[str]:
    """The project itself and what it asks for without extras."""
    try:
        asked = metadata.requires("flywheel") or []
    except metadata.PackageNotFoundError:
        asked = []
    return ["flywheel", *(_normal(re.split(r"[^\w.-]", text)[0]) for text in asked if "extra ==" not in text)]


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _some(items: list[str], limit: int = 5) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")


def check_open_files() -> Check:
    """Browsers and terminals fail in their own words where the limit is too low, so it is said first."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    num = math.inf if hard == resource.RLIM_INFINITY else hard
    found = f"a process may open {'any number' if num == math.inf else f'{hard:,}'} of them at most"
    fix = "Raise the limit in the shell that starts Flywheel: ulimit -n 4096; in a container: docker run --ulimit nofile=4096"
    return _graded("open files", num, OPEN_FILES_NEEDED, JailLimits().open_files, found, fix)


def check_browser(executable: Executable | None = None) -> Check:
    """Starts the browser that sessions would use, or the one given, and takes one frame of a page."""
    install = "As root on Debian: apt-get install chromium-headless-shell. Anywhere: .venv/bin/playwright install chromium-headless-shell"
    try:
        executable = executable or find_chromium()
        version, num_bytes, is_sandboxed = asyncio.run(_take_frame(executable))
    except (FlywheelError, OSError, TimeoutError) as error:
        fix = f"{install}. Or name a working one in {EXECUTABLE_VARIABLE}."
        return Check(name="browser", status="fail", found=f"{type(error).__name__}: {error}", fix=fix)
    found = f"{version} at {executable.path}, one frame of {num_bytes} bytes"
    if not executable.has_begin_frame_control:
        fix = install if sys.platform == "linux" else "Nothing to fix here: only Linux has it. The plain session serves."
        return Check(name="browser", status="warn", found=f"{found}; {_PLAIN_LOSSES}", fix=fix)
    if not is_sandboxed:
        fix = "Allow unprivileged user namespaces (kernel.unprivileged_userns_clone=1, or the container's seccomp profile)"
        return Check(name="browser", status="warn", found=f"{found}; begin-frame control works, Chromium's own sandbox does not", fix=fix)
    return Check(name="browser", status="ok", found=f"{found}; begin-frame control and Chromium's own sandbox work")


async def _take_frame(executable: Executable) -> tuple[str, int, bool]:
    """Product version, size of a screenshot in bytes, whether Chromium runs in its own sandbox."""
    begin_frame = executable.has_begin_frame_control
    async with asyncio.timeout(BROWSER_TIMEOUT_S):
        browser = await Browser.launch(begin_frame=begin_frame, executable=executable)
        try:
            send = browser.connection.send
            control = {"enableBeginFrameControl": True} if begin_frame else {}
            target = await send("Target.createTarget", {"url": _PAGE, **control})
            attached = await send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
            session_id = str(attached["sessionId"])
            picture = {"format": "png"}
            data = "" if begin_frame else (await send("Page.captureScreenshot", picture, session_id))["data"]
            while not data:  # the first frames of a page that is still loading carry no picture
                data = (await browser.begin_frame_now(session_id, {"screenshot": picture})).get("screenshotData", "")
            is_sandboxed = "--no-sandbox" not in psutil.Process(browser.process.pid).cmdline()
            return browser.version, len(base64.b64decode(data)), is_sandboxed
        finally:
            await browser.close()


def check_terminal() -> Check:
    """Starts the jail of a terminal session, and says what holds its limits."""
    if sys.platform != "linux":
        return Check(name="terminal", status="warn", found="only Linux has it", fix="Terminal sessions need Linux; the rest runs")
    try:
        held_by = asyncio.run(_jail_something())
    except (SandboxError, MachineLimit) as error:
        return Check(name="terminal", status="warn", found="no jail can be made", fix=str(error))
    return Check(name="terminal", status="ok", found=", ".join(f"{what} held by {by}" for what, by in held_by.items()))


async def _jail_something() -> dict[str, str]:
    jail = await Jail.start(JailLimits())
    try:
        return dict(jail.held_by)
    finally:
        await jail.close()


def check_desktop() -> Check:
    """Looks for the programs of a desktop and of its small applications; the large ones (LibreOffice, Wine) may be missing."""
    if sys.platform != "linux":
        return Check(name="desktop", status="warn", found="only Linux has it", fix="Desktop sessions need Linux; the rest runs")
    if lacking := missing_packages(app.name for app in APPS.values() if not app.is_full):
        fix = f"For desktop sessions: apt-get install --no-install-recommends {' '.join(lacking)}"
        return Check(name="desktop", status="warn", found=f"{len(lacking)} packages are not installed", fix=fix)
    large = [app.name for app in APPS.values() if app.is_full and not missing_packages([app.name])]
    also = f"and {', '.join(large)}" if large else "not the large ones, LibreOffice and Wine, which few tasks want (docs/desktop.md)"
    return Check(name="desktop", status="ok", found=f"the small applications are there, {also}")


def check_gpu() -> Check:
    """Asks the driver, not torch: importing torch takes seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(name="gpu", status="ok", found=f"none; training runs on {os.cpu_count()} CPU cores, which quickstart is made for")
    ran = _run([program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    if ran.returncode != 0 or not ran.stdout.strip():
        found = f"{program} failed: {_last_line(ran.stderr or ran.stdout)}"
        return Check(name="gpu", status="warn", found=found, fix="Repair the NVIDIA driver; until then training runs on the CPU")
    return Check(name="gpu", status="ok", found="; ".join(ran.stdout.strip().splitlines()))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Never raises: what cannot be run at all ends like a program that fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, returncode=1, stdout="", stderr=str(error))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def check_task_sources() -> Iterator[Check]:
    """What the sources of tasks say themselves, and which of them cannot be used."""
    fix = f"Take it out of {SOURCES.variable}, or fix or uninstall its package"
    try:
        names = list(SOURCES)
    except ConfigError as error:
        yield Check(name="task sources", status="fail", found=str(error), fix=fix)
        return
    for name in names:
        try:
            check = SOURCES[name].check
            found = None if check is None else check()
        except Exception as error:  # it may be anybody's code
            yield Check(name=f"tasks: {name}", status="warn", found=f"{type(error).__name__}: {error}", fix=fix)
        else:
            yield from () if found is None else (found,)


def check_home(home: Home) -> Check:
    """Writes a file and renames it, as every commit does; leaves no folder that was not there."""
    name, fix = "home", f"Name a folder that you may write to in {HOME_VARIABLE}"
    is_new = not home.root.exists()
    try:
        home.make()
        with tempfile.TemporaryDirectory(dir=home.root, prefix=".doctor-") as scratch:
            probe = Path(scratch) / "probe"
            probe.write_bytes(b"flywheel")
            probe.rename(probe.with_suffix(".done"))
        if is_new:
            home.root.rmdir()
    except (OSError, ConfigError) as error:
        return Check(name=name, status="fail", found=f"{home.root}: {getattr(error, 'strerror', None) or error}", fix=fix)
    return Check(name=name, status="ok", found=f"{home.root} is writable")


def check_store(store: Store) -> Check:
    """Puts an object twice: the second time is to be refused, which is what keeps two hosts from committing the same version."""
    try:
        store.check_creates()
    except (ConfigError, StoreUnreachable) as error:
        return Check(name="store", status="fail", found=str(error), fix=f"Without {STORE_VARIABLE} everything lies in the home")
    found = (
        f"{store.url} has tables and checkpoints, conditional puts work; databases of Dagster, Prefect and annotation stay on this machine"
    )
    return Check(name="store", status="ok", found=found)


def check_disk(home: Home, *, needed_gib: float = DISK_NEEDED_GIB, wanted_gib: float = DISK_WANTED_GIB) -> Check:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / GIB
    found = f"{free_gib:.1f} GiB free under {folder}"
    fix = f"Free some space, or set {HOME_VARIABLE} to a folder on another disk; {wanted_gib:g} GiB are comfortable"
    return _graded("disk", free_gib, needed_gib, wanted_gib, found, fix)


def check_memory(*, needed_gib: float = MEMORY_NEEDED_GIB, wanted_gib: float = MEMORY_WANTED_GIB) -> Check:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available"
    fix = "Close other programs, or run fewer stages and sessions at once: --set max_parallel=1 --set sandbox.num_sessions=8"
    return _graded("memory", memory.available / GIB, needed_gib, wanted_gib, found, fix)


def _graded(name: str, amount: float, needed: float, wanted: float, found: str, fix: str) -> Check:
    if amount >= wanted:
        return Check(name=name, status="ok", found=found)
    return Check(name=name, status="fail" if amount < needed else "warn", found=found, fix=fix)


def check_ports(ports: dict[str, int]) -> Check:
    """Only `flywheel ui` wants these very ports; a run takes whichever is free."""
    taken = [f"{port} ({user})" for user, port in ports.items() if not _is_free(port)]
    if not taken:
        return Check(name="ports", status="ok", found="free: " + ", ".join(f"{port} ({user})" for user, port in ports.items()))
    fix = "Fine if it is `flywheel ui` itself; else end the program that has it, or take another port: flywheel ui --port 3001"
    return Check(name="ports", status="warn", found=f"in use: {', '.join(taken)}", fix=fix)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def checks(home: Home) -> list[Check]:
    """Every check, in the order of the table; a few seconds, most of it the browser's."""
    return [
        check_python(),
        check_packages(),
        check_open_files(),
        check_browser(),
        check_terminal(),
        *check_task_sources(),
        check_desktop(),
        check_home(home),
        *((check_store(home.store),) if home.store is not None else ()),
        check_disk(home),
        check_memory(),
        check_ports(PORTS),
        check_gpu(),
    ]


def run_doctor(console: Console, home: Home) -> int:
    """Print what was found and how to fix it. Returns the exit status: 1 if a check failed, else 0."""
    found = checks(home)
    table = Table("part", "", "found", title="flywheel doctor", title_justify="left", show_lines=False)
    for check in found:
        fix = f"\n[dim]→ {escape(check.fix)}[/]" if check.fix else ""
        table.add_row(check.name, f"[{_STYLES[check.status]}]{check.status}[/]", escape(check.found) + fix)
    console.print(table)
    failures = [check.name for check in found if check.status == "fail"]
    warnings = [check.name for check in found if check.status == "warn"]
    if failures:
        console.print(f"[bold red]Flywheel cannot run here yet[/]: fix {', '.join(failures)} first.")
        return 1
    console.print("Flywheel can run here." + (f" Worth a look: {', '.join(warnings)}." if warnings else ""))
    return 0
