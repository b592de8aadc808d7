"""What the files of the checkout look like, whatever is in them: docstrings, no trace of one machine, documents in step with the code."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")

# Home folders and package indexes in general (in brackets, so that this file does not name one) ...
PLACES = r"/[h]ome/[a-z]\w*/|/[U]sers/\w+/|/[r]oot/|[p]ypi\.org/simple|[d]ownload\.pytorch\.org|--[i]ndex-url[ =]http"
# ... which a container's image may name: it makes its own user.
MAY_NAME_A_PLACE = ("Dockerfile",)


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@cache
def texts() -> dict[Path, str]:
    found = {}
    for path in tracked_files():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
    return found


@pytest.mark.slow
def test_every_module_opens_with_a_docstring():
    silent = [
        path.relative_to(ROOT).as_posix()
        for path, text in texts().items()
        if path.suffix == ".py" and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == [], "a module's first lines say what it holds and what not"


def test_a_room_holds_only_its_docstring():
    for room in ROOMS:
        body = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")).body
        assert len(body) == 1, f"{room}/__init__.py: import a module, never a room"


def test_no_tracked_file_names_a_machine():
    here = [re.escape(f"{ROOT}/"), re.escape(f"{Path.home()}/")]
    host = socket.gethostname()
    if re.search(r"[\d.-]", host) and len(host) > 5:  # a plain word would be found in prose
        here.append(re.escape(host))
    pattern = re.compile("|".join([PLACES, *here]))
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path, text in texts().items()
        if path.name not in MAY_NAME_A_PLACE
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert named == []


def test_no_tracked_file_is_large():
    large = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked_files() if path.stat().st_size > 2_000_000}
    assert large == {}


def test_tests_have_no_packages():
    """Under --import-mode=importlib two files may share a name; an __init__.py would make packages that shadow the rooms."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_agents_file_is_short():
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("script", ["scripts/setup.sh", "scripts/lock.sh", "scripts/build-vm-image.sh", ".ci/run"])
def test_scripts_parse_and_may_be_run(script: str):
    assert (ROOT / script).stat().st_mode & 0o111
    checked = subprocess.run(["bash", "-n", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr


def test_every_benchmark_is_run_and_described():
    folder = ROOT / "benchmarks"
    made = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__main__.py")}
    loop = re.search(r"for name in (.+?);", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert loop is not None and set(loop[1].split()) == made
    assert set(re.findall(r"^- `(\w+)(?:\.py|/)`", (ROOT / "benchmarks/README.md").read_text(encoding="utf-8"), re.MULTILINE)) == made
