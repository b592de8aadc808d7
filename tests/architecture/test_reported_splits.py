"""Which modules may name what is only reported. Whatever is not in the list cannot choose by it: it has no word for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from warehouse.evaluation.choosing import CHOICE_SPLITS
from warehouse.storage.catalogue import SPLITS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
MAY_NAME = {
    "sandbox/tasks/task.py": "defines the splits",
    "warehouse/storage/catalogue.py": "lists the splits, and has the tables of both kinds",
    "warehouse/evaluation/evaluations.py": "names the split that figures are reported on",
    "warehouse/lineage/iterations_graph.py": "writes the reported success on the graph",
    "warehouse/lineage/relations.py": "writes the reported success on checkpoints in the lineage",
    "assets/tasks/instance_rows.py": "writes down the instances that are evaluated on, before anything runs, to keep them out of training",
    "assets/release.py": "asks for evaluations on both splits; the gate itself reads through warehouse/evaluation/choosing.py",
    "assets/stages/requests.py": "the request for an evaluation says on which splits",
    "assets/judging.py": "draws how judges agree on the part that chose nothing",
    "sandbox/tasks/reserved.py": "reads which instances are reserved for which split",
    "sandbox/tasks/contents.py": "makes the index of what is reserved",
    "sandbox/adopting/source.py": "says which of an adopted site's tasks are of which split",
    "pipelines/adopting/training.py": "refuses to train on a site that leaves nothing to evaluate and report on",
    "pipelines/adopting/report.py": "has the part `report` of `flywheel adopt`, which is not the split",
    "pipelines/cli/tasks/adopt.py": "the same",
    "sandbox/tasks/web_apps/apps.py": "has an application with a table `report`, which is not the split",
    "sandbox/tasks/supply_page.py": "shows instances to people, and none of what is only reported",
    "agent/judging/reports.py": "measures judges on the part that chose nothing",
    "agent/judging/samples.py": "holds instances apart for measuring judges",
    "pipelines/plan/workload.py": "counts the episodes of an evaluation",
    "pipelines/stages/release_figures.py": "lets a named release be reported, and writes it down",
    "pipelines/stages/evaluate.py": "plays what it is asked for; choices take requests_to_choose",
    "pipelines/stages/judge.py": "measures judges on the part that chose nothing; thresholds refuse its words",
}
"""Module → why it says so. Docstrings, comments and descriptions of fields do not count."""
CHOOSE = (
    "pipelines/stages/merge.py",
    "pipelines/stages/rl.py",
    "pipelines/stages/supervised.py",
    "pipelines/stages/collect.py",
    "assets/tasks/pool.py",
    "assets/tasks/choice.py",
    "warehouse/evaluation/solve_rates.py",
    "warehouse/evaluation/statistics.py",
    "warehouse/evaluation/judge_reports.py",
    "warehouse/datasets/mixing.py",
    "warehouse/routing/routes.py",
    "pipelines/orchestration/sensors.py",
)
REPORTED = set(SPLITS) - set(CHOICE_SPLITS)


def names(tree: ast.AST) -> Iterator[str]:
    """What a module names as code: attributes of Split, and texts that are a split or hold one in quotation marks (SQL)."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Split":
            yield node.attr.lower()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from (split for split in REPORTED if node.value == split or f"'{split}'" in node.value)


def is_named(text: str) -> bool:
    """Parsing takes a hundred times as long as looking for the words, and few modules have them."""
    return any(split in text.lower() for split in REPORTED) and not REPORTED.isdisjoint(names(ast.parse(text)))


def test_what_is_only_reported_is_named_where_it_is_reported_and_nowhere_else() -> None:
    modules = {str(path.relative_to(ROOT)): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    found = {name for name, path in modules.items() if is_named(path.read_text(encoding="utf-8"))}
    assert found - MAY_NAME.keys() == set(), "these could choose by what is only reported"
    assert MAY_NAME.keys() - found == set(), "these need not be in the list any more"
    assert set(CHOOSE) <= modules.keys() and not set(CHOOSE) & MAY_NAME.keys()


def test_no_sql_file_names_what_is_only_reported() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.sql")]
    assert files and not [path.name for path in files for split in REPORTED if f"'{split}'" in path.read_text(encoding="utf-8")]


def test_stages_that_choose_open_collectors_that_refuse() -> None:
    for name in ("merge", "rl", "demonstrate"):
        calls = [
            node
            for node in ast.walk(ast.parse((ROOT / "pipelines" / "stages" / f"{name}.py").read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open_collector"
        ]
        assert calls, name
        assert all(ast.unparse(keyword) == "to_choose=True" for call in calls for keyword in call.keywords) and calls[0].keywords, name
