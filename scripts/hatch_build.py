"""Builds the wheel: the rooms as subpackages of `flywheel`, with the names of modules in them rewritten from `sandbox.session` to
`flywheel.sandbox.session`. An editable installation takes the checkout as it is (flywheel/__init__.py).

Rewritten are imports, strings that are nothing but the name of a module (`"pipelines.stages"`, `"sandbox.gym.env:FlywheelEnv"`), and
`python -m ROOM…` in other strings. Left alone is what runs under another Python by its own name: the programs inside a desktop, and the
recorder's reader.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "flywheel"
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
ELSEWHERE = ("sandbox/desktop/inside/", "sandbox/desktop/guest_agent.py", "annotation/recorder/screen/inside/")
"""Files that run under another Python (in a desktop, a virtual machine, beside the recorder), to which it is `sandbox.desktop.inside`."""
INSIDE = "sandbox.desktop.inside"
SHARED = ("dagster.yaml", "constraints.txt")
"""Files of the root that a run reads (pipelines/orchestration/shipped.py)."""
INIT = '''"""Flywheel: the data flywheel of GUI agents. The rooms: pipelines, assets, models, annotation, agent, sandbox, warehouse. And
`flywheel.open(HOME)`, for notebooks (pipelines/notebook.py).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "open":
        from flywheel.pipelines.notebook import open

        return open
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
'''
_ROOM = "|".join(ROOMS)
_MODULE = re.compile(rf"(?:{_ROOM})(?:\.\w+)+(?::\w+)?")
_COMMAND = re.compile(rf"(python -m )(?=(?:{_ROOM})\b)")


class WheelHook(BuildHookInterface):
    """Asked by hatchling for every build of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._made = Path(tempfile.mkdtemp(prefix="flywheel-wheel-"))
        write_package(Path(self.root), self._made / PACKAGE)
        build_data["force_include"][str(self._made / PACKAGE)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._made)


def write_package(root: Path, target: Path) -> None:
    """The rooms of the checkout `root` as one package in the folder `target`, which must not exist."""
    target.mkdir()
    (target / "__init__.py").write_text(INIT, encoding="utf-8")
    for name in SHARED:
        shutil.copy2(root / name, target / name)
    for path in files_of(root):
        to = target / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, to)
        if path.suffix == ".py" and not path.as_posix().startswith(ELSEWHERE):
            to.write_text(rewritten(to.read_text(encoding="utf-8"), root), encoding="utf-8")


def files_of(root: Path) -> list[Path]:
    """Files of the rooms, relative to the root: those that git tracks, or all that are not leftovers where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *ROOMS]
    listed = subprocess.run(command, capture_output=True)
    if listed.returncode == 0 and listed.stdout:
        found = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        found = [path.relative_to(root) for room in ROOMS for path in (root / room).rglob("*") if "__pycache__" not in path.parts]
    return sorted(path for path in found if (root / path).is_file())


def rewritten(source: str, root: Path) -> str:
    """The source of a module of a room, as it stands in the package."""
    edits: list[tuple[int, int, str]] = []
    lines = [0]
    encoded = source.encode()
    for line in encoded.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return lines[node.lineno - 1] + node.col_offset, lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            begin, end = span(node)
            edits.append((begin, end, re.sub(rf"^((?:from|import) )(?=(?:{_ROOM})\b)", rf"\1{PACKAGE}.", encoded[begin:end].decode())))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            begin, end = span(node)
            text = encoded[begin:end].decode()
            if _MODULE.fullmatch(node.value) and not node.value.startswith(INSIDE) and _is_module(node.value, root):
                edits.append((begin, end, text.replace(node.value, f"{PACKAGE}.{node.value}")))
            elif _COMMAND.search(text):
                edits.append((begin, end, _COMMAND.sub(rf"\1{PACKAGE}.", text)))
    begun = len(encoded)
    for begin, end, text in sorted(set(edits), reverse=True):
        if end > begun:
            raise ValueError(f"two names of modules in one string, which cannot both be rewritten: {text}")
        begun = begin
        encoded = encoded[:begin] + text.encode() + encoded[end:]
    return encoded.decode()


def _is_module(name: str, root: Path) -> bool:
    path = root / name.partition(":")[0].replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()
