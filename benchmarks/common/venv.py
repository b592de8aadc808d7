"""The venvs that peers run in: the benchmark names the packages of each, and it is made on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warehouse.core.locks import FileLock

TORCH = ("torch==2.13.0", "numpy")
TRL = (TORCH, ("trl==1.16.0", "transformers==5.23.0"))
"""Installs of TRL's venv, torch's CPU build first."""


def python_of(folder: Path, *installs: Sequence[str], removed: Sequence[str] = (), of: str | None = None) -> Path:
    """The interpreter of a venv into which `pip install` was called with each of `installs` in turn, without the packages that were
    `removed` after that; made again where they have changed or its making was cut off; one process makes it, others wait. `of`: the release
    of Python, such as 3.13, where it is not this one. Raises CalledProcessError where pip fails, ConnectionError where that is because the
    package index cannot be reached, FileNotFoundError where there is no such Python."""
    ready, python = folder / "ready.json", folder / "bin" / "python"
    wanted = json.dumps([installs, removed] if removed else installs)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not ready.exists() or ready.read_text() != wanted:
            print(f"making {folder} with {', '.join(argument for install in installs for argument in install)} …", flush=True)
            made_by = sys.executable if of is None else _installed(of)
            subprocess.run([made_by, "-m", "venv", "--clear", str(folder)], check=True)
            for install in installs:
                _install(python, install)
            if removed:
                subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *removed], check=True)
            ready.write_text(wanted)
    return python


UNREACHABLE = ("Max retries exceeded", "(from versions: none)")
"""What pip says where the package index does not answer."""


def _install(python: Path, install: Sequence[str]) -> None:
    done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", *install], stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        if any(text in done.stderr for text in UNREACHABLE):
            raise ConnectionError(f"pip could not reach the package index to install {' '.join(install)}: try again with a network")
        done.check_returncode()


def _installed(release: str) -> str:
    """`pythonRELEASE` on the PATH, or the one of pyenv."""
    command = [f"python{release}", "-c", "import sys; print(sys.executable)"]
    try:
        found = subprocess.run(command, env=os.environ | {"PYENV_VERSION": release}, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise FileNotFoundError(f"there is no Python {release} here: install it so that `{command[0]}` is found on the PATH") from error
    return found.stdout.strip()
