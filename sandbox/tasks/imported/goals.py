"""Whether a goal of a task holds on a machine, and why not. What goals there are is spec.py, what a machine is machine.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sandbox.tasks.imported.comparing import compared
from sandbox.tasks.imported.machine import Machine
from sandbox.tasks.imported.metrics import Result
from sandbox.tasks.imported.spec import (
    Answers,
    Compare,
    DeviceSays,
    FileContains,
    FileHolds,
    Getter,
    GivesUp,
    Goal,
    Not,
    PathIs,
    Prints,
    Several,
)
from warehouse.core.errors import TaskError

Assets = Callable[[str], bytes]
"""From a file's digest to what it holds."""


async def unmet(goal: Goal, machine: Machine, assets: Assets) -> str | None:
    """Why a goal does not hold; None where it does. Raises TaskError for one that is checked elsewhere (an answer, giving up, a device)."""
    match goal:
        case FileHolds(path=path, text=text):
            found = await machine.read(path)
            if found is None:
                return f"{path} is not there as a file"
            same = found.decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n") == text.rstrip("\n")
            return None if same else f"{path} holds something else"
        case FileContains(path=path, texts=texts):
            found = await machine.read(path)
            if found is None:
                return f"{path} is not there as a file"
            missing = [text for text in texts if text not in found.decode("utf-8", "replace")]
            return f"{path} lacks {', '.join(map(repr, missing))}" if missing else None
        case PathIs(kind=kind, path=path):
            there = await machine.path_kind(path)
            is_so = there == kind or (kind == "file" and there == "executable")
            return None if is_so else f"{path} is {there}, not {kind}"
        case Prints(command=command, text=text):
            code, output, _ = await machine.run(command)
            if code != 0:
                return f"`{command}` fails"
            return None if output.rstrip("\n") == text.rstrip("\n") else f"`{command}` prints something else"
        case Compare():
            return await _compared(goal, machine, assets)
        case Several(kind="all", goals=goals):
            return "; ".join(await _reasons(goals, machine, assets)) or None
        case Several(goals=goals):
            reasons = await _reasons(goals, machine, assets)
            return " and ".join(reasons) if len(reasons) == len(goals) else None
        case Not(goal=inner):
            return None if await unmet(inner, machine, assets) is not None else f"what should not be is so ({inner.kind})"
        case Answers() | DeviceSays() | GivesUp():
            raise TaskError(f"a goal of kind {goal.kind!r} cannot be checked on this machine: see docs/importing.md for what each kind has")


async def _reasons(goals: Sequence[Goal], machine: Machine, assets: Assets) -> list[str]:
    return [reason for goal in goals if (reason := await unmet(goal, machine, assets)) is not None]


async def _compared(goal: Compare, machine: Machine, assets: Assets) -> str | None:
    what = goal.result.file or goal.function
    value = await _value(goal.result, machine, assets)
    if value is None:
        return f"{what} is not there"
    expected = None if goal.expected is None else await _value(goal.expected, machine, assets)
    reason = await compared(goal.function, value, expected, goal.options)
    return None if reason is None else f"{what} {reason}"


async def _value(getter: Getter, machine: Machine, assets: Assets) -> Result:
    if getter.file is not None:
        return await machine.read(getter.file)
    if getter.asset is not None:
        return assets(getter.asset)
    if getter.command is not None:
        return (await machine.run(getter.command))[1]
    if getter.errors_of is not None:
        return (await machine.run(getter.errors_of))[2]
    if getter.shown_by is not None:
        return await machine.shown()
    result: Result = getter.value
    return result
