"""The families of composed tasks: their names, levels, limits of steps and groups, and how an instance is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from sandbox.tasks.data.made import Made
from sandbox.tasks.data.questions import ask
from sandbox.tasks.supply import Refusal, draw
from sandbox.tasks.task import Task
from sandbox.tasks.terminal.generated.plain import orders, text_lines
from sandbox.tasks.terminal.generated.trees import rearrange

Draw = Callable[[Random], Made | Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    make: Draw
    max_steps: int


MAX_STEPS = {1: 6, 2: 8, 3: 12, 4: 15}

_LARGE = {
    f"{name}-{level}": Family(make=make(level), max_steps=MAX_STEPS[level])
    for name, make in {
        "tables": lambda level: partial(ask, formats=("csv", "text"), number=level),
        "logs": lambda level: partial(ask, formats=("log",), number=level),
        "records": lambda level: partial(ask, formats=("records", "list"), number=level),
        "trees": lambda level: partial(rearrange, level=level),
    }.items()
    for level in MAX_STEPS
}
_SMALL = {
    **{f"orders-{num}": Family(make=partial(orders, num=num), max_steps=2 + 2 * num) for num in (1, 2, 3)},
    **{f"lines-{num}": Family(make=partial(text_lines, num=num), max_steps=2 + 2 * num) for num in (1, 2)},
}
FAMILIES: Mapping[str, Family] = {**_LARGE, **_SMALL}
GROUPS: Mapping[str, tuple[str, ...]] = {"generated": tuple(_LARGE), "generated-small": tuple(_SMALL)}
"""generated: levels 1 to 4 of each subject; generated-small: one to three short commands, for policies that are still small."""


def composed(task: Task, seed: int) -> tuple[Made, dict[str, int]]:
    """An instance of a family, and how many candidates were refused before it, by reason. Raises TaskError."""
    return draw(task, seed, FAMILIES[task.name].make)
