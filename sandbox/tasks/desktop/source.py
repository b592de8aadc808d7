"""The desktop's task source: which tasks there are (tasks.yaml) and what makes an instance of each. No desktop is driven here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sandbox.desktop.instance import Instance
from sandbox.tasks.desktop import tasks_editor, tasks_files, tasks_large, tasks_windows
from sandbox.tasks.reserved import unreserved
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import TaskError
from warehouse.core.identity import content_id, stable_seed

SOURCE = "desktop"
DOMAIN = "desktop"
VERSION = "1"
"""Of instances, verifiers and what the desktop looks like; a change makes other tasks of them."""

FACTORIES: Mapping[str, Callable[[random.Random], Instance]] = {
    "dialog-press": tasks_windows.press_button,
    "dialog-enter": tasks_windows.enter_text,
    "dialog-check": tasks_windows.check_boxes,
    "dialog-choose": tasks_windows.choose_one,
    "window-close": tasks_windows.close_window,
    "window-maximise": tasks_windows.maximise_window,
    "terminal-command": tasks_windows.run_command,
    "editor-type": tasks_editor.type_text,
    "editor-replace": tasks_editor.replace_word,
    "editor-delete-line": tasks_editor.delete_line,
    "editor-save-as": tasks_editor.save_as,
    "editor-calculator": tasks_editor.compute_and_note,
    "files-new-folder": tasks_files.new_folder,
    "files-rename": tasks_files.rename,
    "files-delete": tasks_files.delete,
    "files-move": tasks_files.move,
    "game-2048": tasks_large.play_2048,
    "calc-cell": tasks_large.fill_cell,
    "calc-sum": tasks_large.sum_column,
    "notepad-type": tasks_large.type_in_notepad,
    "wine-close": tasks_large.close_windows_program,
}


class TaskEntry(BaseModel):
    """One task's line in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: Annotated[int, Field(ge=1, le=1000)]
    ends_when_solved: Annotated[bool, Field(description="the episode ends as soon as the verifier is content")] = False


@cache
def task_file() -> TaskFile[TaskEntry]:
    """The parsed tasks.yaml. Raises ConfigError where it is malformed or names a task that it or FACTORIES does not hold."""
    return read_task_file("sandbox.tasks.desktop", TaskFile[TaskEntry], FACTORIES)


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `small`, `light`; None and `all` mean all. Raises ConfigError for another."""
    entries = task_file()
    return {
        name: Task(source=SOURCE, name=name, domain=DOMAIN, max_steps=entries.tasks[name].max_steps, version=VERSION)
        for name in entries.members(group, "The desktop")
    }


def _checked(task: Task) -> Task:
    if task.source != SOURCE or task.name not in FACTORIES:
        raise TaskError(
            f"A desktop cannot run task {task.source}/{task.name}: it has source {SOURCE!r}, names in sandbox/tasks/desktop/tasks.yaml."
        )
    return task


def make_instance(task: Task, seed: int) -> Instance:
    """The same for the same task and seed, everywhere. Raises TaskError for a task that is not of this source."""
    made = unreserved(SOURCE, _checked(task).name, seed, task.split(seed), partial(_drawn, task), _content_of)
    return replace(made, ends_when_solved=task_file().tasks[task.name].ends_when_solved)


def content(task: Task, seed: int) -> str:
    """Id of what a seed draws first, for the index of what is reserved."""
    return _content_of(_drawn(task, seed))


def _drawn(task: Task, seed: int) -> Instance:
    return FACTORIES[task.name](random.Random(stable_seed(SOURCE, task.name, seed)))


def _content_of(made: Instance) -> str:
    files = {str(path): data.decode("latin-1") for path, data in made.files.items()}
    launched = [[launch.app, *map(str, launch.files)] for launch in made.launches]
    return content_id("content", [made.instruction, files, launched])


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="desktop",
    load_tasks=load_tasks,
    instance=make_instance,
    environment=f"{SOURCE} {VERSION}",
    description=lambda task: make_instance(task, first_seed(task)).instruction,
    contents=Path(__file__).with_name("contents.json"),
    content=content,
    licence="Apache-2.0; screens of the applications under their own licences",
    origin="tasks of this project, generated, in applications of Debian",
)
