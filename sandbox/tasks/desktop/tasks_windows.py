"""Tasks with dialogs, windows and the terminal: one thing to do, by a few clicks or one line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.actions import Action, TypeText
from sandbox.desktop.desktop import Desktop
from sandbox.desktop.instance import DesktopStepContext, Instance, Launch, Oracle, Verify, click, frame_button, press, raise_window
from sandbox.tasks.desktop.tasks_editor import file_holds
from sandbox.tasks.desktop.tasks_files import tree_is
from sandbox.tasks.desktop.words import BUTTONS, COLOURS, NOUNS, file_name

FORM = PurePosixPath(".form.json")
ANSWER = PurePosixPath(".form.json.answer")
TITLES = ("Letters", "Orders", "Travel", "Music", "Garden", "Kitchen", "Weather", "Library")


def press_button(rng: random.Random) -> Instance:
    buttons = rng.sample(BUTTONS, rng.randint(2, 4))
    wanted = rng.choice(buttons)
    form = {"question": rng.choice(("Go on?", "What now?", "Are you sure?")), "buttons": buttons}
    return _form(rng, f'Press "{wanted}" in the dialog.', form, {"button": wanted}, lambda context: click(context.find("button", wanted)))


def enter_text(rng: random.Random) -> Instance:
    text = " ".join(rng.sample(NOUNS, rng.randint(1, 2)))
    form = {"question": "Please answer.", "entries": ["Name:"], "buttons": ["Cancel", "Ok"]}

    def oracle(context: DesktopStepContext) -> Action | None:
        field = context.find("input")
        if field is None or field.text == text:
            return click(context.find("button", "Ok"))
        if "focused" not in field.states:
            return click(field)
        return TypeText(text=text) if not field.text or "selected" in field.states else press("ctrl", "a")

    return _form(rng, f'Enter "{text}" into the dialog and press "Ok".', form, {"button": "Ok", "entries": [text]}, oracle)


def check_boxes(rng: random.Random) -> Instance:
    labels = rng.sample(NOUNS, rng.randint(3, 5))
    wanted = [label for label in labels if rng.random() < 0.5] or labels[:1]
    form = {"question": "Which of these?", "checks": labels, "buttons": ["Cancel", "Ok"]}

    def oracle(context: DesktopStepContext) -> Action | None:
        boxes = {box.text: box for box in context.all("checkbox")}
        wrong = [label for label in labels if label in boxes and ("checked" in boxes[label].states) != (label in wanted)]
        return click(boxes[wrong[0]] if wrong else context.find("button", "Ok"))

    names = " and ".join(f'"{label}"' for label in wanted)
    return _form(rng, f'Check {names} in the dialog, nothing else, and press "Ok".', form, {"button": "Ok", "checks": wanted}, oracle)


def choose_one(rng: random.Random) -> Instance:
    labels = rng.sample(COLOURS, rng.randint(3, 5))
    wanted = rng.choice(labels[1:])
    form = {"question": "Which colour?", "radios": labels, "buttons": ["Cancel", "Ok"]}

    def oracle(context: DesktopStepContext) -> Action | None:
        radio = context.find("radio", wanted)
        return click(context.find("button", "Ok") if radio is None or "checked" in radio.states else radio)

    return _form(rng, f'Choose "{wanted}" in the dialog and press "Ok".', form, {"button": "Ok", "radio": wanted}, oracle)


def close_window(rng: random.Random) -> Instance:
    """Two dialogs are open; one is to be closed by its frame, without an answer."""
    titles = rng.sample(TITLES, 2)
    wanted = rng.choice(titles)

    async def verify(desktop: Desktop) -> list[str]:
        open_titles = sorted(window.title for window in await desktop.windows())
        left = sorted(set(titles) - {wanted})
        return [] if open_titles == left else [f"open windows are {open_titles} and not {left}"]

    def oracle(context: DesktopStepContext) -> Action | None:
        window = context.window(f"^{wanted}$")
        if window is None or context.window(f"^(?!{wanted})") is None:
            return None
        return click(frame_button(context, window, "close")) if window == context.top else raise_window(context, window)

    return _windows(f'Close the window "{wanted}".', titles, verify, oracle)


def maximise_window(rng: random.Random) -> Instance:
    """Two dialogs are open; one is to fill the screen."""
    titles = rng.sample(TITLES, 2)
    wanted = rng.choice(titles)

    async def verify(desktop: Desktop) -> list[str]:
        maximised = [window.title for window in await desktop.windows() if window.is_maximised]
        return [] if maximised == [wanted] else [f"maximised are {maximised} and not only {wanted!r}"]

    def oracle(context: DesktopStepContext) -> Action | None:
        wrong = next((window for window in context.windows if window.is_maximised and window.title != wanted), None)
        window = wrong or context.window(f"^{wanted}$")
        if window is None:
            return None
        return click(frame_button(context, window, "maximise")) if window == context.top else raise_window(context, window)

    return _windows(f'Maximise the window "{wanted}".', titles, verify, oracle)


def run_command(rng: random.Random) -> Instance:
    """One line in a terminal whose text is among the elements."""
    word, name = rng.choice(NOUNS), file_name(rng)
    command = rng.choice((f"echo {word} > {name}", f"touch {name}", f"mkdir {word}"))
    verify = {"echo": file_holds(PurePosixPath(name), word), "touch": tree_is({PurePosixPath(name): b""}), "mkdir": tree_is({}, [word])}[
        command.split()[0]
    ]

    def oracle(context: DesktopStepContext) -> Action | None:
        terminal = context.find("textarea")
        if terminal is None:
            return None
        if "focused" not in terminal.states:
            return click(terminal)
        line = terminal.text.splitlines()[-1] if terminal.text else ""
        return TypeText(text=command + "\n") if line.strip() == "$" else press("ctrl", "c")

    return Instance(instruction=f'Run "{command}" in the terminal.', launches=(Launch(app="terminal"),), verify=verify, oracle=oracle)


def _form(rng: random.Random, instruction: str, form: Mapping[str, Any], answer: Mapping[str, Any], oracle: Oracle) -> Instance:
    """A dialog to be answered; what `answer` does not name does not matter."""

    async def verify(desktop: Desktop) -> list[str]:
        written = await desktop.get_file(ANSWER)
        if written is None:
            return ["the dialog was not answered"]
        try:
            given = dict(json.loads(written))
        except (ValueError, TypeError):  # somebody else wrote it
            return [f"the dialog's answer is not one: {written[:200]!r}"]
        return [f"{name} is {given.get(name)!r} and not {value!r}" for name, value in answer.items() if given.get(name) != value]

    return Instance(
        instruction=instruction,
        files={FORM: json.dumps({"title": rng.choice(TITLES), **form}).encode()},
        launches=(Launch(app="form", files=(FORM,)),),
        opens_apps=False,
        verify=verify,
        oracle=oracle,
    )


def _windows(instruction: str, titles: Sequence[str], verify: Verify, oracle: Oracle) -> Instance:
    """Dialogs side by side."""
    forms = {PurePosixPath(f".form-{n}.json"): {"title": title, "question": title, "buttons": ["Ok"]} for n, title in enumerate(titles)}
    return Instance(
        instruction=instruction,
        files={path: json.dumps(form).encode() for path, form in forms.items()},
        launches=tuple(Launch(app="form", files=(path,)) for path in forms),
        verify=verify,
        oracle=oracle,
    )
