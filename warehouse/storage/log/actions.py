"""The actions that the log file of one commit holds: what it says of itself, and which data files it adds and takes out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

AFTER = "after"
"""Metadata of every commit: the link in the chain that it follows. A log that holds it had a chain."""
VACUUM_BEGUN, VACUUMED = "VACUUM START", "VACUUM END"
"""Operations of the commits between which older versions lose their files."""


def read_log(path: Path) -> list[dict[str, Any]]:
    """The actions of one commit. Raises ValueError for what is none, FileNotFoundError."""
    return read_actions(path.read_bytes())


def read_actions(log: bytes) -> list[dict[str, Any]]:
    """The actions of one commit, of the bytes of its log file. Raises ValueError."""
    actions = [json.loads(line) for line in log.splitlines()]
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line holds no action")
    return actions


def commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What a commit says of itself, its metadata included."""
    return next((dict(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def added_files(actions: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Paths below the table's folder, and sizes, of the data files that a commit adds."""
    for action in actions:
        if (added := action.get("add")) is not None:
            yield unquote(added["path"]), int(added["size"])


def removed_files(actions: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Paths, as they are quoted in the log, of the data files that a commit takes out of the table."""
    return (action["remove"]["path"] for action in actions if "remove" in action)
