"""Applications from the package registry, each in a folder of its own in the cache: pinned to the last dependency, compiled, for the
system's Python, which is what programs in a jail run under. Nothing of them is imported by us.

    python -m sandbox.tasks.web_apps.install        # all of them now, else each when a task first needs it
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from sandbox.browser.isolation.scratch import readable_root
from sandbox.cache import cache_folder
from sandbox.terminal.bubblewrap import PYTHON
from warehouse.core.errors import WebAppMissing
from warehouse.core.identity import content_id

INSTALL_TIMEOUT_S = 300.0


def apps_folder() -> Path:
    return cache_folder() / "web-apps"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` where it is not there yet: aside, then put in its place. Others who want it wait meanwhile."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        aside = Path(tempfile.mkdtemp(prefix=".aside-", dir=folder.parent))
        try:
            make(aside)
            aside.chmod(0o755)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


@cache
def system_python() -> str:
    """Its version, as "3.11". Raises WebAppMissing."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([PYTHON, "-ISc", code], capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        fix = "On Debian: apt-get install python3."
        raise WebAppMissing(f"{PYTHON} does not run ({error}): web applications run under it. {fix}") from error


def installed_at(name: str, pins: Sequence[str]) -> Path:
    """Where an application of these pins lies once it is installed."""
    return apps_folder() / f"{name}-{content_id('pins', [system_python(), list(pins)])}"


def is_installed(name: str, pins: Sequence[str]) -> bool:
    """Raises WebAppMissing where the system has no Python."""
    return installed_at(name, pins).is_dir()


def install(name: str, pins: Sequence[str]) -> Path:
    """The folder of an application, readable for who runs it; installed where it is not there yet. Raises WebAppMissing."""
    return readable_root(make_once(installed_at(name, pins), lambda folder: _fill(name, pins, folder)))


def _fill(name: str, pins: Sequence[str], folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--python-version",
        system_python(),
        "--implementation",
        "cp",
        "--target",
        str(folder),
        *pins,
    ]
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise WebAppMissing(f"Installing {name} took longer than {INSTALL_TIMEOUT_S:g} s. Is the package registry reachable?") from error
    if done.returncode != 0:
        raise WebAppMissing(
            f"{name} could not be installed ({' '.join(pins[:1])} and its dependencies): {done.stderr.strip()[-400:]!r}. pip must be in "
            f"{sys.executable} and reach a package registry once; the result is kept in {apps_folder()}."
        )
    compiling = [PYTHON, "-IS", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", "/opt/app"]
    subprocess.run([*compiling, str(folder)], capture_output=True, timeout=INSTALL_TIMEOUT_S, check=False)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def main() -> int:
    from sandbox.tasks.web_apps.apps import APPS

    for app in APPS.values():
        print(f"{app.name} {app.version}: {install(app.name, app.pins)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
