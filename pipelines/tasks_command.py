"""`flywheel tasks`: which tasks there are, and what each asks for. Tasks and their groups are sandbox/sources.py's business."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.options import console
from warehouse.errors import ConfigError

if TYPE_CHECKING:
    from sandbox.task import Task


def tasks(
    lists: Annotated[
        list[str] | None, typer.Option("--list", help="SOURCE or SOURCE:GROUP, as in tasks.lists of a profile \\[default: every source].")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Of this domain only, e.g. pointing.")] = None,
    group: Annotated[str | None, typer.Option(help="In this group of their source only, e.g. small.")] = None,
    search: Annotated[str | None, typer.Option(help="With these words in the name or in what the task is.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """List tasks: what each asks for, its domain, its limit of steps, whether it is never trained on.

    What a task asks for is an example: words and numbers in it change with the instance.
    """
    from sandbox.describe import describe
    from sandbox.sources import SOURCES, tasks_in

    found = list(tasks_in(lists or SOURCES).values())
    if group is not None:
        members = _members(group, {task.source for task in found})
        found = [task for task in found if task in members]
    if domain is not None:
        found = _of_domain(found, domain)
    rows = [_row(task, describe(task)) for task in found]
    if search is not None:
        rows = [row for row in rows if all(word in f"{row['name']} {row['what']}".lower() for word in search.lower().split())]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)


def _members(group: str, sources: Iterable[str]) -> set[Task]:
    """The tasks of a group, of whichever of the sources have one of that name. Raises ConfigError when none has."""
    from sandbox.sources import SOURCES

    found: set[Task] = set()
    refusals = []
    for name in sorted(sources):
        try:
            found |= set(SOURCES[name].load_tasks(group).values())
        except ConfigError as error:
            refusals.append(str(error))
    if not found:
        raise ConfigError(f"--group {group}: " + " ".join(refusals))
    return found


def _of_domain(tasks: Sequence[Task], domain: str) -> list[Task]:
    """Raises ConfigError when there is none."""
    found = [task for task in tasks if task.domain == domain]
    if not found:
        known = ", ".join(dict.fromkeys(task.domain for task in tasks))
        raise ConfigError(f"--domain {domain}: none of these tasks is of it; they are of {known or 'no domain, since none is left'}")
    return found


def _row(task: Task, what: str) -> dict[str, Any]:
    from sandbox.sources import kind_of

    return {
        "name": task.name,
        "source": task.source,
        "domain": task.domain,
        "kind": kind_of(task),
        "held_out": task.held_out,
        "max_steps": task.max_steps,
        "what": what,
        "task_id": task.task_id,
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = RichTable()
    for heading in ("name", "source", "domain", "held out"):
        table.add_column(heading, no_wrap=True)
    table.add_column("steps", justify="right")
    table.add_column("what it is", no_wrap=console.is_terminal, overflow="ellipsis")
    for row in rows:
        is_held_out = "yes" if row["held_out"] else ""
        table.add_row(
            escape(row["name"]), row["source"], row["domain"], is_held_out, str(row["max_steps"]), escape(row["what"])
        )  # fmt: skip
    if rows:
        console.print(table)
    console.print(f"{len(rows)} task{'s' * (len(rows) != 1)}")
