"""The cheats of terminal tasks (test_cheats_terminal.py) once more, against goals of imported tasks that ask for the same: none is paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from sandbox.tasks.imported.sessions import TerminalGoal
from sandbox.tasks.imported.spec import Compare, FileContains, FileHolds, Getter, Goal, PathIs, Prints, Several
from sandbox.terminal import tasks as own
from tests.sandbox.test_cheats_terminal import CHEATS, GIT_SAYS, HONEST, OTHER, PYTHON_SAYS, SECRET, SLOW, assert_not_paid, paid

ALSO_CONTAINED = {"every answer at once", "zero bytes behind it", "bytes that are not text", "a mark that is not seen"}
"""Where a goal asks what a file contains, other things may stand beside it: these are not cheats of that one."""


def as_imported(goal: own.Goal, join: Literal["all", "any"], is_whole: bool) -> Goal | None:
    """What an imported task may ask in place of a goal of our own, in every way; None without one."""
    match goal:
        case own.Holds(path=path, text=text):
            value = Getter(value=f"{text}\n")
            by_program = Getter(command=("/bin/cat", "--", path)) if join == "all" else Getter(file=path)
            ways: list[Goal] = [
                FileHolds(kind="file_holds", path=path, text=text),
                Compare(function="compare_text_file", result=Getter(file=path), expected=value),
                Compare(function="exact_match", result=by_program, expected=Getter(value={"expected": f"{text}\n"})),
            ]
            if not is_whole:
                ways.append(FileContains(kind="file_contains", path=path, texts=(text,)))
            return Several(kind=join, goals=tuple(ways))
        case own.Prints(command=command, text=text):
            printed = Compare(function="exact_match", result=Getter(command=command), expected=Getter(value={"expected": f"{text}\n"}))
            return Several(kind=join, goals=(Prints(kind="prints", command=command, text=text), printed))
        case own.Executable(path=path):
            return PathIs(kind="executable", path=path)
        case own.Folder(path=path):
            return PathIs(kind="folder", path=path)
        case own.Absent(path=path):
            return PathIs(kind="absent", path=path)
    return None


def imported(goals: Sequence[own.Goal], join: Literal["all", "any"], is_whole: bool = False) -> list[own.Goal]:
    found = [as_imported(goal, join, is_whole) for goal in goals]
    return [TerminalGoal(goal=goal, assets=lambda digest: b"") for goal in found if goal is not None]


BROUGHT = {name: goals for name, (given, _) in CHEATS.items() if (goals := imported(given, "any", name in ALSO_CONTAINED))}


@pytest.mark.parametrize("name", [name for name in HONEST if imported(HONEST[name][0], "all")])
def test_what_was_asked_for_is_paid(name: str) -> None:
    goals, commands = HONEST[name]
    assert paid(imported(goals, "all"), *commands) == (1.0, ("every goal is met",))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in BROUGHT])
def test_a_cheat_is_not_paid(name: str) -> None:
    assert_not_paid(name, BROUGHT[name], CHEATS[name][1])


NO_FILES = {
    "a pipe": "mkfifo it",
    "a link that leads nowhere": "ln -s nowhere it",
    "a link to a file": "ln -s secret.txt it",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"it\")'",
}


def test_what_is_neither_a_file_nor_a_folder_is_none_of_them() -> None:
    """One verdict for each of them: all of what could be asked is told as a reason."""
    goals = [PathIs(kind=kind, path=f"{place}/it") for place in range(len(NO_FILES)) for kind in ("file", "executable", "folder", "absent")]
    commands = [f"(mkdir {place} && cd {place} && {command})" for place, command in enumerate(NO_FILES.values())]
    reward, reasons = paid([TerminalGoal(goal=goal, assets=lambda digest: b"") for goal in goals], *commands)
    assert reward == 0.0 and len(reasons) == len(goals), reasons


def test_the_home_of_a_command_is_the_workspace_and_that_of_its_programs_is_not() -> None:
    """`~` in a goal of an imported task means what it means to the agent; settings there mean nothing to the programs that it calls."""
    goals = [
        own.Prints(command="cat ~/secret.txt && cat $HOME/keep.txt", text=f"{SECRET}\n{OTHER}"),
        own.Prints(command="/usr/bin/python3 -c 'import os; print(os.environ[\"HOME\"])'", text="/nonexistent"),
        own.Prints(command=PYTHON_SAYS.command, text="42"),
        own.Prints(command=GIT_SAYS.command, text="First words"),
    ]
    assert paid(imported(goals, "all")) == (1.0, ("every goal is met",))
