"""AndroidWorld-style task templates as android tasks: a goal with parameters, apps, what is set up, what a command on the device must say.

AndroidWorld's own list (android_world/task_metadata.json) says no checks: those are Python there. For the tasks that commands can check as
its Python does, on apps that Android brings, the checks are here; of the others only what they ask is kept. Source of the format: Rawles
et al. 2024 (arXiv 2405.14573).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from sandbox.importing.fields import BadRecord, Fields, listed, slug
from sandbox.tasks.imported.mapping import Files, Mapped
from sandbox.tasks.imported.metrics import text_of
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.spec import Answers, DeviceSays, TaskSpec
from warehouse.core.identity import stable_seed

MAX_ROWS = 64
"""Of the combinations of parameter values so many are kept, drawn by the task's name."""
STEPS_PER_COMPLEXITY = 10
PACKAGES: Mapping[str, str] = {
    "settings": "com.android.settings",
    "contacts": "com.android.contacts",
    "clock": "com.android.deskclock",
    "camera": "com.android.camera2",
    "dialer": "com.android.dialer",
    "phone": "com.android.dialer",
    "files": "com.android.documentsui",
    "calendar": "com.android.calendar",
    "chrome": "com.android.chrome",
}
STORAGE = "/storage/emulated/0"
Rows = tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A task of AndroidWorld's whose check is here. `rows` are its parameters where the record gives none; `derived` adds to a row what
    checks want of it, and raises BadRecord."""

    checks: tuple[Mapping[str, Any], ...]
    setup: tuple[str, ...] = ()
    rows: Rows = ()
    derived: Callable[[dict[str, str]], dict[str, str]] = dict
    note: str = ""


def _setting(space: str, name: str, value: str) -> dict[str, str]:
    return {"command": f"settings get {space} {name}", "expected": value}


def _file_is(path: str, state: Literal["there", "gone"]) -> dict[str, str]:
    return {"command": f'if [ -e "{STORAGE}/{path}" ]; then echo there; else echo gone; fi', "expected": state}


def _made(path: str) -> tuple[str, ...]:
    """Commands that make an empty file, and two whose names are like it."""
    folder = path.rpartition("/")[0]
    return (f'mkdir -p "{STORAGE}/{folder}"', *(f'touch "{STORAGE}/{folder}/{prefix}{{file_name}}"' for prefix in ("", "old_", "my_")))


def _with_package(row: dict[str, str]) -> dict[str, str]:
    if row.get("app_name") not in ANDROID_APPS:
        raise BadRecord(f"the app_name of a row is none of {', '.join(ANDROID_APPS)}")
    return {**row, "package_end": ANDROID_APPS[row["app_name"]]}


def _with_contact(row: dict[str, str]) -> dict[str, str]:
    """The person as the check prints one: without spaces and what is written between digits."""
    if "name" not in row or not any(character.isdigit() for character in row.get("number", "")):
        raise BadRecord("a row has no `name`, or no digits in `number`")
    name, digits = row["name"].translate(_UNPRINTED), "".join(character for character in row["number"] if character.isdigit())
    return {**row, "printed": f"display_name={name},data1={digits}."}


_UNPRINTED = str.maketrans("", "", " ()-+")
ANDROID_APPS = {
    "settings": "com.android.settings/",
    "contacts": ".android.contacts/",
    "clock": ".android.deskclock/",
    "camera": "com.android.camera2/",
    "dialer": ".android.dialer/",
}
"""AndroidWorld's five apps by the end of their package: those of AOSP, and Google's of the same names."""
APP_ROWS: Rows = tuple({"app_name": name} for name in ANDROID_APPS)
CONTACT_ROWS: Rows = tuple(
    {"name": name, "number": number}
    for name, number in (
        ("Ana Fernandez", "+15550104471"),
        ("Wei Chen", "+15550178620"),
        ("Omar Ibrahim", "+15550193358"),
        ("Mia Lopez", "+15550126904"),
        ("Emil Martin", "+15550150217"),
        ("Sara Mohamed", "+15550183746"),
        ("Hugo Ferreira", "+15550161195"),
        ("Lina Ali", "+15550139082"),
    )
)
FILE_ROWS: Rows = tuple(
    {"file_name": name, "subfolder": source, "source_folder": source, "destination_folder": target}
    for name, source, target in (
        ("brave_river.mp3", "Music", "Podcasts"),
        ("quiet_lamp.jpg", "Pictures", "DCIM"),
        ("green_note.pdf", "Documents", "Download"),
        ("early_train.mp3", "Alarms", "Ringtones"),
        ("small_boat.mp4", "Movies", "Documents"),
        ("red_kite.png", "Download", "Pictures"),
    )
)
_FRONT_APP = {"command": "am stack list | grep -m 1 visible=true", "expected": "{package_end}", "is_part": True}
_CONTACT = {
    "command": "content query --uri content://com.android.contacts/data/phones --projection display_name:data1"
    " | tr -d ' ()+-' | sed 's/$/./'",
    "expected": "{printed}",
    "is_part": True,
}
_WIFI_ON, _WIFI_OFF = _setting("global", "wifi_on", "1"), _setting("global", "wifi_on", "0")
_BLUETOOTH_ON, _BLUETOOTH_OFF = _setting("global", "bluetooth_on", "1"), _setting("global", "bluetooth_on", "0")
_BRIGHTEST, _DARKEST = _setting("system", "screen_brightness", "255"), _setting("system", "screen_brightness", "1")
_BRIGHTNESS = "settings put system screen_brightness "
_SWITCHES = {
    # AndroidWorld's name: its parameter, the check, the command that leads to what is asked, and the one that leads away
    "SystemWifiTurnOff": ({"on_or_off": "off"}, _WIFI_OFF, "svc wifi disable", "svc wifi enable"),
    "SystemWifiTurnOn": ({"on_or_off": "on"}, _WIFI_ON, "svc wifi enable", "svc wifi disable"),
    "SystemBluetoothTurnOff": ({"on_or_off": "off"}, _BLUETOOTH_OFF, "svc bluetooth disable", "svc bluetooth enable"),
    "SystemBluetoothTurnOn": ({"on_or_off": "on"}, _BLUETOOTH_ON, "svc bluetooth enable", "svc bluetooth disable"),
    "SystemBrightnessMax": ({"max_or_min": "max"}, _BRIGHTEST, _BRIGHTNESS + "255", _BRIGHTNESS + "1"),
    "SystemBrightnessMin": ({"max_or_min": "min"}, _DARKEST, _BRIGHTNESS + "1", _BRIGHTNESS + "255"),
}
HOLDS_AT_THE_START = "what it asks holds at the start, as in AndroidWorld: who changes nothing has solved it"
KNOWN: Mapping[str, Known] = {
    **{name: Known(checks=(check,), setup=(away,), rows=(row,)) for name, (row, check, _, away) in _SWITCHES.items()},
    **{
        f"{name}Verify": Known(checks=(check,), setup=(towards,), rows=(row,), note=HOLDS_AT_THE_START)
        for name, (row, check, towards, _) in _SWITCHES.items()
    },
    "TurnOffWifiAndTurnOnBluetooth": Known(checks=(_WIFI_OFF, _BLUETOOTH_ON), setup=("svc wifi enable", "svc bluetooth disable")),
    "TurnOnWifiAndOpenApp": Known(checks=(_WIFI_ON, _FRONT_APP), setup=("svc wifi disable",), rows=APP_ROWS, derived=_with_package),
    "OpenAppTaskEval": Known(checks=(_FRONT_APP,), rows=APP_ROWS, derived=_with_package),
    "ContactsAddContact": Known(
        checks=(_CONTACT,), setup=("pm clear com.android.providers.contacts",), rows=CONTACT_ROWS, derived=_with_contact
    ),
    "FilesDeleteFile": Known(checks=(_file_is("{subfolder}/{file_name}", "gone"),), setup=_made("{subfolder}/{file_name}"), rows=FILE_ROWS),
    "FilesMoveFile": Known(
        checks=(_file_is("{source_folder}/{file_name}", "gone"), _file_is("{destination_folder}/{file_name}", "there")),
        setup=(
            *_made("{source_folder}/{file_name}"),
            f'mkdir -p "{STORAGE}/{{destination_folder}}"',
            f'rm -f "{STORAGE}/{{destination_folder}}/{{file_name}}"',
        ),
        rows=FILE_ROWS,
    ),
}


def map_android_world(record: Any, files: Files) -> Mapped:
    """Raises BadRecord for what is not a task template."""
    fields = Fields(record)
    name, template = fields.any("task_name", "name", "id"), fields.any("task_template", "template", "goal", "prompt")
    if not isinstance(name, str) or not isinstance(template, str):
        raise BadRecord("a task template has a `name` (or task_name) and a `template` (or task_template, goal)")
    fields.keep_aside("tags", "schema", "class_name")
    steps, complexity = _number(fields.any("optimal_steps")), _number(fields.any("complexity"))
    reasons: list[str] = []
    notes: list[str] = []
    rows = _rows(fields.any("params", "task_params"), name, reasons, notes)
    goals, unknown = _goals(fields, reasons)
    setup = tuple(str(line) for line in fields.take("setup", list, []))
    known = KNOWN.get(name)
    if known is not None and not goals:
        goals, setup = [DeviceSays(kind="device", **check) for check in known.checks], known.setup
        rows = tuple(known.derived(row) for row in rows or known.rows)
        notes += [known.note] if known.note else []
    packages = [PACKAGES.get(str(app).lower(), str(app)) for app in listed(fields.any("app_names", "apps", "app"))]
    if strangers := [package for package in packages if "." not in package]:
        reasons.append(f"needs the app {strangers[0]}, whose package is not known")
    if not goals:
        reasons.append("its record says no check: AndroidWorld's are Python")
    difficulty = {"easy": 0.25, "medium": 0.5, "hard": 0.8}.get(str(fields.any("difficulty")), 0.5)
    spec = TaskSpec(
        name=slug(name),
        kind="android",
        instruction=template,
        difficulty=difficulty,
        params=rows,
        goals=tuple(goals),
        device_setup=setup,
        packages=tuple(package for package in packages if "." in package),
        max_steps=int(max(10, 2 * (steps or 0), STEPS_PER_COMPLEXITY * (complexity or 0))),
        reference_length=None if steps is None else int(steps),
        source=f"AndroidWorld {name}",
    )
    return Mapped(spec=spec, not_runnable=reasons, notes=notes, unknown=[*fields.unknown(), *unknown])


def _goals(fields: Fields, reasons: list[str]) -> tuple[list[Any], list[str]]:
    goals: list[Any] = []
    unknown: list[str] = []
    for item in listed(fields.any("checks", "criteria", "success_criteria")):
        check = Fields(item, "checks[]")
        if (answer := check.any("answer")) is not None:
            goals.append(Answers(kind="answers", text=str(answer)))
        elif (command := check.any("command", "shell")) is not None:
            goals += _device_goals(check, str(command).removeprefix("adb shell "), reasons)
        else:
            reasons.append("a check of it is neither a command nor an answer")
            check.keep_aside(*item)
        unknown += check.unknown()
    if (answer := fields.any("answer")) is not None:
        goals.append(Answers(kind="answers", text=str(answer)))
    if len({goal.text for goal in goals if isinstance(goal, Answers)}) > 1:
        reasons.append("it wants several answers at once")
    reasons += dict.fromkeys(f"a check of it {fault}" for goal in goals for fault in faults(goal))
    return goals, unknown


def _device_goals(check: Fields, command: str, reasons: list[str]) -> list[DeviceSays]:
    """`contains` is the text to be found in what the command prints, several of them, or, if true, says so of `expected`."""
    whole, part = check.any("expected", "equals"), check.any("contains")
    is_part, is_negated = bool(check.any("is_part")) or part is True, bool(check.any("is_negated", "not"))
    texts = [whole]
    if part not in (None, True, False):
        if whole is not None:
            reasons.append("a check of it says both what is all of an output and what is a part of it")
        texts, is_part = listed(part), True
    if None in texts or not texts:
        reasons.append("a check of it does not say what its command is to print")
    if any(isinstance(text, (dict, list)) for text in texts):
        reasons.append("a check of it expects more than a text or a number")
    return [
        DeviceSays(kind="device", command=command, expected=text_of(text), is_part=is_part, is_negated=is_negated)
        for text in texts
        if text is not None
    ]


def _rows(params: Any, name: str, reasons: list[str], notes: list[str]) -> tuple[dict[str, str], ...]:
    """Rows of values: as they are given, or every combination of the values that each parameter may have."""
    if params is None:
        return ()
    if isinstance(params, list) and params and all(isinstance(row, Mapping) and "possible_values" in row for row in params):
        params = {row["name"]: row["possible_values"] for row in params}
    if isinstance(params, list):
        rows = [dict(row) for row in params if isinstance(row, Mapping)]
    elif isinstance(params, Mapping):
        values: Sequence[Sequence[Any]] = [value if isinstance(value, list) else [value] for value in params.values()]
        rows = [dict(zip(params, row, strict=True)) for row in itertools.islice(itertools.product(*values), 100_000)]
    else:
        raise BadRecord("`params` is neither rows of values nor values by parameter")
    if any(isinstance(value, (dict, list)) for row in rows for value in row.values()):
        reasons.append("a parameter of it is more than a text or a number")
        return ()
    texts = [{str(key): str(value) for key, value in row.items()} for row in rows]
    if len(texts) > MAX_ROWS:
        notes.append(f"of {len(texts)} combinations of parameters {MAX_ROWS} were kept")
        texts = Random(stable_seed("params", name)).sample(texts, MAX_ROWS)
    return tuple(texts)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadRecord(f"{value!r} is not a finite number")
    return number
