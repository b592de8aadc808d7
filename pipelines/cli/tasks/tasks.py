"""`flywheel tasks`: which tasks there are, and what each asks for; `flywheel tasks supply`: how good a generator's supply is. Tasks and
their groups are sandbox/tasks/sources.py's business, what is counted of a supply sandbox/tasks/supply_report.py's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from pipelines.cli.options import SourceOption, SourcesOfOption, console, use_sources
from pipelines.cli.terminal import counted, fits, slim_table
from warehouse.core.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from sandbox.tasks.supply_report import OnProgress, Supply
    from sandbox.tasks.task import Task

NAME_CHARS = 34
"""of a task's name on a line, indented; longer ones go on below."""

tasks = typer.Typer(invoke_without_command=True)


@tasks.callback()
def list_tasks(
    context: typer.Context,
    lists: Annotated[
        list[str] | None, typer.Option("--list", help="SOURCE or SOURCE:GROUP, as in tasks.lists of a profile \\[default: every source].")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Only this domain, e.g. pointing.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this group of a source, e.g. small.")] = None,
    search: Annotated[str | None, typer.Option(help="With these words in the name or the description.")] = None,
    source: SourceOption = None,
    profile: SourcesOfOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tasks: what each asks for, its domain, its step limit, whether it is held out; or measure a task generator (`supply`).

    What a task asks for is an example: words and numbers in it change with the instance.
    """
    use_sources(source, profile)
    if context.invoked_subcommand is not None:
        return
    from sandbox.tasks.describe import describe
    from sandbox.tasks.registry import SOURCES
    from sandbox.tasks.sources import tasks_in

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
    from sandbox.tasks.registry import SOURCES

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
    from sandbox.tasks.sources import kind_of

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
    """By source and domain, so that a line is left for what the task is."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["source"], row["domain"]), []).append(row)
    name_chars = min(NAME_CHARS, 2 + max((len(row["name"]) for row in rows), default=0))
    for (source, domain), members in groups.items():
        console.print(f"[bold]{escape(source)}[/], domain {escape(domain)}: {counted(len(members), 'task')}", highlight=False)
        console.print(_lines_of(members, name_chars))
        console.print()
    console.print(f"{counted(len(rows), 'task')}{'; --json also prints ids and kinds' if rows else ''}", highlight=False)


def _lines_of(rows: Sequence[dict[str, Any]], name_chars: int) -> RichTable:
    """What is never trained on says so; nothing is cut."""
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(width=name_chars, overflow="fold")
    table.add_column(width=len("120 steps"), justify="right", no_wrap=True, style="dim")
    table.add_column(ratio=1)
    for row in rows:
        mark = "[yellow]held out:[/] " if row["held_out"] else ""
        table.add_row(f"  {escape(row['name'])}", counted(row["max_steps"], "step"), mark + escape(row["what"]))
    return table


@tasks.command()
def supply(
    selection: Annotated[str, typer.Argument(help="SOURCE or SOURCE:GROUP whose source generates its tasks, e.g. terminal:generated.")],
    num: Annotated[int, typer.Option(min=1, help="Instances, the families and the splits taking turns.")] = 200,
    oracle: Annotated[bool, typer.Option("--oracle/--no-oracle", help="Let the oracle play each in a live session.")] = True,
    page: Annotated[Path | None, typer.Option(help="Write the figures and twenty samples, e.g. to docs/generated/terminal.md.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the figures and every instance.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that drive sessions \\[default: one a core].")] = None,
) -> None:
    """Generate instances and judge them: yield after filters, what was dropped and why, duplicates within and across splits, difficulty,
    origin; what the oracle solves of them, and how long a task takes. Ends with status 1 where an oracle fails or a content comes twice.
    """
    from sandbox.fleet.settings import FleetSettings
    from sandbox.tasks.sources import tasks_of
    from sandbox.tasks.supply_page import FAMILY_COLUMNS, family_rows, summary_rows, to_json
    from sandbox.tasks.supply_page import page as page_of
    from sandbox.tasks.supply_report import gather, prove_supply

    families = tasks_of(selection)
    with _bar("generated", num) as on_progress:
        found = gather(families, num, on_progress)
    if oracle:
        at_once = {} if workers is None else {"max_workers": workers}
        with _bar("played", num) as on_progress:
            found = asyncio.run(prove_supply(found, settings=FleetSettings(sessions_per_worker=2, **at_once), on_progress=on_progress))
    _print_rows(("what", "measured"), summary_rows(found))
    _print_rows(FAMILY_COLUMNS, family_rows(found))
    for each in found.failed:
        console.print(f"[red]{escape(each.task.name)}, seed {each.seed}: {escape(each.why_not)}[/]")
    if json_ is not None:
        _write(json_, to_json(selection, found))
    if page is not None:
        command = f"flywheel tasks supply {selection} --num {num}" + ("" if oracle else " --no-oracle")
        _write(page, page_of(f"Generated tasks: {selection}", command, found))
    sys.exit(_status(found))


@tasks.command()
def harbor(
    selection: Annotated[str, typer.Argument(help="SOURCE or SOURCE:GROUP of terminal tasks, e.g. terminal:small.")],
    folder: Annotated[Path, typer.Argument(help="Where to write a folder for each instance.")],
    num: Annotated[int, typer.Option(min=1, help="Instances of each task.")] = 1,
    split: Annotated[str, typer.Option(help="Of which split they are: train, eval, holdout or report.")] = "train",
) -> None:
    """Write terminal tasks as Harbor's task folders: files, instruction, verifier, and the oracle's steps as the solution.

    What Harbor has no place for, such as documents to search, is named and left out. Ends with status 1 where nothing was written.
    """
    from sandbox.adapters.harbor_export import write_harbor
    from sandbox.tasks.sources import tasks_of
    from sandbox.tasks.task import Split

    if split not in set(Split):
        raise ConfigError(f"--split {split!r}: there are {', '.join(Split)}.")
    num_written = 0
    for task in tasks_of(selection):
        try:
            num_written += len([write_harbor(task, seed, folder) for seed in task.seeds(Split(split), num)])
        except TaskError as error:
            console.print(f"[yellow]left out:[/] {escape(str(error))}")
    console.print(f"{counted(num_written, 'folder')} in {escape(str(folder))}")
    sys.exit(0 if num_written else 1)


def _status(found: Supply) -> int:
    duplicates = found.duplicates
    return 1 if found.failed or duplicates.within_splits or duplicates.across_splits else 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    console.print(f"written: {path}")


@contextmanager
def _bar(what: str, total: int) -> Iterator[OnProgress]:
    """A progress bar on the side of errors, so that the output stays a table."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=total)
        yield lambda name: progress.update(bar, advance=1, description=name)


def _print_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    wide, slim = (_filled(table, head, rows) for table in (RichTable(), slim_table()))
    console.print(wide if fits(wide, console) or len(head) == 2 else slim)


def _filled(table: RichTable, head: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    for at, heading in enumerate(head):
        table.add_column(heading, no_wrap=at == 0, justify="left" if at == 0 or len(head) == 2 else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
