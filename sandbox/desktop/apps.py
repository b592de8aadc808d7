"""The applications a desktop can start, as data: the command, the Debian package it is from, how its window is recognised.

Those of `is_full` are large (LibreOffice and Wine, a gigabyte installed); the others are small together. What a desktop itself needs,
whatever runs in it, is SYSTEM_PROGRAMS.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from warehouse.core.errors import DesktopMissing, TaskError
from warehouse.core.identity import content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """`command` is followed by the paths of files to open. `window_class` is what Window.window_class says of its windows."""

    name: str
    command: tuple[str, ...]
    package: str
    window_class: str
    is_full: bool = False
    needs_wine: bool = False
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By suffix: what else the command is given where all the files that it opens have it."""
    file: str = ""
    """What has to be there beside the command, as a pattern of paths; for commands that belong to another package."""

    def command_for(self, files: Sequence[PurePosixPath]) -> tuple[str, ...]:
        """The command that opens these files, without their paths."""
        suffixes = {path.suffix.lower() for path in files}
        return (*self.command, *(self.options.get(suffixes.pop(), ()) if len(suffixes) == 1 else ()))


_WINE = "wine wine64"

APPS: Mapping[str, App] = {
    app.name: app
    for app in (
        App(name="editor", command=("mousepad", "--disable-server"), package="mousepad", window_class="Mousepad"),
        App(
            name="files",
            command=("pcmanfm",),
            package="pcmanfm libatk-adaptor libgail-common",
            window_class="Pcmanfm",
            file="/usr/lib/*/gtk-2.0/modules/libatk-bridge.so",
        ),
        App(name="terminal", command=("lxterminal", "--no-remote"), package="lxterminal", window_class="Lxterminal"),
        App(
            name="xterm",
            command=("xterm", "-fa", "DejaVu Sans Mono", "-fs", "11", "-geometry", "80x24", "-e", "bash"),
            package="xterm",
            window_class="XTerm",
        ),
        App(name="calculator", command=("galculator",), package="galculator", window_class="Galculator"),
        App(
            name="form",
            command=("/usr/bin/python3", "-m", "sandbox.desktop.inside.form"),
            package="gir1.2-gtk-3.0",
            window_class="Form",
            file="/usr/lib/*/girepository-1.0/Gtk-3.0.typelib",
        ),
        App(name="mines", command=("/usr/games/gnome-mines",), package="gnome-mines", window_class="Gnome-mines"),
        App(name="2048", command=("/usr/games/gnome-2048",), package="gnome-2048", window_class="Gnome-2048"),
        App(
            name="calc",
            command=("soffice", "--calc", "--norestore", "--nologo"),
            # The filter opens a CSV file without asking how to read it: commas, quotes, UTF-8. A workbook it cannot read at all.
            options={".csv": ("--infilter=Text - txt - csv (StarCalc):44,34,76",)},
            package="libreoffice-calc libreoffice-gtk3",
            window_class="libreoffice-calc",
            is_full=True,
        ),
        App(name="notepad", command=("wine", "notepad"), package=_WINE, window_class="notepad.exe", is_full=True, needs_wine=True),
        App(name="winemine", command=("wine", "winemine"), package=_WINE, window_class="winemine.exe", is_full=True, needs_wine=True),
    )
}

SYSTEM_PROGRAMS: Mapping[str, str] = {
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "dbus-daemon": "dbus",
    "/usr/libexec/at-spi-bus-launcher": "at-spi2-core",
    "/usr/lib/python3/dist-packages/gi": "python3-gi",
    "/usr/lib/*/girepository-1.0/Atspi-2.0.typelib": "gir1.2-atspi-2.0",
    "/usr/share/fonts/truetype/dejavu": "fonts-dejavu-core",
    "/usr/lib/*/libxcb-randr.so.0": "libxcb-randr0",
    "/usr/lib/*/libxcb-shm.so.0": "libxcb-shm0",
    "/usr/lib/*/libxcb-xfixes.so.0": "libxcb-xfixes0",
}
"""Programs and files that a desktop needs, and the Debian package each is from."""


def find_app(name: str) -> App:
    """Raises TaskError for an application that is not in the list."""
    try:
        return APPS[name]
    except KeyError as error:
        raise TaskError(f"There is no application {name!r}; a desktop knows {', '.join(APPS)} (sandbox/desktop/apps.py).") from error


def missing_packages(apps: Iterable[str] = ()) -> list[str]:
    """Debian packages that a desktop with these applications needs and this machine lacks; empty where all is there."""
    found = [find_app(name) for name in apps]
    wanted = [*SYSTEM_PROGRAMS.items(), *((program, app.package) for app in found for program in (app.command[0], app.file) if program)]
    lacking = [package for program, package in wanted if not _is_there(program)]
    return list(dict.fromkeys(word for package in lacking for word in package.split()))


def require(apps: Iterable[str] = ()) -> None:
    """Raises DesktopMissing with the line that installs what is missing."""
    if packages := missing_packages(apps):
        raise DesktopMissing(
            f"A desktop needs Debian packages that are not installed: {', '.join(packages)}. "
            f"As root: apt-get install --no-install-recommends {' '.join(packages)}"
        )


@lru_cache(maxsize=1)
def packages_id() -> str:
    """One name for the versions of everything that decides how a desktop looks and behaves; "unknown" where dpkg does not know them."""
    drawing = ("libgtk-3-0", "libgtk2.0-0", "libcairo2", "libpango-1.0-0", "libfreetype6", "libvte-2.91-0", "adwaita-icon-theme")
    names = {*drawing, *SYSTEM_PROGRAMS.values(), *(word for app in APPS.values() for word in app.package.split())}
    try:
        command = ["dpkg-query", "--show", "--showformat=${Package} ${Version}\n", *sorted(names)]
        output = subprocess.run(command, capture_output=True, text=True, timeout=60.0).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return content_id("packages", sorted(output.splitlines()))


def _is_there(program: str) -> bool:
    return any(Path("/").glob(program[1:])) if program.startswith("/") else shutil.which(program) is not None
