"""Tasks in programs that take long to start or to be done with: LibreOffice Calc, a game, a Windows program."""

from __future__ import annotations

import random
import re
from pathlib import PurePosixPath

from sandbox.actions import Action, TypeText
from sandbox.desktop.desktop import Desktop
from sandbox.desktop.instance import DesktopStepContext, Instance, Launch, Verify, click, frame_button, press, raise_window
from sandbox.tasks.desktop.tasks_editor import file_holds
from sandbox.tasks.desktop.words import NOUNS

SHEET = PurePosixPath("table.csv")
SAVED_GAME = PurePosixPath(".local/share/gnome-2048/saved")
TEXT = PurePosixPath("text.txt")


def fill_cell(rng: random.Random) -> Instance:
    """A table is open in Calc; one cell gets another value."""
    rows = [[noun, str(rng.randint(2, 99))] for noun in rng.sample(NOUNS, 4)]
    row, value = rng.randrange(len(rows)), str(rng.randint(100, 999))
    wanted = [[name, value if n == row else number] for n, (name, number) in enumerate(rows)]
    return _sheet(f"Write {value} into the cell B{row + 1} of the table and save it as CSV.", rows, wanted, f"B{row + 1}", value)


def sum_column(rng: random.Random) -> Instance:
    """A table is open in Calc; the sum of a column goes below it."""
    rows = [[noun, str(rng.randint(2, 99))] for noun in rng.sample(NOUNS, rng.randint(3, 6))]
    total = str(sum(int(number) for _, number in rows))
    cell = f"B{len(rows) + 1}"
    instruction = f"Write the sum of the column B into the cell {cell} of the table and save it as CSV."
    return _sheet(instruction, rows, [*rows, ["", total]], cell, f"=SUM(B1:B{len(rows)})")


def _sheet(instruction: str, rows: list[list[str]], wanted: list[list[str]], cell: str, entry: str) -> Instance:
    """`entry` is what is typed into a cell; what it then shows is in `wanted`."""
    shown = f"{cell} {wanted[int(cell[1:]) - 1][1]}"

    def oracle(context: DesktopStepContext) -> Action | None:
        main = context.window(r"table\.csv.*Calc$")
        if main is None:
            return None
        if context.top != main:  # a question about the format, whose first answer keeps CSV, or a tip
            return press("enter") if press("ctrl", "s") in context.actions else press("escape")
        target = next((item for item in context.all("item", main) if item.text.split()[:1] == [cell]), None)
        if target is None:
            return press("escape")
        if target.text == shown:
            return press("ctrl", "s")
        return TypeText(text=entry + "\n") if "focused" in target.states else click(target)

    return Instance(
        instruction=instruction,
        files={SHEET: "".join(",".join(row) + "\n" for row in rows).encode()},
        launches=(Launch(app="calc", files=(SHEET,)),),
        verify=file_holds(SHEET, "\n".join(",".join(row) for row in wanted)),
        oracle=oracle,
    )


def play_2048(rng: random.Random) -> Instance:
    """The game writes its state down when its window closes; it deals by chance of its own, so screens differ from run to run."""
    goal = rng.choice((16, 32, 64))

    def oracle(context: DesktopStepContext) -> Action | None:
        game = next((window for window in context.windows if window.window_class == "Gnome-2048"), None)
        if game is None:
            return None
        if context.top != game:
            return raise_window(context, game)
        scores = [int(text.text) for text in context.all("text", game) if text.text.isdecimal()]
        if scores and max(scores) >= goal:
            return press("alt", "f4")
        keys = ("left", "down", "left", "down", "right", "up")
        return press(keys[len(context.actions) % len(keys)])

    return Instance(
        instruction=f"Play 2048 until the score is {goal} or more, then close its window.",
        launches=(Launch(app="2048"),),
        verify=_has_score(goal),
        oracle=oracle,
    )


def _has_score(goal: int) -> Verify:
    """The saved game: rows of numbers, the score on a line of its own."""

    async def verify(desktop: Desktop) -> list[str]:
        saved = await desktop.get_file(SAVED_GAME)
        if saved is None:
            return ["no game was saved: the window was not closed"]
        scores = [int(line) for line in re.findall(r"^\s*(\d+)\s*$", saved.decode("utf-8", "replace"), flags=re.MULTILINE)]
        return [] if scores and max(scores) >= goal else [f"the saved game has the score {max(scores, default=0)} and not {goal}"]

    return verify


def type_in_notepad(rng: random.Random) -> Instance:
    """Wine's Notepad; its window has no accessibility tree."""
    text = " ".join(rng.sample(NOUNS, 3))

    def oracle(context: DesktopStepContext) -> Action | None:
        notepad = context.window(r"Notepad$")
        if notepad is None:
            return None
        if context.top != notepad:
            return raise_window(context, notepad)
        typed = TypeText(text=text)
        if typed in context.actions:
            return press("ctrl", "s")
        return typed if press("ctrl", "a") in context.actions else press("ctrl", "a")

    return Instance(
        instruction=f'Type "{text}" in Notepad and save the file.',
        files={TEXT: b""},
        launches=(Launch(app="notepad", files=(TEXT,)),),
        verify=file_holds(TEXT, text),
        oracle=oracle,
    )


def close_windows_program(rng: random.Random) -> Instance:
    """Wine's Notepad and, before it, the smaller WineMine are open; one is to be closed, the other to stay."""
    name = PurePosixPath(f"{rng.choice(NOUNS)}.txt")
    classes = {"notepad.exe": f"{name} - Notepad", "winemine.exe": "WineMine"}
    wanted = rng.choice(list(classes))
    kept = next(window_class for window_class in classes if window_class != wanted)

    async def verify(desktop: Desktop) -> list[str]:
        left = sorted(window.window_class.lower() for window in await desktop.windows())
        return [] if left == [kept] else [f"windows of {left} are open and not only of {kept}"]

    def oracle(context: DesktopStepContext) -> Action | None:
        found = {window.window_class.lower(): window for window in context.windows}
        if kept not in found or wanted not in found:
            return None
        if context.top == found[wanted]:
            return click(frame_button(context, found[wanted], "close"))
        if context.top is not None and context.find("header", found[wanted].title) is None:
            return click(frame_button(context, context.top, "minimise"))  # it covers the other, which Alt+Tab leaves out
        return raise_window(context, found[wanted])

    return Instance(
        instruction=f'Close the window "{classes[wanted]}" and leave the other one open.',
        files={name: b""},
        launches=(Launch(app="notepad", files=(name,)), Launch(app="winemine")),
        verify=verify,
        oracle=oracle,
    )
