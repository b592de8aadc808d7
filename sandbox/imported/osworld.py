"""OSWorld's examples (evaluation_examples/examples/*/*.json) as desktop tasks: its setup steps and evaluators onto ours, and for what we
have nothing for, the reason.

Its machine is a Ubuntu with GNOME, a browser and an office; ours a small desktop without a network (sandbox/desktop). Both have their home
at /home/user, so paths hold as they are. Source of the format: Xie et al. 2024 (arXiv 2404.07972) and its public examples.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.actions import Hotkey, KeyDown, KeyUp, TypeText, Wait
from sandbox.desktop.apps import APPS, missing_packages
from sandbox.imported.machine import DESKTOP_HOME, relative
from sandbox.imported.mapping import BadRecord, Fields, Files, Mapped, digest_of, slug
from sandbox.imported.metrics import METRICS
from sandbox.imported.pyautogui_code import BadCode, parse_code
from sandbox.imported.spec import Compare, Getter, PathIs, SetupStep, Several, TaskSpec

LAUNCHED_AS: Mapping[str, str] = {
    "gedit": "editor", "mousepad": "editor", "gnome-text-editor": "editor", "xed": "editor", "nautilus": "files", "pcmanfm": "files",
    "gnome-terminal": "terminal", "lxterminal": "terminal", "xterm": "xterm", "gnome-calculator": "calculator", "galculator": "calculator",
    "gnome-mines": "mines", "gnome-2048": "2048", "libreoffice": "calc", "soffice": "calc", "localc": "calc",
}  # fmt: skip
"""Programs that a record starts, and the application of ours that stands for each."""
OPENED_BY = {".txt": "editor", ".md": "editor", ".csv": "calc", ".xlsx": "calc", ".ods": "calc", ".xls": "calc"}
EXISTENCE_METRICS = ("check_file_exists",)
_BUILTINS = frozenset((
    "[", "[[", ":", ".", "alias", "break", "case", "cd", "command", "continue", "declare", "do", "done", "echo", "elif", "else", "esac",
    "eval", "exec", "exit", "export", "false", "fi", "for", "function", "if", "in", "let", "local", "printf", "pwd", "read", "return",
    "select", "set", "shift", "source", "test", "then", "time", "trap", "true", "type", "ulimit", "umask", "unset", "until", "wait",
    "while", "{", "}", "!",
))  # fmt: skip
_COMMAND_WORD = re.compile(r"(?:^|[;&|(`]|\$\(|\bthen\b|\bdo\b|\belse\b)\s*(?:[A-Za-z_]\w*=\S*\s+)*([A-Za-z_./~\[{:!][\w./~+-]*)")
_ASIDE = ("snapshot", "trajectory", "related_apps", "proxy", "fixed_ip", "possibility_of_env_change", "comment")


class _Task:
    """One record while it is mapped."""

    def __init__(self, task_id: str, files: Files) -> None:
        self.task_id, self._files = task_id, files
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.unknown: list[str] = []
        self.assets: dict[str, bytes] = {}
        self.placed: dict[str, str] = {}

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def asset(self, address: str, target: str = "") -> str | None:
        """Digest of a file that the record names; None, and a reason, where it cannot be had."""
        data = self._files.find(address, self.task_id, target)
        if data is None:
            self.refuse("needs a file from the network" if "://" in address else "needs a file that does not lie with the record")
            return None
        self.assets[digest_of(data)] = data
        return digest_of(data)

    def command(self, command: Any, *, is_shell: bool) -> str | tuple[str, ...] | None:
        """A command for our machine; None, with reasons, where it cannot run there."""
        if isinstance(command, list) and all(isinstance(word, str) for word in command) and command:
            text, words = " ".join(command), command
        elif isinstance(command, str) and command.strip():
            text, words = command, [] if is_shell else _split(command)
        else:
            raise BadRecord("a command is neither a text nor a list of texts")
        if "{CLIENT_PASSWORD}" in text or "{SCREEN_" in text:
            self.refuse("needs a password or the size of OSWorld's screen")
            return None
        is_script = is_shell or (len(words) > 2 and words[0].rpartition("/")[2] in ("bash", "sh") and words[1] in ("-c", "-lc"))
        if is_script:
            script = text if is_shell or not words else words[2]
            self._check_programs(script)
            return f'python() {{ python3 "$@"; }}\n{script}' if re.search(r"\bpython\b", script) else script
        if words[0] == "python":
            self.note("python is python3 here")
            words = ["python3", *words[1:]]
        self._check_program(words[0])
        return tuple(words)

    def _check_programs(self, script: str) -> None:
        quoted = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "Q", script)
        for name in _COMMAND_WORD.findall(quoted):
            if name not in _BUILTINS and name != "Q" and not name.startswith(("~", "./", ".")) and f"{name}()" not in quoted:
                self._check_program(name)

    def _check_program(self, name: str) -> None:
        if name in ("python", *_BUILTINS) or name.startswith(str(DESKTOP_HOME)):
            return
        if name == "sudo":
            self.refuse("needs the rights of root (sudo)")
        elif shutil.which(name, path="/usr/bin:/bin:/usr/games") is None and not PurePosixPath(name).is_absolute():
            self.refuse(f"needs the program {name}")
        elif name in ("curl", "wget", "pip", "pip3", "apt", "apt-get", "snap", "git") and name != "git":
            self.refuse("needs the network")


def map_osworld(record: Any, files: Files) -> Mapped:
    """Raises BadRecord for what is no OSWorld example."""
    fields = Fields(record)
    task = _Task(fields.take("id", str), files)
    instruction = fields.take("instruction", str)
    source = fields.any("source")
    fields.keep_aside(*_ASIDE)
    setup = _steps(fields.take("config", list, []), "config", task)
    goals, before = _evaluator(fields.take("evaluator", dict, {}), task)
    spec = TaskSpec(
        name=slug(task.task_id), kind="desktop", instruction=instruction, assets=task.placed, setup=tuple(setup),
        before_checks=tuple(before), goals=tuple(goals), source=f"OSWorld {task.task_id}" + (f", {source}" if source else ""),
    )  # fmt: skip
    if not goals:
        task.refuse("has no evaluator that is understood")
    return Mapped(spec=spec, not_runnable=task.reasons, notes=task.notes, unknown=[*fields.unknown(), *task.unknown], assets=task.assets)


def _steps(steps: Sequence[Any], where: str, task: _Task) -> list[SetupStep]:
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


def _placed(field: str) -> Callable[[Fields, _Task, int], list[SetupStep]]:
    """Files that are put in place before anything else."""

    def read(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
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


def _execute(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
    command, is_shell = parameters.any("command"), bool(parameters.any("shell"))
    for name in ("stdout", "stderr", "until"):
        if parameters.any(name):
            task.refuse(f"waits for or keeps the output of a command ({name})")
    if (typed := _typing(command, task)) is not None:
        return typed
    ready = task.command(command, is_shell=is_shell)
    return [] if ready is None else [SetupStep(command=ready, must_succeed=False)]


def _typing(command: Any, task: _Task) -> list[SetupStep] | None:
    """Steps of a command that is a PyAutoGUI script; None for any other."""
    text = command[2] if isinstance(command, list) and len(command) == 3 and command[1] == "-c" else command
    if not isinstance(text, str) or "pyautogui" not in text:
        return None
    try:
        actions = parse_code(text, (1920, 1080)).actions
    except BadCode as error:
        task.refuse(f"a PyAutoGUI script in it is not understood ({error})")
        return []
    if not all(isinstance(action, (Hotkey, TypeText, KeyDown, KeyUp, Wait)) for action in actions):
        task.refuse("clicks at points of OSWorld's screen")
        return []
    return [SetupStep(wait=max(action.seconds, 0.01)) if isinstance(action, Wait) else SetupStep(act=(action,)) for action in actions]


def _launch(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
    command = parameters.any("command")
    parameters.keep_aside("shell")
    words = command if isinstance(command, list) else _split(command) if isinstance(command, str) else []
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
    if flags := [word for word in map(str, words[1:]) if word.startswith("-")]:
        task.note(f"options of {program} were left out: {' '.join(flags)}")
    return _opened(app, files, task)


def _open(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
    path = parameters.take("path", str)
    suffix = PurePosixPath(path).suffix.lower()
    app = OPENED_BY.get(suffix, "files" if not suffix else None)
    if app is None:
        task.refuse(f"opens a file of kind {suffix}, for which there is no application here")
        return []
    return _opened(app, [path], task)


def _opened(app: str, files: Sequence[str], task: _Task) -> list[SetupStep]:
    inside = [relative(path, DESKTOP_HOME) for path in files]
    if None in inside:
        task.refuse("opens a file outside of the home folder")
        return []
    if lacking := missing_packages([app]):
        task.refuse(f"needs Debian packages that are not installed: {', '.join(lacking)}")
    return [SetupStep(launch=APPS[app].name, files=tuple(path for path in inside if path))]


def _sleep(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
    return [SetupStep(wait=min(60.0, max(0.01, parameters.take("seconds", float))))]


def _window(change: str) -> Callable[[Fields, _Task, int], list[SetupStep]]:
    def read(parameters: Fields, task: _Task, index: int) -> list[SetupStep]:
        name = parameters.take("window_name", str)
        parameters.keep_aside("strict", "by_class")
        return [SetupStep.model_validate({"window": name, "change": change})]

    return read


_SETUP: Mapping[str, Callable[[Fields, _Task, int], list[SetupStep]]] = {
    "download": _placed("url"), "upload_file": _placed("local_path"), "execute": _execute, "command": _execute, "launch": _launch,
    "open": _open, "sleep": _sleep, "activate_window": _window("activate"), "close_window": _window("close"),
}  # fmt: skip


def _evaluator(evaluator: Mapping[str, Any], task: _Task) -> tuple[list[Any], list[SetupStep]]:
    """Goals, and what is done before they are checked."""
    fields = Fields(evaluator, "evaluator")
    functions = _listed(fields.any("func"))
    results, expected = _listed(fields.any("result")), _listed(fields.any("expected"))
    options = _listed(fields.any("options"))
    is_any = fields.any("conj") == "or"
    before = _steps(fields.take("postconfig", list, []), "evaluator.postconfig", task)
    task.unknown += fields.unknown()
    goals = [
        goal
        for index, function in enumerate(functions)
        if (goal := _goal(function, _at(results, index), _at(expected, index), _at(options, index), task)) is not None
    ]
    return ([Several(kind="any", goals=tuple(goals))] if is_any and len(goals) > 1 else goals), before


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _goal(function: Any, result: Any, expected: Any, options: Any, task: _Task) -> Compare | PathIs | None:
    if function == "infeasible":
        task.refuse("is meant to be impossible: no verifier here rewards giving up")
        return None
    if function not in METRICS:
        task.refuse(f"no such evaluator here: {function}")
        return None
    value = _getter(result, "evaluator.result", task)
    if value is None:
        return None
    if function in EXISTENCE_METRICS and value.file is not None:
        return PathIs(kind="file", path=value.file)
    wanted = None if expected is None else _getter(expected, "evaluator.expected", task)
    if expected is not None and wanted is None:
        return None
    return Compare(function=function, result=value, expected=wanted, options=dict(options) if isinstance(options, Mapping) else {})


def _getter(value: Any, where: str, task: _Task) -> Getter | None:
    """None, with a reason, for a value that we cannot get."""
    fields = Fields(value, where)
    kind = fields.take("type", str)
    fields.keep_aside("dest")
    made: Getter | None = None
    match kind:
        case "rule":
            made = Getter(value=fields.any("rules"))
        case "constant":
            made = Getter(value=fields.any("value"))
        case "vm_command_line" | "vm_command_error":
            command = task.command(fields.any("command"), is_shell=bool(fields.any("shell")))
            made = None if command is None else Getter(command=command) if kind == "vm_command_line" else Getter(errors_of=command)
        case "vm_file":
            path = fields.any("path")
            if isinstance(path, str):
                made = Getter(file=path)
            else:
                task.refuse("compares several files at once")
        case "cloud_file" | "local_file":
            path = fields.any("path", "local_path")
            digest = task.asset(path) if isinstance(path, str) else None
            if not isinstance(path, str):
                task.refuse("compares several files at once")
            made = None if digest is None else Getter(asset=digest)
        case _:
            task.refuse(f"no way here to get a value of type {kind}")
            return None
    task.unknown += fields.unknown()
    return made


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
