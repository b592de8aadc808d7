"""Tasks on an Android device: the task list and how an instance of a seed is made. What the tasks are is data: tasks.yaml; how they are
solved is oracles.py. No device is spoken to here.
"""

from __future__ import annotations

import random
import shlex
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.actions import Action
from sandbox.android.instance import AndroidInstance, AndroidStepContext, Check
from sandbox.tasks.android.oracles import ORACLES
from sandbox.tasks.reserved import unreserved
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import content_id

SOURCE = "android"
DOMAIN = "android"
VERSION = "1"

FIRST_NAMES = ("Ada", "Alan", "Barbara", "Claude", "Donald", "Edsger", "Frances", "Grace", "John", "Katherine", "Ken", "Margaret", "Radia")
LAST_NAMES = ("Abel", "Berg", "Castro", "Dubois", "Engel", "Fischer", "Garcia", "Haas", "Ito", "Jansen", "Kowalski", "Lind", "Moreau")
CONTACTS_URI = "content://com.android.contacts"
CONTACT_KINDS = {"name": "vnd.android.cursor.item/name", "phone": "vnd.android.cursor.item/phone_v2"}


class CheckEntry(BaseModel):
    """A check as tasks.yaml writes it: see Check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    expected: str
    is_part: bool = False
    is_rows: bool = False
    is_negated: bool = False


class TaskEntry(BaseModel):
    """One task's entry in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: Annotated[int, Field(ge=1, le=100)]
    instruction: str
    people: Annotated[tuple[int, ...], Field(description="which of the four people are in the device's contacts")] = ()
    choices: tuple[dict[str, str], ...] = ()
    checks: tuple[CheckEntry, ...]
    answer: str | None = None
    oracle: str
    route: tuple[str, ...] = ()
    turns: Annotated[Literal["on", "off"], Field(description="how the oracle leaves the switches on its route")] = "on"
    held_out: bool = False


class AndroidFile(TaskFile[TaskEntry]):
    """tasks.yaml as a whole."""

    packages: tuple[str, ...]


@cache
def task_file() -> AndroidFile:
    """The parsed tasks.yaml. Raises ConfigError where it is malformed or has an unknown name."""
    parsed = read_task_file("sandbox.tasks.android", AndroidFile)
    if unknown := sorted({entry.oracle for entry in parsed.tasks.values()} - set(ORACLES)):
        raise ConfigError(f"sandbox/tasks/android/tasks.yaml names unknown oracles: {', '.join(unknown)}; there are {sorted(ORACLES)}.")
    return parsed


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `settings`, `contacts`; None and `all` mean all. Raises ConfigError for another."""
    parsed = task_file()
    return {
        name: Task(source=SOURCE, name=name, domain=DOMAIN, max_steps=entry.max_steps, held_out=entry.held_out, version=VERSION)
        for name in parsed.members(group, "Android")
        for entry in [parsed.tasks[name]]
    }


def make_instance(task: Task, seed: int) -> AndroidInstance:
    """The instance of a seed. Raises TaskError for a task that is not this source's."""
    if task.source != SOURCE or task.name not in task_file().tasks:
        raise TaskError(
            f"Android cannot run task {task.source}/{task.name}: it has source {SOURCE!r} and the names in "
            "sandbox/tasks/android/tasks.yaml only."
        )
    return unreserved(SOURCE, task.name, seed, task.split(seed), partial(_drawn, task), _content_of)


def content(task: Task, seed: int) -> str:
    """Id of what a seed draws first, for the index of what is reserved."""
    return _content_of(_drawn(task, seed))


def _content_of(made: AndroidInstance) -> str:
    return content_id("content", [made.instruction, [*made.setup], [asdict(check) for check in made.checks]])


def _drawn(task: Task, seed: int) -> AndroidInstance:
    entry = task_file().tasks[task.name]
    words = _words(entry, random.Random(f"{task.name} {seed}"))
    contacts = [command for position, person in enumerate(entry.people, 1) for command in _insert_contact(position, person, words)]
    checks = [check.model_dump() | {"expected": check.expected.format(**words)} for check in entry.checks]
    route = tuple(target.format(**words) for target in entry.route)
    oracle = ORACLES[entry.oracle]

    def oracle_action(context: AndroidStepContext) -> Action | None:
        return oracle(context, words, route)

    return AndroidInstance(
        instruction=entry.instruction.format(**words),
        packages=task_file().packages,
        setup=tuple(contacts),
        checks=tuple(Check(**check) for check in checks),
        answer=entry.answer and entry.answer.format(**words),
        oracle_action=oracle_action,
    )


def _words(entry: TaskEntry, generator: random.Random) -> dict[str, str]:
    """Four people with different first and last names, and a row of the choices."""
    first, last = generator.sample(FIRST_NAMES, 4), generator.sample(LAST_NAMES, 4)
    numbers = generator.sample(range(100, 1000), 4)
    words = {"turns": entry.turns} | (generator.choice(entry.choices) if entry.choices else {})
    for number in range(4):
        words[f"name{number + 1}"] = f"{first[number]} {last[number]}"
        words[f"phone{number + 1}"] = f"555-0{numbers[number]}"
    return words


def _insert_contact(position: int, person: int, words: dict[str, str]) -> list[str]:
    """The provider counts from 1 after its data was cleared, so the id of the nth contact is n."""
    lines = [f"content insert --uri {CONTACTS_URI}/raw_contacts --bind account_type:n: --bind account_name:n:"]
    for kind, mimetype in CONTACT_KINDS.items():
        value = shlex.quote(f"data1:s:{words[f'{kind}{person}']}")
        owner = f"--bind raw_contact_id:i:{position} --bind mimetype:s:{mimetype}"
        lines.append(f"content insert --uri {CONTACTS_URI}/data {owner} --bind {value}")
    return lines


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="android",
    load_tasks=load_tasks,
    instance=make_instance,
    environment=f"{SOURCE} {VERSION}",
    description=lambda task: make_instance(task, first_seed(task)).instruction,
    contents=Path(__file__).with_name("contents.json"),
    content=content,
    licence="Apache-2.0; screens of the applications under their own licences",
    origin="tasks of this project on Android devices",
)
