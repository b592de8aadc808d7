"""The user's own source of docs/page-tasks.md as files in a folder outside the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^`([\w.]+)`, the \w+\..*?^```\w+\n(.*?)^```$", re.M | re.S)


def write_own_source(folder: Path) -> Path:
    """The page's three files, copied as the document has them; returns the folder."""
    found = dict(_BLOCK.findall((ROOT / "docs" / "page-tasks.md").read_text(encoding="utf-8")))
    assert sorted(found) == ["mine.yaml", "press.html", "press.py"]
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
