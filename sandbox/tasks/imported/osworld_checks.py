"""OSWorld's evaluators as goals: which function compares what with what. Setup steps are osworld.py's, the comparisons metrics.py's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.importing.fields import Fields, listed
from sandbox.tasks.imported.mapping import needs_packages
from sandbox.tasks.imported.metrics import METRICS, OF_POPPLER, POPPLER
from sandbox.tasks.imported.osworld_task import OsworldTask
from sandbox.tasks.imported.rules import EXISTENCE, faults
from sandbox.tasks.imported.spec import Compare, Getter, GivesUp, Goal, PathIs, Several

INFEASIBLE = "infeasible"
"""Its evaluator: 1 where the agent's last action is FAIL, whatever the state (desktop_env.evaluate)."""
MISSING = "missing"
"""Stands for the digest of a file that is not there, so that the rest of its evaluator is looked at all the same."""


def goals_of(evaluator: Mapping[str, Any], task: OsworldTask) -> tuple[list[Goal], list[Any]]:
    """Goals, and the setup steps that are to be done before they are checked, as they are written."""
    fields = Fields(evaluator, "evaluator")
    functions = listed(fields.any("func"))
    results, expected = listed(fields.any("result")), listed(fields.any("expected"))
    options = listed(fields.any("options"))
    if INFEASIBLE in functions and len(functions) > 1:
        task.refuse("is meant to be impossible, and its evaluator looks at something beside")
    is_any = fields.any("conj") == "or"
    before: list[Any] = fields.take("postconfig", list, [])
    task.unknown += fields.unknown()
    goals: list[Goal] = [
        goal
        for index, function in enumerate(functions)
        if (goal := _goal(function, _at(results, index), _at(expected, index), _at(options, index), task)) is not None
    ]
    return ([Several(kind="any", goals=tuple(goals))] if is_any and len(goals) > 1 else goals), before


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _goal(function: Any, result: Any, expected: Any, options: Any, task: OsworldTask) -> Compare | GivesUp | PathIs | None:
    if function == INFEASIBLE:
        return GivesUp(kind="gives_up")
    if function == "compare_table" and (rule := _printed(options)) is not None:
        function, options = "sheet_print", {"ignore_case": rule.get("ignore_case", False)}
        result, expected = _giving(result, rule["sheet_idx0"]), _giving(expected, rule["sheet_idx1"])
    if not isinstance(function, str) or function not in METRICS:
        task.refuse(f"no such evaluator here: {function}")
        return None
    if function in OF_POPPLER and shutil.which("pdftotext") is None:
        task.refuse(needs_packages([POPPLER]), lacks="packages")
    if function == "literal_match" and isinstance(options, Mapping) and options.get("type", "str") != "str":
        task.refuse("compares lists literally")
        return None
    value = _getter(result, "evaluator.result", task)
    if value is None:
        return None
    if function == EXISTENCE and value.file is not None:
        return PathIs(kind="file", path=value.file)
    wanted = None if expected is None else _getter(expected, "evaluator.expected", task)
    if expected is not None and wanted is None:
        return None
    goal = Compare(function=function, result=value, expected=wanted, options=dict(options) if isinstance(options, Mapping) else {})
    for fault in faults(goal):
        task.refuse(f"its evaluator {fault}")
    return goal


def _printed(options: Any) -> Mapping[str, Any] | None:
    """The only rule of a comparison of workbooks, where it is of a sheet of each as it is printed: their CSV files are then compared."""
    rules = options.get("rules") if isinstance(options, Mapping) else None
    rule = rules[0] if isinstance(rules, list) and len(rules) == 1 else None
    if not isinstance(rule, Mapping) or rule.get("type") != "sheet_print":
        return None
    sides = [(rule.get("sheet_idx0"), r"0|RI0|RN.+"), (rule.get("sheet_idx1"), r"EI0|EN.+")]
    return rule if all(re.fullmatch(pattern, str(sheet), re.DOTALL) for sheet, pattern in sides) else None


def _giving(value: Any, sheet: Any) -> Any:
    """A getter of several files, of which the sheet's CSV file is to be compared: that of its name, and of the first sheet the only one."""
    names = value.get("dest") if isinstance(value, Mapping) else None
    end = f"-{sheet[2:]}.csv" if str(sheet)[1:2] == "N" else ".csv"
    found = [index for index, name in enumerate(names) if str(name).endswith(end)] if isinstance(names, list) else []
    return {**value, "gives": found} if isinstance(value, Mapping) else value


def _getter(value: Any, where: str, task: OsworldTask) -> Getter | None:
    """None, with a reason, for a value that we cannot get."""
    fields = Fields(value, where)
    kind = fields.take("type", str)
    fields.keep_aside("dest")
    made: Getter | None = None
    match kind:
        case "rule" | "constant":
            given = fields.any("rules" if kind == "rule" else "value")
            if given is None:
                task.refuse(f"says nothing in a {kind} to compare with")
            made = None if given is None else Getter(value=given)
        case "vm_command_line" | "vm_command_error":
            given = fields.any("command")
            if program := re.fullmatch(r"which ([\w.-]+)", given if isinstance(given, str) else ""):
                task.check_program(program[1])
            command = task.command(given, is_shell=bool(fields.any("shell")))
            made = None if command is None else Getter(command=command) if kind == "vm_command_line" else Getter(errors_of=command)
        case "vm_file":
            path = _path(fields, task)
            made = None if path is None else Getter(file=path)
        case "vm_terminal_output":
            made = Getter(shown_by="terminal")
        case "list_directory":
            path = fields.take("path", str)
            made = Getter(command=("find", path, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\n"))
        case "cloud_file" | "local_file":
            path = _path(fields, task)
            made = None if path is None else Getter(asset=task.asset(path) or MISSING)
        case _:
            task.refuse(f"no way here to get a value of type {kind}")
            return None
    task.unknown += fields.unknown()
    return made


def _path(fields: Fields, task: OsworldTask) -> str | None:
    """Of `multi`, several files are fetched, and those of `gives` compared, by default the first. None, with a reason, where these are
    several."""
    paths, gives = fields.any("path", "local_path"), fields.any("gives")
    is_several = bool(fields.any("multi"))
    chosen = gives if isinstance(gives, list) else [0]
    if is_several and isinstance(paths, list) and len(chosen) == 1 and isinstance(chosen[0], int) and 0 <= chosen[0] < len(paths):
        paths = paths[chosen[0]]
    if not isinstance(paths, str):
        task.refuse("compares several files at once")
        return None
    return paths
