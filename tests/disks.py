"""Disks that fill up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BLOCK = b"x" * 4096


@contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own (tmpfs) at `folder`, made where it is missing; `size` as mount reads it (1m, 600m). Skips where none can be
    mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"only root mounts a small disk: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(filler: Path) -> None:
    """Write to `filler` until its disk takes no more; where something was freed since, again."""
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(file, _BLOCK)
    except OSError:
        pass
    finally:
        os.close(file)
