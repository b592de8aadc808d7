"""Windows programs: a Wine prefix made once for this machine, and how each desktop gets one of its own from it.

A prefix is most of a gigabyte, so a desktop's own is links to the template's files, but for the registry, which is copied: 2 MB. The
template is bound read-only: a program cannot change what another desktop will see.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from sandbox.browser.isolation.scratch import browser_user, scratch_root
from warehouse.core.errors import SandboxError
from warehouse.core.identity import content_id

TEMPLATE_ROOT = "/opt/wine"
"""Where templates lie in a box."""
WINE = Path("/usr/lib/wine")
MAKING_LIMIT_S = 300.0

MAKE = 'set -e; WINEPREFIX="$1" wineboot --init >/dev/null; WINEPREFIX="$1" wineserver --wait; rm -f "$1/wineserver"'
FURNISH = 'set -e; cp -rs "$1" "$HOME/.wine"; rm "$HOME/.wine/"*.reg; cp "$1/"*.reg "$HOME/.wine/"'


def template_root() -> Path:
    """The folder of templates, bound into every box whether there is a template yet or not."""
    folder = scratch_root() / "wine"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def template() -> Path:
    """Where the template of the installed Wine lies, or would."""
    files = sorted(path for path in WINE.rglob("*") if path.is_file())
    return template_root() / content_id("wine", [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files])


async def make_template(run: Callable[[Path, list[str]], Awaitable[tuple[int, str]]]) -> Path:
    """The template, made if it is not there: some seconds. `run(folder, command)` runs a command in a box of its own with the folder bound
    at TEMPLATE_ROOT, writable, and gives exit code and what it printed. Raises SandboxError."""
    made = template()
    if made.exists():
        return made
    aside = Path(tempfile.mkdtemp(prefix="aside-", dir=scratch_root()))
    try:
        user = browser_user()
        if not user.is_us:
            os.chown(aside, user.uid, user.gid)
        code, printed = await run(aside, ["bash", "-c", MAKE, "bash", f"{TEMPLATE_ROOT}/prefix"])
        if code != 0:
            raise SandboxError(f"Wine could not make a prefix (exit code {code}): {printed[-500:]}")
        for path in [aside, *aside.rglob("*")]:
            os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            aside.rename(made)
        except OSError:  # another process was first
            if not made.exists():
                raise
        return made
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def furnish_command() -> list[str]:
    """The command that lays a desktop's own prefix out in its home."""
    return ["bash", "-c", FURNISH, "bash", f"{TEMPLATE_ROOT}/{template().name}/prefix"]


def windows_path(path: PurePosixPath) -> str:
    """A file of the box as Windows programs name it."""
    return "Z:" + str(path).replace("/", "\\")
