"""Where and when a figure was measured: commit, date and a description of the machine, without its name or any path."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from warehouse.core.home import atomic_write

ROOT = Path(__file__).resolve().parents[2]
DIGITS = 10
MEASURED = Path("docs/measured")
"""Published figures, a file a benchmark; README.md quotes no others."""


def provenance() -> dict[str, str]:
    """`commit`, `date` (UTC) and `machine`, as measured now. The commit is followed by "+ changes" where tracked files outside docs/, which
    holds the published figures, differ from it. Raises CalledProcessError outside a checkout."""
    commit = _git("rev-parse", f"--short={DIGITS}", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return {"commit": f"{commit} + changes" if changed else commit, "date": datetime.now(UTC).date().isoformat(), "machine": machine()}


def machine() -> str:
    """CPU model, the cores that this process may use, memory."""
    cores = len(os.sched_getaffinity(0))
    return f"{_cpu_model()}, {cores} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def sentence(measured: Mapping[str, str]) -> str:
    """The same for readers: a noun phrase that follows "Measured"."""
    return f"at commit {measured['commit']} on {measured['date']}; machine: {measured['machine']}"


def publish_rows(name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Put rows into a published file, each with its own `measured`; those of other names stay."""
    path = MEASURED / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept["rows"] = {**kept.get("rows", {}), **rows}
    publish(name, kept)


def publish(name: str, figures: Mapping[str, Any]) -> None:
    """Write a published file, whose figures say themselves when they were `measured`."""
    MEASURED.mkdir(parents=True, exist_ok=True)
    atomic_write(MEASURED / f"{name}.json", (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode())


def distinct(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """When several kept rows were measured, each time once."""
    found: list[dict[str, str]] = []
    for row in rows:
        if row["measured"] not in found:
            found.append(row["measured"])
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
