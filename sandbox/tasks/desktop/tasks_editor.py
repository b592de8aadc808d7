"""Tasks in the text editor (Mousepad), with and without other programs beside it."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

from sandbox.actions import Action, TypeText
from sandbox.desktop.desktop import Desktop
from sandbox.desktop.instance import DesktopStepContext, Instance, Launch, Verify, click, press, raise_window
from sandbox.tasks.desktop.words import COLOURS, NOUNS, file_name

NOTE = PurePosixPath("note.txt")


def type_text(rng: random.Random) -> Instance:
    """An empty file is open; type a few words and save."""
    text = " ".join(rng.sample(NOUNS, rng.randint(1, 3)))
    return _editing(f'Type "{text}" in the editor and save the file.', b"", text)


def replace_word(rng: random.Random) -> Instance:
    old, new = rng.sample(COLOURS, 2)
    first, second = rng.sample(NOUNS, 2)
    text = f"the {first} is {old} and the {second} is small"
    return _editing(f'Replace the word "{old}" by "{new}" in the editor and save the file.', text.encode(), text.replace(old, new))


def delete_line(rng: random.Random) -> Instance:
    lines = rng.sample(NOUNS, 4)
    gone = rng.choice(lines)
    wanted = "\n".join(line for line in lines if line != gone)
    return _editing(f'Delete the line "{gone}" in the editor and save the file.', "\n".join(lines).encode(), wanted)


def save_as(rng: random.Random) -> Instance:
    """Save what is open under another name, by the file dialog."""
    text, name = " ".join(rng.sample(NOUNS, 3)), file_name(rng)

    def oracle(context: DesktopStepContext) -> Action | None:
        dialog = context.window(r"^Save As$")
        if dialog is None:
            return press("ctrl", "shift", "s")
        if dialog != context.top:
            return raise_window(context, dialog)
        field = next((field for field in context.all("input", dialog) if "focused" in field.states), None)
        if field is None:
            return click(context.find("input", within=dialog))
        if field.text == name:
            return press("enter")
        return TypeText(text=name) if not field.text or "selected" in field.states else press("ctrl", "a")

    return Instance(
        instruction=f'Save the file in the editor under the name "{name}".',
        files={NOTE: text.encode()},
        launches=(Launch(app="editor", files=(NOTE,)),),
        verify=file_holds(PurePosixPath(name), text),
        oracle=oracle,
    )


def compute_and_note(rng: random.Random) -> Instance:
    """The calculator and the editor: carry a result over."""
    first, second = rng.randint(12, 99), rng.randint(12, 99)

    computing = TypeText(text=f"{first}*{second}\n")

    def oracle(context: DesktopStepContext) -> Action | None:
        if computing in context.actions:
            return write_and_save(context, NOTE.name, str(first * second))
        calculator = context.window(r"^galculator$")
        if calculator is None:
            return None
        if context.top != calculator:
            return raise_window(context, calculator)
        display = context.find("textarea", within=calculator)
        return computing if display is not None and display.text.strip() == "0" else press("escape")

    return Instance(
        instruction=f"Compute {first} * {second} with the calculator. Write the result in the editor and save the file.",
        files={NOTE: b""},
        launches=(Launch(app="editor", files=(NOTE,)), Launch(app="calculator")),
        verify=file_holds(NOTE, str(first * second)),
        oracle=oracle,
    )


def _editing(instruction: str, before: bytes, after: str) -> Instance:
    return Instance(
        instruction=instruction,
        files={NOTE: before},
        launches=(Launch(app="editor", files=(NOTE,)),),
        verify=file_holds(NOTE, after),
        oracle=lambda context: write_and_save(context, NOTE.name, after),
    )


def file_holds(path: PurePosixPath, text: str) -> Verify:
    """That a file has exactly this text; newlines at its end, and how lines end, do not count."""

    async def verify(desktop: Desktop) -> list[str]:
        content = await desktop.get_file(path)
        if content is None:
            return [f"there is no file {path}"]
        found = content.decode("utf-8", "replace").replace("\r\n", "\n").rstrip("\n")
        return [] if found == text else [f"{path} holds {found[:200]!r} and not {text!r}"]

    return verify


def write_and_save(context: DesktopStepContext, name: str, wanted: str) -> Action | None:
    """The next move towards the editor's file holding a text. None where the editor is gone."""
    editor = context.window(rf"{name} - Mousepad$")
    if editor is None:
        return None
    if context.top != editor:
        return press("escape") if context.top and context.top.window_class == editor.window_class else raise_window(context, editor)
    area = context.find("textarea", within=editor)
    if area is None:  # a menu or a search bar covers it
        return press("escape")
    if area.text == wanted:
        return press("ctrl", "s")
    if "focused" not in area.states:
        return click(area)
    return TypeText(text=wanted) if not area.text or "selected" in area.states else press("ctrl", "a")
