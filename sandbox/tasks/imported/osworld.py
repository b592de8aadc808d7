"""OSWorld's examples (evaluation_examples/examples/*/*.json) as desktop tasks: its setup steps and evaluators onto ours, and for what we
have nothing for, the reason.

Its machine is a Ubuntu with GNOME, a browser and an office; ours a small desktop without a network (sandbox/desktop). Both have their home
at /home/user, so paths hold as they are. Source of the format: Xie et al. 2024 (arXiv 2404.07972) and its public examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.actions import Action, Click, Hotkey, KeyDown, KeyUp, TypeText, Wait
from sandbox.desktop.apps import APPS, missing_packages
from sandbox.desktop.box import BoxSettings
from sandbox.importing.fields import Fields, slug
from sandbox.importing.pyautogui_calls import BadCode
from sandbox.importing.pyautogui_code import parse_code
from sandbox.tasks.imported.machine import DESKTOP_HOME, relative
from sandbox.tasks.imported.mapping import Files, Mapped, needs_packages
from sandbox.tasks.imported.osworld_checks import goals_of
from sandbox.tasks.imported.osworld_task import OsworldTask, split_words
from sandbox.tasks.imported.spec import SetupStep, TaskSpec

LAUNCHED_AS: Mapping[str, str] = {
    "gedit": "editor",
    "mousepad": "editor",
    "gnome-text-editor": "editor",
    "xed": "editor",
    "nautilus": "files",
    "pcmanfm": "files",
    "gnome-terminal": "terminal",
    "lxterminal": "terminal",
    "xterm": "xterm",
    "gnome-calculator": "calculator",
    "galculator": "calculator",
    "gnome-mines": "mines",
    "gnome-2048": "2048",
    "libreoffice": "calc",
    "soffice": "calc",
    "localc": "calc",
}
"""Programs that a record starts, and the application of ours that stands for each."""
OPENED_BY = {".txt": "editor", ".md": "editor", ".csv": "calc", ".xlsx": "calc", ".ods": "calc", ".xls": "calc"}
OFFICE_PARTS = {"--impress": "Impress", "--writer": "Writer", "--draw": "Draw", "--math": "Math", "--base": "Base"}
"""Options by which the office is started as another program than its spreadsheets."""
OFFICE_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Save/Document">
<prop oor:name="WarnAlienFormat" oor:op="fuse"><value>false</value></prop></item>
</oor:items>
"""
"""Of the office: a workbook is saved in the format that it has, without a question, as evaluators expect that save by Ctrl+S alone."""
OFFICE_SETTINGS_PATH = ".config/libreoffice/4/user/registrymodifications.xcu"
TERMINAL = APPS["terminal"].name
TERMINAL_KEYS = ("ctrl", "alt", "t")
"""They start a terminal on OSWorld's desktop; no keys do on ours."""
SCREEN_PX = (1920, 1080)
"""OSWorld's."""
PLACEHOLDERS = {
    "SCREEN_WIDTH_HALF": SCREEN_PX[0] // 2,
    "SCREEN_HEIGHT_HALF": SCREEN_PX[1] // 2,
    "SCREEN_WIDTH": SCREEN_PX[0],
    "SCREEN_HEIGHT": SCREEN_PX[1],
}
MIDDLE_PX = (BoxSettings().width_px // 2, BoxSettings().height_px // 2)
_ASIDE = ("snapshot", "trajectory", "related_apps", "proxy", "fixed_ip", "possibility_of_env_change", "comment", "hint", "env_may_change")


def map_osworld(record: Any, files: Files) -> Mapped:
    """Raises BadRecord for what is not an OSWorld example."""
    fields = Fields(record)
    task = OsworldTask(fields.take("id", str), files)
    instruction = fields.take("instruction", str)
    if "://" in instruction:
        task.refuse("asks for something of the network")
    source = fields.any("source")
    fields.keep_aside(*_ASIDE)
    setup = _steps(fields.take("config", list, []), "config", task)
    if not any(step.launch for step in setup):
        task.note("a terminal is started: a desktop here has no dock to start anything from")
        setup.append(SetupStep(launch=TERMINAL))
    goals, postconfig = goals_of(fields.take("evaluator", dict, {}), task)
    placed = dict(task.placed)
    before = _steps(postconfig, "evaluator.postconfig", task)
    if later := {path: digest for path, digest in task.placed.items() if placed.get(path) != digest}:
        before = [SetupStep(put=later), *before]
    spec = TaskSpec(
        name=slug(task.task_id),
        kind="desktop",
        instruction=instruction,
        assets=placed,
        files={OFFICE_SETTINGS_PATH: OFFICE_SETTINGS} if any(step.launch == "calc" for step in (*setup, *before)) else {},
        setup=tuple(setup),
        before_checks=tuple(before),
        goals=tuple(goals),
        source=f"OSWorld {task.task_id}" + (f", {source}" if source else ""),
    )
    if not goals and not task.reasons:
        task.refuse("has no evaluator that is understood")
    return Mapped(
        spec=spec,
        not_runnable=task.reasons,
        lacks=task.lacks,
        notes=task.notes,
        unknown=[*fields.unknown(), *task.unknown],
        assets=task.assets,
    )


def _steps(steps: Sequence[Any], where: str, task: OsworldTask) -> list[SetupStep]:
    made: list[SetupStep] = []
    for index, step in enumerate(steps):
        fields = Fields(step, f"{where}[]")
        kind = fields.take("type", str)
        parameters = Fields(fields.take("parameters", dict, {}), f"{where}[].{kind}")
        reader = _SETUP.get(kind)
        if reader is None:
            task.refuse(f"{where}: no such setup step here: {kind}")
        else:
            made += reader(parameters, task, index)
            task.unknown += parameters.unknown()
        task.unknown += fields.unknown()
    return made


def _placed(field: str) -> Callable[[Fields, OsworldTask, int], list[SetupStep]]:
    """Files that are put in place before the other steps: what an evaluator brings, not before the episode has ended."""

    def read(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
        for item in parameters.take("files", list):
            file = Fields(item, "files[]")
            address, path = file.take(field, str), file.take("path", str)
            inside = relative(path, DESKTOP_HOME)
            if inside is None:
                task.refuse("puts a file outside of the home folder")
            elif (digest := task.asset(address, path)) is not None:
                task.placed[inside] = digest
            task.unknown += file.unknown()
        return []

    return read


def _execute(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
    command, is_shell = parameters.any("command"), bool(parameters.any("shell"))
    for name in ("stdout", "stderr", "until"):
        if parameters.any(name):
            task.refuse(f"waits for or keeps the output of a command ({name})")
    if (typed := _typing(command, task)) is not None:
        return typed
    ready = task.command(command, is_shell=is_shell)
    return [] if ready is None else [SetupStep(command=ready, must_succeed=False)]


def _typing(command: Any, task: OsworldTask) -> list[SetupStep] | None:
    """Steps of a command that is a PyAutoGUI script; None for any other."""
    text = command[2] if isinstance(command, list) and len(command) == 3 and command[1] == "-c" else command
    if not isinstance(text, str) or "pyautogui" not in text:
        return None
    for name, value in PLACEHOLDERS.items():
        text = text.replace(f"{{{name}}}", str(value))
    try:
        actions = parse_code(text, SCREEN_PX).actions
    except BadCode as error:
        task.refuse(f"a PyAutoGUI script in it is not understood ({error})")
        return []
    if not all(isinstance(action, (Hotkey, TypeText, KeyDown, KeyUp, Wait)) or _is_middle(action) for action in actions):
        task.refuse("clicks at points of OSWorld's screen")
        return []
    return [_typed(action) for action in actions]


def _typed(action: Action) -> SetupStep:
    if isinstance(action, Wait):
        return SetupStep(wait=max(action.seconds, 0.01))
    is_terminal = isinstance(action, Hotkey) and action.keys == TERMINAL_KEYS
    return SetupStep(launch=TERMINAL) if is_terminal else SetupStep(act=(_here(action),))


def _is_middle(action: Action) -> bool:
    """A click in the middle of the screen, which OSWorld's scripts begin with to give what is there the focus."""
    return isinstance(action, Click) and (round(action.x), round(action.y)) == (SCREEN_PX[0] // 2, SCREEN_PX[1] // 2)


def _here(action: Action) -> Action:
    return action.model_copy(update={"x": MIDDLE_PX[0], "y": MIDDLE_PX[1]}) if isinstance(action, Click) else action


def _launch(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
    command = parameters.any("command")
    parameters.keep_aside("shell")
    words = command if isinstance(command, list) else split_words(command) if isinstance(command, str) else []
    if not words:
        task.note("a launch of nothing was left out")
        return []
    program = PurePosixPath(str(words[0])).name
    if program in ("pkill", "kill", "killall"):
        ready = task.command(words, is_shell=False)
        return [] if ready is None else [SetupStep(command=ready, must_succeed=False)]
    app = LAUNCHED_AS.get(program)
    if app is None:
        task.refuse(f"starts {program}, for which there is no application here")
        return []
    files = [word for word in map(str, words[1:]) if not word.startswith("-")]
    if other := [OFFICE_PARTS[word] for word in map(str, words) if word in OFFICE_PARTS and app == "calc"]:
        task.refuse(f"starts LibreOffice {other[0]}, for which there is no application here")
        return []
    if flags := [word for word in map(str, words[1:]) if word.startswith("-")]:
        task.note(f"options of {program} were left out: {' '.join(flags)}")
    return _opened(app, files, task)


def _open(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
    path = parameters.take("path", str)
    suffix = PurePosixPath(path).suffix.lower()
    app = OPENED_BY.get(suffix, "files" if not suffix else None)
    if app is None:
        task.refuse(f"opens a file of kind {suffix}, for which there is no application here")
        return []
    return _opened(app, [path], task)


def _opened(app: str, files: Sequence[str], task: OsworldTask) -> list[SetupStep]:
    inside = [relative(path, DESKTOP_HOME) for path in files]
    if None in inside:
        task.refuse("opens a file outside of the home folder")
        return []
    if lacking := missing_packages([app]):
        task.refuse(needs_packages(lacking), lacks="packages")
    return [SetupStep(launch=APPS[app].name, files=tuple(path for path in inside if path))]


def _sleep(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
    return [SetupStep(wait=min(60.0, max(0.01, parameters.take("seconds", float))))]


def _window(change: str) -> Callable[[Fields, OsworldTask, int], list[SetupStep]]:
    def read(parameters: Fields, task: OsworldTask, index: int) -> list[SetupStep]:
        name = parameters.take("window_name", str)
        parameters.keep_aside("strict", "by_class")
        return [SetupStep.model_validate({"window": name, "change": change})]

    return read


_SETUP: Mapping[str, Callable[[Fields, OsworldTask, int], list[SetupStep]]] = {
    "download": _placed("url"),
    "upload_file": _placed("local_path"),
    "execute": _execute,
    "command": _execute,
    "launch": _launch,
    "open": _open,
    "sleep": _sleep,
    "activate_window": _window("activate"),
    "close_window": _window("close"),
}
