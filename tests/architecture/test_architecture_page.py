"""docs/architecture.md describes the present code: its functions exist, and a run of two iterations calls every one of them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
PAGE = ROOT / "docs" / "architecture.md"
FLOCKS = "warehouse/core/locks.py"
"""Where FileLock itself is."""
MOST = 30
"""Functions between the task and the checkpoint: a reader should be able to follow them all."""
TRACER = """
import os, sys, threading
LISTED = {tuple(line.split(":")) for line in os.environ["TRACED_FUNCTIONS"].split()}
QUALNAMES = {qualname for _, qualname in LISTED}
found = set()

def look(frame, event, argument):
    if event == "call" and frame.f_code.co_qualname in QUALNAMES:
        called = (frame.f_globals.get("__name__"), frame.f_code.co_qualname)
        if called[0] == "__main__":
            called = (frame.f_code.co_filename.removeprefix(os.environ["TRACED_ROOT"]).removesuffix(".py").replace("/", "."), called[1])
        if called in LISTED and called not in found:
            found.add(called)
            with open(os.environ["TRACED_TO"], "a") as file:
                file.write(":".join(called) + "\\n")

sys.setprofile(look)
threading.setprofile(look)
"""


@cache
def listed() -> list[str]:
    """MODULE:QUALNAME, as the page's table has them."""
    return re.findall(r"^\| (?:\*\*.*?\*\*)? ?\| `([\w.]+:[\w.]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_way_is_short() -> None:
    assert 20 < len(listed()) <= MOST


@pytest.mark.parametrize("name", listed())
def test_a_function_on_the_page_exists(name: str) -> None:
    module, _, qualname = name.partition(":")
    scope: ast.AST = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for part in qualname.split("."):
        found = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == part]
        assert found, f"{module} has no {qualname}"
        scope = found[0]


def test_files_named_on_the_page_exist() -> None:
    named = re.findall(r"`((?:\w+/)+[\w.]+)`", PAGE.read_text(encoding="utf-8"))
    assert named and [name for name in named if not name.endswith(".lock") and not (ROOT / name).exists()] == []


def test_each_lock_is_on_the_page_with_its_reason() -> None:
    """A lock is made where its path is: calls of FileLock, and the functions that name a path for others. And locks of other kinds."""
    kinds = {
        "lock": r"\bFileLock\((?!lock_path\(|driver_path\()|\bflock\(",
        "advisory": r"pg_(?:try_)?advisory",
        "lease": r"^class StoreLease|\bStoreLease\(",
    }
    page = PAGE.read_text(encoding="utf-8")
    rows = {
        "lock": re.findall(r"^\| `[^`]*lock` \| (.+?) \| .+ \|$", page, flags=re.MULTILINE),
        "advisory": re.findall(r"^\| `advisory [^`]+` \| (.+?) \| .+ \|$", page, flags=re.MULTILINE),
        "lease": re.findall(r"^\| `lease [^`]+` \| (.+?) \| .+ \|$", page, flags=re.MULTILINE),
    }
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    for kind, pattern in kinds.items():
        defined = {name for name, text in texts.items() if re.search(pattern, text, flags=re.MULTILINE) and name != FLOCKS}
        assert {name for row in rows[kind] for name in re.findall(r"`([\w./]+)`", row)} == defined, kind


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_of_two_iterations_takes_the_way(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(TRACER)
    called, home = tmp_path / "called", tmp_path / "home"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path / 'path'}{os.pathsep}{ROOT}",
        "FLYWHEEL_HOME": str(home),
        "TRACED_TO": str(called),
        "TRACED_ROOT": f"{ROOT}/",
        "TRACED_FUNCTIONS": " ".join(listed()),
    }
    profile = ROOT / "benchmarks" / "profiles" / "tiny.yaml"
    flywheel = [sys.executable, "-m", "pipelines.cli"]
    run = [*flywheel, "run", "--iterations", "2", "--profile", str(profile)]
    subprocess.run(run, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*flywheel, "lineage", "0002/released_policy"], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert set(listed()) - set(called.read_text().split()) == set()
