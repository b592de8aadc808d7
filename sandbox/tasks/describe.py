"""What a task asks for, in a line, without a session: its source's description, else the instruction of its first instance."""

from __future__ import annotations

from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task, first_seed


def describe(task: Task) -> str:
    """Empty where its source has nothing to say. Instances are of the `train` split, for held-out tasks of `eval`: never of what is only
    reported."""
    if task.source not in SOURCES:
        return ""
    source = SOURCES[task.source]
    if source.description is not None:
        return " ".join(source.description(task).split())
    facts = source.facts(task, first_seed(task))
    return "" if facts is None else " ".join(facts.instruction.split())
