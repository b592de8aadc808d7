"""Fetching a Debian package's files without installing it: `apt-get download`, `dpkg-deb -x` into a folder of ours. The package is kept in
the cache, so that a machine goes on reading the version that it first read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sandbox.cache import cache_folder
from warehouse.core.errors import CorpusMissing

TIMEOUT_S = 300


def kept_file(name: str) -> Path | None:
    """The package where it lies in the cache already."""
    return next(iter(sorted((cache_folder() / "browsing").glob(f"{name}_*.deb"))), None)


def package_file(name: str) -> Path:
    """The package as it lies in the cache, fetched where it is not there. Raises CorpusMissing."""
    folder = cache_folder() / "browsing"
    folder.mkdir(parents=True, exist_ok=True)
    if kept := kept_file(name):
        return kept
    with tempfile.TemporaryDirectory(dir=folder, prefix="aside-") as aside:
        _run(name, ["apt-get", "download", name], Path(aside))
        fetched = sorted(Path(aside).glob(f"{name}_*.deb"))
        if not fetched:
            raise _missing(name, "apt-get download left no such file")
        os.replace(fetched[0], folder / fetched[0].name)
        return folder / fetched[0].name


def package_version(file: Path) -> str:
    """Of `name_version_architecture.deb`, as its name says it."""
    return file.name.split("_")[1].replace("%3a", ":")


def unpack(file: Path, into: Path) -> None:
    """Raises CorpusMissing."""
    _run(file.name, ["dpkg-deb", "-x", str(file), str(into)], into)


def _run(name: str, command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise _missing(name, f"there is no {command[0]} on this machine")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise _missing(name, f"{command[0]} took longer than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise _missing(name, (done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1])


def _missing(name: str, reason: str) -> CorpusMissing:
    package = name.partition("_")[0]
    return CorpusMissing(
        f"The Debian package {package} could not be had: {reason}. On Debian or Ubuntu run `apt-get update` and try again; elsewhere put "
        f"{package}_*.deb (from deb.debian.org) into {cache_folder() / 'browsing'}. Without it only the tasks docs-* cannot run: leave out "
        "browsing:docs, and select browsing:small or browsing:almanac."
    )
