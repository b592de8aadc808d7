"""The `report` split: who looked at it, for which release. Its instances are played by an explicit command only, and each time is written
down before it begins, in FLYWHEEL_HOME/report_split.jsonl. What is played is evaluate_checkpoint.py's.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write

FILE = "report_split.jsonl"


def check_split(split: str, release: str | None) -> Split:
    """The split that may be evaluated. Raises ConfigError for `train` and for an unknown one, for `report` without a release, and for a
    release without it."""
    if split not in (Split.EVAL, Split.HOLDOUT, Split.REPORT):
        raise ConfigError(f"--split {split!r}: eval, holdout and report are allowed; train instances are never reported")
    if split == Split.REPORT and not release:
        raise ConfigError(
            "--split report is for the figures of a release and for nothing else: name the release with --for-release, "
            "e.g. --for-release v1.2; to develop, use eval"
        )
    if release and split != Split.REPORT:
        raise ConfigError(f"--for-release {release} goes with --split report; {split} needs none")
    return Split(split)


def looks(home: Home) -> list[dict[str, Any]]:
    """Every time that the report split was looked at in this home, oldest first. Raises ConfigError for a damaged file."""
    path = home.root / FILE
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Restore it from a backup, or move it away") from error


def record(home: Home, **what: Any) -> int:
    """Write a look down; returns how many there were before it in this home."""
    before = looks(home)
    lines = [*before, {"at": datetime.now(UTC).isoformat(timespec="seconds"), **what}]
    atomic_write(home.root / FILE, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode())
    return len(before)
