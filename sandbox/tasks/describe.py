"""What a task asks for, in a line, without a session: the instruction of its first instance, or for pages, which say theirs only when they
run, what their source tells of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

from sandbox.tasks.task import Split, Task


def describe(task: Task) -> str:
    """Empty where its source has nothing to say. Instances are of the `train` split, for held-out tasks of `eval`: never of what is only
    reported."""
    known = _DESCRIBERS.get(task.source)
    return " ".join(known(task).split()) if known else ""


def _first_seed(task: Task) -> int:
    return task.seeds(Split.EVAL if task.held_out else Split.TRAIN, 1)[0]


def _miniwob(task: Task) -> str:
    return _of_page(task.name)


def _of_page(page: str) -> str:
    told = _miniwob_descriptions().get(page, "")
    variant = re.match(r"\[([\w-]+)\]\s+", told)  # "[choose-date] Removed animation.", of another that may be a variant itself
    return told if variant is None else f"{_of_page(variant[1])} {told[variant.end() :]}"


@cache
def _miniwob_descriptions() -> Mapping[str, str]:
    """By page. The package says what its pages are in the docstrings of its environments, which are read and not imported: importing them
    would start Selenium's part of it."""
    tree = ast.parse((resources.files("miniwob") / "envs" / "miniwob_envs.py").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        page = next((_text(part.value) for part in node.body if isinstance(part, ast.Assign) and _target(part) == "subdomain"), "")
        _, heading, rest = (ast.get_docstring(node) or "").partition("## Description\n")
        if page and heading:
            found[page] = rest.strip().partition("\n\n")[0]
    return found


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _target(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


def _games(task: Task) -> str:
    from sandbox.tasks.games.source import ELEMENTS_SUFFIX, entry_of, facts

    if (told := facts(task, _first_seed(task))) is not None:
        return told.instruction
    entry = entry_of(task)
    goal = entry.goal if entry.goal == "solve" else f"{entry.goal} {entry.target:g}"
    return f"{entry.game}, {entry.difficulty}: {goal}{', with elements' if task.name.endswith(ELEMENTS_SUFFIX) else ''}"


def _terminal(task: Task) -> str:
    from sandbox.tasks.terminal.source import TerminalSource

    return TerminalSource().instance(task, _first_seed(task)).instruction


def _hybrid(task: Task) -> str:
    from sandbox.tasks.hybrid.source import hybrid_instance

    return hybrid_instance(task, _first_seed(task)).work.instruction


def _browsing(task: Task) -> str:
    from sandbox.tasks.browsing.source import family_of, instance_of

    if family_of(task).corpus == "handbook":  # to say more its package would have to be fetched
        return "A question over the sections and tables of the Debian Reference."
    return instance_of(task, _first_seed(task)).question


def _web(task: Task) -> str:
    from sandbox.tasks.web_apps.source import web_instance

    return web_instance(task, _first_seed(task)).instruction


def _desktop(task: Task) -> str:
    from sandbox.tasks.desktop.source import make_instance

    return make_instance(task, _first_seed(task)).instruction


def _android(task: Task) -> str:
    from sandbox.tasks.android.source import make_instance

    return make_instance(task, _first_seed(task)).instruction


def _imported(task: Task) -> str:
    from sandbox.tasks.imported.source import instance_spec

    return "" if task.split(0) in (Split.HOLDOUT, Split.REPORT) else instance_spec(task, 0)[1].instruction


_DESCRIBERS: Mapping[str, Callable[[Task], str]] = {
    "miniwob": _miniwob, "games": _games, "terminal": _terminal, "hybrid": _hybrid, "browsing": _browsing, "web": _web,
    "desktop": _desktop, "android": _android, "imported": _imported,
}  # fmt: skip
