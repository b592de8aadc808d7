"""Where and when a figure was measured: commit, date and a description of the machine, without its name or any path."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from warehouse.core.home import atomic_write

ROOT = Path(__file__).resolve().parents[2]
DIGITS = 10
MEASURED = Path("docs/measured")
"""Published figures, a file a benchmark; README.md quotes no others."""
CHANGED = " + changes"
"""After the commit of what was measured in a checkout whose tracked files differ from it."""


class Publish(argparse.Action):
    """The switch `--publish`; an error in a checkout with changes, before anything is measured there."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        if changed := _changed():
            parser.error(f"--publish: these files differ from the commit, so nobody could measure the same again: {changed}. Commit first")
        setattr(namespace, self.dest, True)


def provenance() -> dict[str, str]:
    """`commit`, `date` (UTC) and `machine`, as measured now. The commit is followed by CHANGED where tracked files outside docs/, which
    holds the published figures, differ from it. Raises CalledProcessError outside a checkout."""
    commit = _git("rev-parse", f"--short={DIGITS}", "HEAD")
    return {"commit": f"{commit}{CHANGED}" if _changed() else commit, "date": datetime.now(UTC).date().isoformat(), "machine": machine()}


def machine() -> str:
    """CPU model, the cores that this process may use, memory."""
    cores = len(os.sched_getaffinity(0))
    return f"{_cpu_model()}, {cores} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


def sentence(measured: Mapping[str, str]) -> str:
    """The same for readers: a noun phrase that follows "Measured"."""
    return f"at commit {measured['commit']} on {measured['date']}; machine: {measured['machine']}"


def publish_rows(name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Put rows into a published file, each with its own `measured`; those of other names stay. Raises as `publish`."""
    require_no_changes(rows)
    path = MEASURED / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept["rows"] = {**kept.get("rows", {}), **rows}
    _write(name, kept)


def publish(name: str, figures: Mapping[str, Any]) -> None:
    """Write a published file, whose figures say themselves when they were `measured`. Raises SystemExit for those of a checkout with
    changes."""
    require_no_changes(figures)
    _write(name, figures)


def require_no_changes(figures: Mapping[str, Any]) -> None:
    """Raises SystemExit where any of the figures was measured in a checkout with changes."""
    if changed := sorted({commit for commit in _commits(figures) if commit.endswith(CHANGED)}):
        raise SystemExit(
            f"not published: figures were measured at commit {', '.join(changed)}, so nobody could measure the same again. Commit the "
            "changes, remove what is kept under .bench, and measure again"
        )


def _commits(value: Any) -> Iterator[str]:
    """All that stand as `commit` anywhere in it."""
    if isinstance(value, Mapping):
        yield from (inner for key, inner in value.items() if key == "commit" and isinstance(inner, str))
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _commits(inner)


def _write(name: str, figures: Mapping[str, Any]) -> None:
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


def _changed() -> str:
    """Names of tracked files outside docs/ that differ from the commit."""
    return ", ".join(_git("diff", "--name-only", "HEAD", "--", ".", ":!docs").splitlines())


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
