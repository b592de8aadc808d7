"""Terminal tasks of ours as Harbor's task folders: an instance a folder, with its files, its verifier as tests/test.sh and its oracle as
solution/solve.sh. The other way round is harbor_source.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandbox.actions import Action, ToolCall
from sandbox.adapters import harbor_check
from sandbox.adapters.harbor_source import CONFIG, INSTRUCTION, REWARDS, SOLVE, TEST
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.terminal import tasks as goals
from sandbox.terminal.bubblewrap import HOME
from sandbox.terminal.tasks import VERIFIERS_ENVIRONMENT, Every, Goal, Instance
from warehouse.core.errors import TaskError
from warehouse.core.home import atomic_write

ORGANISATION = "flywheel"
IMAGE = "debian:bookworm-slim"
PACKAGES = ("git", "procps", "python3", "unzip", "zip")
ANSWER = "answer.txt"
KINDS = (
    goals.Holds,
    goals.HoldsJson,
    goals.Absent,
    goals.Present,
    goals.Folder,
    goals.Names,
    goals.Mode,
    goals.Executable,
    goals.Prints,
    goals.Serves,
    goals.Answers,
)
"""Goals that harbor_check.py knows."""
EDIT = {
    "create": "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.parent.mkdir(parents=True, exist_ok=True); "
    "path.write_text(sys.argv[2])",
    "str_replace": "import pathlib, sys; path = pathlib.Path(sys.argv[1]); text = path.read_text(); assert text.count(sys.argv[2]) == 1; "
    "path.write_text(text.replace(sys.argv[2], sys.argv[3]))",
}
"""The file tool's commands as programs; `view` only looks."""
EDIT_ARGUMENTS = {"create": ("path", "file_text"), "str_replace": ("path", "old_str", "new_str")}
TEST_SCRIPT = f"""#!/bin/bash
exec python3 -I /tests/check.py /tests/goals.json {HOME} {REWARDS}
"""
"""No shell stays beside the check: what the check runs of the agent's could change it."""


def write_harbor(task: Task, seed: int, folder: Path) -> Path:
    """One instance as a folder in `folder`; its path. Raises TaskError for a task that is not the terminal's, and for what Harbor has no
    place for: documents to search, goals of a source's own."""
    source = SOURCES[task.source]
    if source.kind_of(task) != "terminal":
        raise TaskError(f"{task.source}/{task.name} is played in a {source.kind_of(task)} session: only terminal tasks are Harbor's.")
    instance = source.instance(task, seed)
    if not isinstance(instance, Instance) or instance.documents or instance.links:
        raise TaskError(f"{task.source}/{task.name} wants what Harbor's tasks have not: documents to search, or folders of its own.")
    place = folder / f"{task.name}-{seed}"
    for path, content in _files(task, seed, instance, source.licence).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(place / path, content.encode() if isinstance(content, str) else content)
    for path in (TEST, SOLVE):
        if (place / path).exists():
            (place / path).chmod(0o755)
    return place


def _files(task: Task, seed: int, instance: Instance, licence: str) -> dict[str, str | bytes]:
    answers = any(isinstance(goal, goals.Answers) for goal in _flat(instance.goals))
    instruction = instance.instruction + (f"\n\nWrite the answer, and nothing else, into the file {HOME}/{ANSWER}." if answers else "")
    found: dict[str, str | bytes] = {
        CONFIG: _config(task, seed, licence),
        INSTRUCTION: instruction + "\n",
        "environment/Dockerfile": _dockerfile(instance),
        TEST: TEST_SCRIPT,
        "tests/check.py": Path(harbor_check.__file__).read_bytes(),
        "tests/goals.json": json.dumps(
            {"goals": [_described(task, goal) for goal in _flat(instance.goals)], "environment": dict(VERIFIERS_ENVIRONMENT)}, indent=1
        ),
    }
    if (solution := _solution(instance, answers=answers)) is not None:
        found[SOLVE] = solution
    return found | {f"environment/files/{path}": content for path, content in instance.files.items()}


def _config(task: Task, seed: int, licence: str) -> str:
    name = f"{ORGANISATION}/{task.source}-{task.name}-{seed}"
    known = {"source": task.source, "task": task.name, "task_id": task.task_id, "split": task.split(seed).value, "licence": licence}
    metadata = "\n".join(f"{key} = {json.dumps(value)}" for key, value in known.items())
    return f"""schema_version = "1.4"

[task]
name = {json.dumps(name)}
keywords = [{json.dumps(task.domain)}]

[metadata]
{metadata}
seed = {seed}

[verifier]
timeout_sec = 120.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
network_mode = "no-network"
"""


def _dockerfile(instance: Instance) -> str:
    lines = [
        f"FROM {IMAGE}",
        f"RUN apt-get update && apt-get install -y --no-install-recommends {' '.join(PACKAGES)} && rm -rf /var/lib/apt/lists/*",
        "ENV GIT_AUTHOR_NAME=agent GIT_AUTHOR_EMAIL=agent@sandbox GIT_COMMITTER_NAME=agent GIT_COMMITTER_EMAIL=agent@sandbox",
        f"WORKDIR {HOME}",
        *(["COPY files/ ./"] if instance.files else []),
        *([f"RUN mkdir -p {shlex.join(instance.folders)}"] if instance.folders else []),
        *(f"RUN chmod {mode:o} {shlex.quote(path)}" for path, mode in instance.modes.items()),
        *(f"RUN {shlex.join(['bash', '--noprofile', '--norc', '-c', command])}" for command in instance.commands),
    ]
    return "\n".join(lines) + "\n"


def _flat(found: Iterable[Goal]) -> Iterator[Goal]:
    for goal in found:
        if isinstance(goal, Every):
            yield from _flat(goal.goals)
        else:
            yield goal


def _described(task: Task, goal: Goal) -> Mapping[str, Any]:
    """Raises TaskError."""
    for kind in KINDS:
        if type(goal) is kind:
            fields = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(goal).items()}
            return {"kind": kind.__name__, **fields, **({"file": ANSWER} if kind is goals.Answers else {})}
    raise TaskError(f"{task.source}/{task.name} is judged by a {type(goal).__name__}, which no Harbor folder can hold.")


def _solution(instance: Instance, *, answers: bool) -> str | None:
    """None where a step is none that a shell can do."""
    lines = ["#!/bin/bash", "set -e", f"cd {HOME}"]
    for step in instance.steps:
        if (line := _line(step.action)) is None:
            return None
        lines += [line] if line else []
    if answers:
        lines.append(f"printf '%s' {shlex.quote(instance.answer)} > {ANSWER}")
    is_state_kept = sum(isinstance(step.action, ToolCall) and step.action.name == "JupyterCI" for step in instance.steps) > 1
    return None if is_state_kept or not instance.steps else "\n".join(lines) + "\n"


def _line(action: Action) -> str | None:
    """A step as a line of a script; "" for one that only looks, None for one that no script does."""
    if not isinstance(action, ToolCall):
        return None
    given: Mapping[str, Any] = action.arguments
    match action.name:
        case "execute_bash":
            return None if given["command"] in ("", "C-c", "C-d") else str(given["command"])
        case "JupyterCI":
            return f"python3 -c {shlex.quote(str(given['code']))}"
        case "str_replace_editor" if given["command"] == "view":
            return ""
        case "str_replace_editor" if given["command"] in EDIT:
            command = str(given["command"])
            return _program(EDIT[command], [str(given.get(name, "")) for name in EDIT_ARGUMENTS[command]])
    return None


def _program(program: str, arguments: Sequence[str]) -> str:
    return shlex.join(["python3", "-c", program, *arguments])
