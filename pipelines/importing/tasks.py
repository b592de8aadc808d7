"""What `flywheel import tasks` and `flywheel import sets` do: task files into a set of FLYWHEEL_HOME/task_sets, with a terminal in front.
Mapping is sandbox/imported's business.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from pipelines.cli.terminal import ROWS_SHOWN, counted, print_counts, print_reasons, print_rows, slim_table
from pipelines.importing.licences import source_of_import
from sandbox.tasks.imported.collecting import TASK_FORMATS, Collected, collect
from sandbox.tasks.imported.holdouts import Holdouts
from sandbox.tasks.imported.source import SOURCE, task_of
from sandbox.tasks.imported.spec import ImportedTask
from sandbox.tasks.imported.store import MANIFEST, TASKS, TaskSet, check_name, read_set, set_names, write_set
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, DesktopMissing, DeviceMissing, SandboxError, TaskError
from warehouse.core.home import Home
from warehouse.datasets.provenance import UNKNOWN

CHECK_LIMIT_S = 180.0
ALL_SPLITS = "every split"
HOW_TO_TRAIN = (
    ". The split is a hash of what a task asks and checks, so that nothing is reported on what was learned from: of more tasks, about 80 % "
    "are for training"
)


def import_task_files(
    home: Home,
    format: str,
    paths: Sequence[Path],
    console: Console,
    *,
    name: str | None,
    assets: Sequence[Path],
    held_out: bool,
    check: bool,
    dry_run: bool,
    verbose: bool,
    licence: str | None = None,
) -> Collected:
    """Import, and say what became of every record. Raises ConfigError where nothing of the files is a task."""
    chosen = check_name(name or re.sub(r"[^a-z0-9_-]+", "-", paths[0].stem.lower()).strip("-_"))
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("reading")
        found = collect(
            format, paths, assets=assets, held_out=held_out, on_record=lambda done, total: progress.update(bar, completed=done, total=total)
        )
    if not found.tasks:
        first = f": {found.malformed[0][0]} {found.malformed[0][1]}" if found.malformed else ""
        raise ConfigError(f"none of {len(found.records)} records is a task of the format {format}{first}")
    manifest: dict[str, Any] = {"format": format, "files": sorted(path.name for path in paths), "held_out": held_out}
    before = read_set(chosen, home) if chosen in set_names(home) else None
    said = source_of_import(chosen, format, TASK_FORMATS[format].collection, licence, kind="tasks")
    if said.licence != UNKNOWN:
        manifest["licence"] = {"licence": said.licence, "origin": said.origin, "stated_by": said.stated_by}
    elif before is not None and "licence" in before.manifest:
        manifest["licence"] = before.manifest["licence"]
    has_changed = True
    if not dry_run:
        task_set = _write(home, chosen, found, manifest)
        if check:
            found.tasks = asyncio.run(_checked(task_set, found.tasks, console))
            task_set = _write(home, chosen, found, manifest)
        has_changed = before is None or task_set.set_id != before.set_id
    _print_found(found, console, verbose=verbose)
    _print_holdouts(home, chosen, found.tasks, before, console, held_out=held_out)
    _print_splits(home, chosen, found.tasks, console, held_out=held_out, verbose=verbose)
    what = "would be written" if dry_run else "is written" if has_changed else "was imported already: nothing changed"
    console.print(f"set {escape(chosen)} {what}. A profile names it: tasks.lists: \\['imported:{escape(chosen)}']", highlight=False)
    return found


def _write(home: Home, name: str, found: Collected, manifest: Mapping[str, Any]) -> TaskSet:
    counts = {
        "num_records": len(found.records),
        "num_tasks": len(found.tasks),
        "num_runnable": found.num_runnable,
        "num_duplicates": found.num_duplicates,
        "not_runnable": dict(sorted(found.reasons.items())),
        "unknown_fields": dict(sorted(found.unknown_fields.items())),
        "malformed": [list(item) for item in found.malformed],
    }
    return write_set(home, name, found.tasks, found.records, found.assets, {**manifest, **counts})


async def _checked(task_set: TaskSet, tasks: Sequence[ImportedTask], console: Console) -> list[ImportedTask]:
    """Every runnable task set up once. One that fails, or that its verifier is content with from the start, is not runnable any more."""
    from sandbox.pool.pool import SessionPool

    made: list[ImportedTask] = []
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("setting up", total=len(tasks))
        async with SessionPool(size=1) as pool:
            for imported in tasks:
                reason = None
                if imported.is_runnable and imported.spec.kind != "page":
                    reason = await _trouble(pool, task_set, imported)
                made.append(imported if reason is None else imported.model_copy(update={"not_runnable": (reason,)}))
                progress.advance(bar)
    return made


async def _trouble(pool: Any, task_set: TaskSet, imported: ImportedTask) -> str | None:
    task = task_of(task_set, imported, Holdouts({}))
    try:
        async with asyncio.timeout(CHECK_LIMIT_S), pool.lease(task, screenshots=False) as session:
            await session.reset(task, 0)
            return "is solved before it begins" if (await session.evaluate()).success else None
    except (DeviceMissing, DesktopMissing) as error:
        return f"cannot be checked here: {error}"
    except (SandboxError, TaskError, TimeoutError) as error:
        return f"its setup fails: {str(error) or type(error).__name__}"[:300]


def _print_found(found: Collected, console: Console, *, verbose: bool) -> None:
    console.print(
        f"{counted(len(found.records), 'record')}: {counted(len(found.tasks), 'task')}, {found.num_runnable} of them run here, "
        f"{len(found.tasks) - found.num_runnable} not; {counted(found.num_duplicates, 'duplicate')}, {len(found.malformed)} malformed."
    )
    lacking = {
        "files, given with --assets": found.num_lacking("files"),
        "Debian packages": found.num_lacking("packages"),
        "both": found.num_lacking("files", "packages"),
    }
    if would := [f"{num} with {what}" for what, num in lacking.items() if num]:
        console.print(f"of those that do not, these would: {', '.join(would)}.", highlight=False)
    print_counts("does not run because it", "tasks", found.reasons, console, kept_in=MANIFEST)
    print_counts("mapped with a loss", "tasks", found.notes, console, kept_in=TASKS)
    print_counts("unknown field, kept with the record", "tasks", found.unknown_fields, console, kept_in=MANIFEST)
    print_reasons("malformed", found.malformed, console, kept_in=MANIFEST, show_all=verbose)
    if verbose:
        table = Table("task", "does not run because it")
        for task in found.tasks:
            if not task.is_runnable:
                table.add_row(escape(task.spec.name), escape("; ".join(task.not_runnable)))
        console.print(table)


def _print_holdouts(
    home: Home, name: str, tasks: Sequence[ImportedTask], before: TaskSet | None, console: Console, *, held_out: bool
) -> None:
    """What another set keeps this one from training on, what this one keeps others from, and what it does not hold out any more."""
    others = Holdouts.read(home, without=name)
    holders = {task.spec.name: others.holder(task.spec) for task in tasks if not task.held_out}
    for holder, num in sorted(Counter(filter(None, holders.values())).items()):
        console.print(f"held out here too, because the set {escape(holder)} holds them out: {num} tasks", highlight=False)
    until_now = Holdouts.of([] if before is None else [before])
    freed = sum(holders.get(task.spec.name, name) is None and until_now.holder(task.spec) is not None for task in tasks)
    if freed:
        console.print(f"[bold]held out until now, and trained on from here on: {freed} tasks[/]", highlight=False)
    mine = Holdouts.of([read_set(name, home)] if name in set_names(home) else [])
    for other in (read_set(each, home) for each in set_names(home) if each != name):
        if num := sum(not task.held_out and mine.holder(task.spec) is not None for task in other.tasks.values()):
            text = f"of the set {escape(other.name)} held out too, because this one holds them out: {num} tasks"
            console.print(f"{text}. What was learned from them stays learned", highlight=False)
    if held_out and (pages := sum(task.spec.kind == "page" for task in tasks)):
        console.print(f"not held out, because each split has seeds of them of its own: {pages} pages", highlight=False)


def _print_splits(home: Home, name: str, tasks: Sequence[ImportedTask], console: Console, *, held_out: bool, verbose: bool) -> None:
    """Which split each task that runs is in, and why: what is not trained on must not come as a surprise."""
    holdouts = Holdouts.read(home, without=name)
    found = [(task, _split_of(name, task, holdouts)) for task in tasks if task.is_runnable]
    if not found:
        return
    counts = Counter(split for _, split in found)
    text = ", ".join(f"{counts[split]} {split}" for split in (*Split, ALL_SPLITS) if counts[split])
    console.print(f"splits: {text}", highlight=False)
    table = slim_table()
    for heading in ("task", "split", "why"):
        table.add_column(heading, overflow="fold")
    for task, split in found[: None if verbose else ROWS_SHOWN]:
        table.add_row(escape(task.spec.name), split, escape(_why(task, holdouts, held_out=held_out)))
    console.print(table)
    if len(found) > ROWS_SHOWN and not verbose:
        console.print(f"{len(found) - ROWS_SHOWN} more: --verbose, or `flywheel import sets {escape(name)}`", highlight=False)
    if not counts[Split.TRAIN] and not counts[ALL_SPLITS]:
        text = "" if held_out else HOW_TO_TRAIN
        console.print(f"[bold]Nothing of this set is trained on[/]: its tasks are only evaluated on{text}", highlight=False)


def _split_of(name: str, task: ImportedTask, holdouts: Holdouts) -> str:
    """The split of a whole task, as sandbox/tasks/imported/source.py lists it."""
    if task.spec.kind == "page":
        return ALL_SPLITS
    is_held_out = task.held_out or holdouts.holder(task.spec) is not None
    return Task(source=SOURCE, name=f"{name}:{task.spec.name}", domain=task.spec.kind, max_steps=1, held_out=is_held_out).split(0)


def _why(task: ImportedTask, holdouts: Holdouts, *, held_out: bool) -> str:
    if task.spec.kind == "page":
        return "a page: each split has seeds of its own"
    if task.held_out:
        return f"never trained on: {'--held-out' if held_out else 'its hash is among the 20 % that are kept for evaluation'}"
    holder = holdouts.holder(task.spec)
    return "trained on" if holder is None else f"never trained on: the set {holder} holds it out"


def show_task_sets(home: Home, name: str | None, console: Console, *, as_json: bool) -> None:
    """Raises ConfigError for a set that is not there."""
    rows = _set_rows(home) if name is None else _task_rows(read_set(name, home), Holdouts.read(home))
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not rows:
        console.print("no task sets yet: `flywheel import tasks --help`")
        return
    print_rows([{heading.replace("_", " "): str(value) for heading, value in row.items()} for row in rows], console)


def _set_rows(home: Home) -> list[dict[str, Any]]:
    sets = [read_set(name, home) for name in set_names(home)]
    holdouts = Holdouts.read(home)
    return [
        {
            "name": each.name,
            "format": each.manifest.get("format", ""),
            "tasks": len(each.tasks),
            "runnable": sum(task.is_runnable for task in each.tasks.values()),
            "held_out": sum(bool(_held_out(task, holdouts)) for task in each.tasks.values()),
            "set_id": each.set_id,
        }
        for each in sets
    ]


def _held_out(task: ImportedTask, holdouts: Holdouts) -> str:
    """Whether a task is held out, and by which other set if not by its own; empty where it is trained on."""
    if task.spec.kind == "page":
        return ""
    holder = holdouts.holder(task.spec)
    return "yes" if task.held_out else "" if holder is None else f"by {holder}"


def _task_rows(task_set: TaskSet, holdouts: Holdouts) -> list[dict[str, Any]]:
    return [
        {
            "name": task.spec.name,
            "kind": task.spec.kind,
            "held_out": _held_out(task, holdouts),
            "split": _split_of(task_set.name, task, holdouts) if task.is_runnable else "",
            "runs": "yes" if task.is_runnable else "; ".join(task.not_runnable),
            "where": task.where,
            "instruction": task.spec.instruction,
        }
        for task in task_set.tasks.values()
    ]
