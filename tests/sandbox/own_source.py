"""The user's own files that a page of docs/ shows, as files in a folder outside the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = ["browsergym_server.py", "browsing.py", "clock.py", "guesses.py", "lake.py", "shop.py", "shop.yaml"]
"""What adapters.md shows."""
_BLOCK = re.compile(r"^`(\w+\.\w+)`, (?:the|an?)\b.*?^```\w+\n(.*?)^```$", re.M | re.S)


def write_own_source(folder: Path) -> Path:
    """The files of a task source; returns the folder."""
    return write_files_of("page-tasks.md", folder, ["mine.yaml", "press.html", "press.py"])


def write_files_of(page: str, folder: Path, names: list[str]) -> Path:
    """The files that a page shows, which have to be these, copied as it has them; returns the folder."""
    found = dict(_BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert sorted(found) == names
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
