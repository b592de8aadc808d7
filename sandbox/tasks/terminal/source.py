"""The tasks of the source "terminal": their list and limits (tasks.yaml) and which function makes their instances; beside them the families
that are composed (generated/). What an instance is made of is tasks.py, what runs it session.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from sandbox.tasks.reserved import unreserved
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskEntry, TaskFile, load_plain, read_task_file
from sandbox.tasks.task_source import TaskSource
from sandbox.tasks.terminal import kinds_files, kinds_long, kinds_small, kinds_work
from sandbox.tasks.terminal.generated.families import FAMILIES, GROUPS, composed
from sandbox.terminal.tasks import Instance, InstanceFactory, seeded
from warehouse.core.errors import TaskError

SOURCE = "terminal"
DOMAIN = "terminal"
VERSION = "1"
"""Of instances and verifiers: a change of either is another version."""

KINDS: Mapping[str, InstanceFactory] = {
    "write-word": kinds_small.write_word,
    "append-word": kinds_small.append_word,
    "make-folder": kinds_small.make_folder,
    "copy-file": kinds_small.copy_file,
    "rename-file": kinds_small.rename_file,
    "delete-file": kinds_small.delete_file,
    "move-into-folder": kinds_small.move_into_folder,
    "allow-running": kinds_small.allow_running,
    "read-word": kinds_small.read_word,
    "pass-word-on": kinds_small.pass_word_on,
    "count-lines": kinds_small.count_lines,
    "name-the-file": kinds_small.name_the_file,
    "count-matching": kinds_files.count_matching,
    "sum-column": kinds_files.sum_column,
    "gather-files": kinds_files.gather_files,
    "rename-by-pattern": kinds_files.rename_by_pattern,
    "sort-unique": kinds_files.sort_unique,
    "pack-folder": kinds_files.pack_folder,
    "unpack-and-find": kinds_files.unpack_and_find,
    "set-permissions": kinds_files.set_permissions,
    "compare-lists": kinds_files.compare_lists,
    "edit-passage": kinds_files.edit_passage,
    "look-up": kinds_files.look_up,
    "fix-script": kinds_work.fix_script,
    "fix-settings": kinds_work.fix_settings,
    "commit-change": kinds_work.commit_change,
    "recover-version": kinds_work.recover_version,
    "run-service": kinds_work.run_service,
    "repair-service": kinds_work.repair_service,
    "write-program": kinds_work.write_program,
    "words-said-once": kinds_long.words_said_once,
    "first-word-said": kinds_long.first_word_said,
    "vanishing-notes": kinds_long.vanishing_notes,
    "treasure-hunt": kinds_long.treasure_hunt,
    "town-report": kinds_long.town_report,
    "release": kinds_long.release,
    "settle-accounts": kinds_long.settle_accounts,
}


@cache
def task_file() -> TaskFile[TaskEntry]:
    return read_task_file("sandbox.tasks.terminal", TaskFile[TaskEntry], KINDS)


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: those of tasks.yaml, `generated`, `generated-small`; `all`, the tasks of the file; None is
    these and the generated ones. Raises ConfigError for another."""
    return load_plain(task_file(), group, source=SOURCE, domain=DOMAIN, version=VERSION, families=FAMILIES, family_groups=GROUPS)


def facts(task: Task, seed: int) -> Facts | None:
    """Of a composed instance; None for a task of tasks.yaml. Raises TaskError for a task that is not this source's."""
    if task.source == SOURCE and task.name in FAMILIES:
        made, dropped = composed(task, seed)
        return made.facts(dropped)
    _check(task)
    return None


def content(task: Task, seed: int) -> str:
    """Id of what a seed draws first, for the index of what is reserved."""
    return _drawn(task, seed).content


def _drawn(task: Task, seed: int) -> Instance:
    return KINDS[task.name](seeded(task, seed))


def terminal_instance(task: Task, seed: int) -> Instance:
    """Raises TaskError for a task that is not this source's."""
    _check(task)
    if task.name in FAMILIES:
        return composed(task, seed)[0].instance
    return unreserved(task.source, task.name, seed, task.split(seed), partial(_drawn, task), lambda made: made.content)


def _check(task: Task) -> None:
    if task.source != SOURCE or (task.name not in KINDS and task.name not in FAMILIES):
        known = ", ".join([*KINDS, *FAMILIES])
        raise TaskError(f"The terminal cannot run task {task.source}/{task.name}: its tasks are {known}.")


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="terminal",
    load_tasks=load_tasks,
    instance=terminal_instance,
    environment=f"terminal tasks {VERSION}",
    facts=facts,
    description=lambda task: terminal_instance(task, first_seed(task)).instruction,
    contents=Path(__file__).with_name("contents.json"),
    content=content,
    licence="Apache-2.0",
    origin="terminal tasks of this project, generated",
)
