"""The tasks of the source "terminal": their list and limits (tasks.yaml) and which function makes their instances; beside them the families
that are composed (generated/). What an instance is made of is tasks.py, what runs it session.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.supply import Facts
from sandbox.task import Task
from sandbox.terminal import kinds_files, kinds_long, kinds_small, kinds_work
from sandbox.terminal.generated.families import FAMILIES, GROUPS, composed
from sandbox.terminal.tasks import Instance, Maker, seeded
from warehouse.errors import ConfigError, TaskError

SOURCE = "terminal"
DOMAIN = "terminal"
VERSION = "1"
"""Of instances and verifiers: a change of either is another version."""

KINDS: Mapping[str, Maker] = {
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


class TaskEntry(BaseModel):
    """One task's line in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: Annotated[int, Field(ge=1, le=100)]
    held_out: bool = False


class TaskFile(BaseModel):
    """A tasks.yaml as a whole. The group `all` is every task of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: dict[str, tuple[str, ...]]
    tasks: dict[str, TaskEntry]

    def members(self, group: str | None, where: str) -> tuple[str, ...]:
        """Names of a group's tasks in file order; None means all. Raises ConfigError for an unknown group."""
        if group is None or group == "all":
            return tuple(self.tasks)
        if group not in self.groups:
            raise ConfigError(f"{where} has no task group {group!r}. Its groups: {', '.join([*self.groups, 'all'])}.")
        return self.groups[group]

    def load(self, group: str | None, *, source: str, domain: str, version: str) -> dict[str, Task]:
        """A group's tasks by name, in file order. Raises ConfigError for an unknown group."""
        return {
            name: Task(source=source, name=name, domain=domain, version=version, max_steps=entry.max_steps, held_out=entry.held_out)
            for name in self.members(group, f"The source {source}")
            for entry in [self.tasks[name]]
        }


def read_tasks(package: str, known: Mapping[str, object]) -> TaskFile:
    """The parsed tasks.yaml of a package. Raises ConfigError where it is malformed or names what nothing makes."""
    where = f"{package.replace('.', '/')}/tasks.yaml"
    try:
        parsed = TaskFile.model_validate(yaml.safe_load((resources.files(package) / "tasks.yaml").read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{where} is malformed: {error}") from error
    for group, names in parsed.groups.items():
        if unknown := sorted(set(names) - set(parsed.tasks)):
            raise ConfigError(f"Group {group!r} of {where} names tasks without an entry: {', '.join(unknown)}.")
    if strays := sorted(set(parsed.tasks) ^ set(known)):
        raise ConfigError(f"{where} and the functions that make its tasks do not fit together: {', '.join(strays)}.")
    return parsed


@cache
def task_file() -> TaskFile:
    return read_tasks("sandbox.terminal", KINDS)


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: those of tasks.yaml, `generated`, `generated-small`; `all`, the tasks of the file; None is
    these and the generated ones. Raises ConfigError for another."""
    composed_ones = {
        name: Task(source=SOURCE, name=name, domain=DOMAIN, version=VERSION, max_steps=FAMILIES[name].max_steps)
        for name in (FAMILIES if group is None else GROUPS.get(group, ()))
    }
    if group in GROUPS:
        return composed_ones
    return task_file().load(group, source=SOURCE, domain=DOMAIN, version=VERSION) | composed_ones


def facts(task: Task, seed: int) -> Facts | None:
    """Of a composed instance; None for a task of tasks.yaml. Raises TaskError for a task that is not this source's."""
    if task.source == SOURCE and task.name in FAMILIES:
        made, dropped = composed(task, seed)
        return made.facts(dropped)
    TerminalSource.check(task)
    return None


class TerminalSource:
    """Satisfies InstanceSource."""

    environment = f"terminal tasks {VERSION}"

    def instance(self, task: Task, seed: int) -> Instance:
        """Raises TaskError for a task that is not this source's."""
        self.check(task)
        return composed(task, seed)[0].instance if task.name in FAMILIES else KINDS[task.name](seeded(task, seed))

    @staticmethod
    def check(task: Task) -> None:
        if task.source != SOURCE or (task.name not in KINDS and task.name not in FAMILIES):
            known = ", ".join([*KINDS, *FAMILIES])
            raise TaskError(f"The terminal cannot run task {task.source}/{task.name}: its tasks are {known}.")


def terminal_tasks() -> dict[str, TerminalSource]:
    """The sources that a terminal session can run."""
    return {SOURCE: TerminalSource()}
