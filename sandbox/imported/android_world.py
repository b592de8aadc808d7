"""AndroidWorld-style task templates as android tasks: a goal with parameters, apps, what is set up, what a command on the device must say.

AndroidWorld's own list (android_world/task_metadata.json) says no checks: those are Python there. For the tasks of its system settings that
one command can check, the check is here; of the others only what they ask is kept. Source of the format: Rawles et al. 2024
(arXiv 2405.14573).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from sandbox.imported.mapping import BadRecord, Fields, Files, Mapped, listed, slug
from sandbox.imported.metrics import text_of
from sandbox.imported.rules import faults
from sandbox.imported.spec import Answers, DeviceSays, TaskSpec
from warehouse.identity import stable_seed

MAX_ROWS = 64
"""Of the combinations of parameter values so many are kept, drawn by the task's name."""
STEPS_PER_COMPLEXITY = 10
PACKAGES: Mapping[str, str] = {
    "settings": "com.android.settings", "contacts": "com.android.contacts", "clock": "com.android.deskclock",
    "camera": "com.android.camera2", "dialer": "com.android.dialer", "phone": "com.android.dialer",
    "files": "com.android.documentsui", "calendar": "com.android.calendar", "chrome": "com.android.chrome",
}  # fmt: skip
_SETTING = "settings get {} {}"
KNOWN: Mapping[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    # AndroidWorld's name: what is asked, the check, what is set up first
    "SystemWifiTurnOff": ("off", {"command": _SETTING.format("global", "wifi_on"), "expected": "0"}, ("svc wifi enable",)),
    "SystemWifiTurnOn": ("on", {"command": _SETTING.format("global", "wifi_on"), "expected": "1"}, ("svc wifi disable",)),
    "SystemBluetoothTurnOff": ("off", {"command": _SETTING.format("global", "bluetooth_on"), "expected": "0"}, ("svc bluetooth enable",)),
    "SystemBluetoothTurnOn": ("on", {"command": _SETTING.format("global", "bluetooth_on"), "expected": "1"}, ("svc bluetooth disable",)),
    "SystemBrightnessMax": (
        "max", {"command": _SETTING.format("system", "screen_brightness"), "expected": "255"}, ("settings put system screen_brightness 1",)
    ),
    "SystemBrightnessMin": (
        "min", {"command": _SETTING.format("system", "screen_brightness"), "expected": "1"}, ("settings put system screen_brightness 255",)
    ),
}  # fmt: skip


def map_android_world(record: Any, files: Files) -> Mapped:
    """Raises BadRecord for what is no task template."""
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
        value, check, setup = known
        goals = [DeviceSays(kind="device", **check)]
        rows = rows or ({"on_or_off": value, "max_or_min": value},)
    packages = [PACKAGES.get(str(app).lower(), str(app)) for app in listed(fields.any("app_names", "apps", "app"))]
    if strangers := [package for package in packages if "." not in package]:
        reasons.append(f"needs the app {strangers[0]}, whose package is not known")
    if not goals:
        reasons.append("its record says no check: AndroidWorld's are Python")
    difficulty = {"easy": 0.25, "medium": 0.5, "hard": 0.8}.get(str(fields.any("difficulty")), 0.5)
    spec = TaskSpec(
        name=slug(name), kind="android", instruction=template, difficulty=difficulty, params=rows, goals=tuple(goals),
        device_setup=setup, packages=tuple(package for package in packages if "." in package),
        max_steps=int(max(10, 2 * (steps or 0), STEPS_PER_COMPLEXITY * (complexity or 0))),
        reference_length=None if steps is None else int(steps),
        source=f"AndroidWorld {name}",
    )  # fmt: skip
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
        for text in texts if text is not None
    ]  # fmt: skip


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
