"""What decides that two machines run the same sandbox: the release, the code and pages of this room, the task sources. A server says it in
its status; a pool over several servers (servers_pool.py) uses only those that say the same as itself.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sandbox.tasks.registry import SOURCES
from warehouse.core.identity import digests_id, file_digest
from warehouse.core.plugins import declared, of_other_packages

SUFFIXES = (".py", ".js", ".html", ".css", ".json", ".yaml", ".sh")
OURS = "flywheel."
NOT_THERE = "not there"


@cache
def code_id() -> str:
    """Id of the files of this room: its code, and the pages and task lists that ship with it."""
    room = Path(__file__).resolve().parents[1]
    files = sorted(path for path in room.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return digests_id("code", ((path.relative_to(room).as_posix(), file_digest(path)) for path in files))


def source_ids() -> dict[str, str]:
    """By the name of each task source of this process: the id of its file or package, or its module where it is ours."""
    return {name: _reference_id(reference) for name, reference in SOURCES.references().items()}


def plugin_ids() -> dict[str, str]:
    """`source_ids`, and the same of the plug-ins of other kinds that the environment names or other packages bring: a grammar, say,
    decides what prompts are."""
    others = [(kind, reference) for kind, reference in (*declared(), *of_other_packages()) if kind != SOURCES.kind]
    return {**source_ids(), **{f"{kind} {reference}": _reference_id(reference) for kind, reference in others}}


@cache
def _reference_id(reference: str) -> str:
    """Nothing is imported. Our own modules go by name, since `code_id` and the digest of a Ray node cover their code."""
    where, _, attribute = reference.rpartition(":")
    if where.endswith(".py"):
        return f"{file_digest(Path(where))}:{attribute}" if Path(where).is_file() else NOT_THERE
    if not where or where.startswith(OURS):
        return reference
    module = _module_id(where)
    return NOT_THERE if module is None else f"{module}:{attribute}"


def _module_id(module: str) -> str | None:
    """Id of the Python files of the package that a module belongs to, or of the module alone where it lies in none; its name where its file
    is not Python. None where it is not installed."""
    top, *below = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # a module that was made and not found, such as __main__
        return module
    if spec is None:
        return None
    if not below and not spec.submodule_search_locations:
        found = Path(spec.origin or "")
    else:
        places = [Path(place).joinpath(*below) for place in spec.submodule_search_locations or ()]
        files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
        found = next((file for file in files if file.is_file()), Path())
    return _package_id(found) if found.suffix == ".py" else module


def _package_id(file: Path) -> str:
    root = file
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    return digests_id("code", ((path.relative_to(root.parent).as_posix(), file_digest(path)) for path in files))
