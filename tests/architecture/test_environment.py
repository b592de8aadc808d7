"""docs/environment.md has every environment variable of the code, and no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "environment.md"
CODE = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse", "scripts", "dagster.yaml", "Makefile")
ROW = re.compile(r"^\| `(FLYWHEEL_[A-Z_]+)` \|.*\| `([^`]+)` \|$", re.M)


def variables_in(text: str) -> set[str]:
    return set(re.findall(r"FLYWHEEL_[A-Z]+(?:_[A-Z]+)*", text))


def test_every_variable_is_documented_and_every_documented_one_is_read():
    listed = subprocess.run(["git", "ls-files", "-z", *CODE], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    paths = [ROOT / name for name in listed.split("\0") if name.endswith((".py", ".sh", ".yaml", "Makefile")) and (ROOT / name).is_file()]
    used = set().union(*(variables_in(path.read_text(encoding="utf-8")) for path in paths))
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(name for name, _ in rows) == sorted(used)


def test_each_is_read_where_the_page_says():
    elsewhere = [
        f"{name}: {place}"
        for name, place in ROW.findall(PAGE.read_text(encoding="utf-8"))
        if name not in variables_in((ROOT / place).read_text(encoding="utf-8"))
    ]
    assert elsewhere == []
