"""No circles of modules, counting imports within functions and for type checkers too. The few that stay have a reason each."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
ALLOWED = {
    ("sandbox.tasks.task_source", "sandbox.tasks.task"): "a type: a source gives tasks, and a task looks up its source",
    ("sandbox.tasks.task_source", "sandbox.tasks.supply"): "a type: as above",
    ("sandbox.tasks.task_source", "sandbox.tasks.page_task"): "a type, and the check of a page when a source is made: as above",
}
"""By (importer, imported), why."""


def modules() -> Mapping[str, Path]:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from within & known.keys() or {node.module}


def first_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Its modules, each imported by the next, the first one repeated at the end; empty without a circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_import_each_other_in_no_circle() -> None:
    known = modules()
    graph = {name: {found for found in imports(path, known) if found in known and found != name} for name, path in known.items()}
    assert first_circle({name: {found for found in all_of if (name, found) not in ALLOWED} for name, all_of in graph.items()}) == []
    for importer, imported in ALLOWED:
        others = {name: {found for found in all_of if (name, found) not in ALLOWED} for name, all_of in graph.items()}
        assert imported in graph[importer], f"{importer} no longer imports {imported}: take it off the list"
        others[importer].add(imported)
        assert first_circle(others) != [], f"{importer} → {imported} closes no circle any more: take it off the list"
