"""What a task in a terminal is made of: what lies in the workspace at first, goals that a verifier checks, and the steps of its oracle.
The tasks themselves are kinds_*.py; sessions that run them are session.py and sandbox/hybrid.

A goal looks at the state itself: files through the workspace, programs that the verifier runs. It never reads what the agent printed.
docs/verifiers.md says which cheats that stops and which it does not.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, ClassVar, Protocol

from sandbox.actions import Action, Finished, ToolCall
from sandbox.tasks.task import Task
from sandbox.terminal.bubblewrap import HOME
from sandbox.terminal.jail import Jail
from sandbox.terminal.search import Document
from warehouse.core.errors import SandboxError, TaskError
from warehouse.core.identity import content_id, stable_seed

COMMAND_TIMEOUT_S = 20.0
RESPONSE_TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 1 << 16
VERIFIERS_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "PYTHONNOUSERSITE": "1",
    "GIT_GRAFT_FILE": "/nonexistent",
    "GIT_SHALLOW_FILE": "/nonexistent",
    # what a repository's own settings could have git start, or show beside what is asked for
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "log.showSignature",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "gpg.program",
    "GIT_CONFIG_VALUE_1": "/bin/false",
}
"""What programs of the verifier's find otherwise than the agent's: no settings nor modules of a home folder that the agent may write to,
and histories as they are, whatever a repository says of where they begin or go on."""


class Probe:
    """How goals look at an episode: its files, its jail, and the agent's answer (None until it has given one)."""

    def __init__(self, jail: Jail, answer: str | None = None) -> None:
        self.jail, self.answer = jail, answer

    def text(self, path: str) -> str | None:
        """What a file holds, without the line ends at its end; None where there is no such text file. A link is none."""
        try:
            return self.jail.workspace.read(path, follows_links=False).decode().rstrip("\n")
        except SandboxError:
            raise
        except (OSError, UnicodeDecodeError):
            return None

    async def run(self, command: str) -> str | None:
        """What a command prints, without line ends at its end; None where it fails. Runs in bash, without what the agent has set up."""
        argv = ["/bin/bash", "--noprofile", "--norc", "-c", command]
        try:
            done = await self.jail.run(argv, timeout_s=COMMAND_TIMEOUT_S, environment=VERIFIERS_ENVIRONMENT)
        except SandboxError:
            raise
        except OSError:  # the jail can start nothing: the agent has used up its processes
            return None
        return done.output.decode(errors="replace").rstrip("\n") if done.exit_code == 0 else None

    async def fetch(self, port: int, path: str) -> str | None:
        """The body of what a service in the jail answers to GET; None where none does, or not with 200."""
        try:
            reader, writer = await self.jail.connect(port)
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                try:
                    writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\n\r\n".encode())
                    await writer.drain()
                    head, _, body = (await reader.read(MAX_RESPONSE_BYTES)).partition(b"\r\n\r\n")
                    while more := await reader.read(MAX_RESPONSE_BYTES):
                        body += more[: MAX_RESPONSE_BYTES - len(body)]
                finally:
                    writer.close()
        except SandboxError:
            raise
        except OSError:
            return None
        is_good = head.split(b"\r\n")[0].split(b" ")[1:2] == [b"200"]
        return body.decode(errors="replace").rstrip("\n") if is_good else None


class Goal(Protocol):
    """Something that must hold."""

    async def unmet(self, probe: Probe) -> str | None:
        """Why it does not hold; None where it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A file holds a text; line ends at its end do not count."""

    path: str
    text: str

    async def unmet(self, probe: Probe) -> str | None:
        found = probe.text(self.path)
        if found is None:
            return f"{self.path} is not there as a text file"
        return None if found == self.text.rstrip("\n") else f"{self.path} holds something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsJson:
    """A file holds a JSON value, however it is laid out."""

    path: str
    value: Any

    async def unmet(self, probe: Probe) -> str | None:
        found = probe.text(self.path)
        if found is None:
            return f"{self.path} is not there as a text file"
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            return f"{self.path} is not JSON"
        return None if _same_json(value, self.value) else f"{self.path} holds something else"


def _same_json(found: Any, wanted: Any) -> bool:
    """Equal, and a number is not taken for true or false."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same_json(found[key], wanted[key]) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(_same_json(*pair) for pair in zip(found, wanted, strict=True))
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Several goals as one, for a step that reaches them together."""

    goals: tuple[Goal, ...]

    async def unmet(self, probe: Probe) -> str | None:
        for goal in self.goals:
            if (reason := await unmet(goal, probe)) is not None:
                return reason
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    path: str

    async def unmet(self, probe: Probe) -> str | None:
        return None if probe.jail.workspace.look(self.path) is None else f"{self.path} is still there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """There is a file, whatever it holds."""

    path: str

    async def unmet(self, probe: Probe) -> str | None:
        entry = probe.jail.workspace.look(self.path)
        return None if entry is not None and entry.kind == "file" else f"{self.path} is not a file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """There is a folder."""

    path: str

    async def unmet(self, probe: Probe) -> str | None:
        entry = probe.jail.workspace.look(self.path)
        return None if entry is not None and entry.kind == "folder" else f"{self.path} is not a folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A folder holds just these names."""

    path: str
    names: frozenset[str]

    async def unmet(self, probe: Probe) -> str | None:
        entry = probe.jail.workspace.look(self.path)
        if entry is None or entry.kind != "folder":
            return f"{self.path} is not a folder"
        found = {entry.path.rpartition("/")[2] for entry in probe.jail.workspace.walk(self.path, depth=1)}
        return None if found == self.names else f"{self.path or HOME} holds {str(sorted(found))[:500]}, not {sorted(self.names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A file has these permission bits."""

    path: str
    mode: int

    async def unmet(self, probe: Probe) -> str | None:
        entry = probe.jail.workspace.look(self.path)
        is_met = entry is not None and entry.kind == "file" and entry.mode == self.mode
        return None if is_met else f"{self.path} is not a file with mode {self.mode:o}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    path: str

    async def unmet(self, probe: Probe) -> str | None:
        entry = probe.jail.workspace.look(self.path)
        is_met = entry is not None and entry.kind == "file" and entry.mode & 0o100
        return None if is_met else f"{self.path} is not a file that can be executed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prints:
    """A command of the verifier's prints a text. For what only running shows: a repaired program, a repository's history."""

    command: str
    text: str

    async def unmet(self, probe: Probe) -> str | None:
        found = await probe.run(self.command)
        if found is None:
            return f"`{self.command}` fails"
        return None if found == self.text.rstrip("\n") else f"`{self.command}` prints something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """A service answers on a port."""

    is_live: ClassVar[bool] = True
    """It asks a program of the agent's that runs, so it is asked before those are ended."""
    port: int
    path: str
    text: str

    async def unmet(self, probe: Probe) -> str | None:
        found = await probe.fetch(self.port, self.path)
        if found is None:
            return f"nothing answers on port {self.port} with {self.path}"
        return None if found == self.text.rstrip("\n") else f"port {self.port} answers {self.path} with something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The agent's last words are this; case, quotes and a full stop do not count."""

    text: str

    async def unmet(self, probe: Probe) -> str | None:
        if probe.answer is None:
            return "no answer was given"
        return None if _plain(probe.answer) == _plain(self.text) else "the answer is another one"


def _plain(text: str) -> str:
    return text.strip().strip(".\"'").casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of an oracle. It is done once `goal` holds; without one it only looks, and is done once it was taken."""

    action: Action
    goal: Goal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance of a task. `commands` are run after the files are written and before the episode begins; each must succeed."""

    instruction: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    folders: Sequence[str] = ()
    modes: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Places outside of the workspace that are links to folders of it, both as absolute paths."""
    commands: Sequence[str] = ()
    documents: Mapping[str, Document] = field(default_factory=dict)
    """What Search and LinkReader find, by address; none: what the session is set to."""
    goals: Sequence[Goal]
    steps: Sequence[Step]
    answer: str = ""
    """What the oracle ends with."""

    @property
    def content(self) -> str:
        """Id of what the agent is asked and finds."""
        files = {path: data if isinstance(data, str) else data.decode("latin-1") for path, data in self.files.items()}
        documents = {address: asdict(document) for address, document in self.documents.items()}
        return content_id("content", [self.instruction, files, [*self.folders], {**self.modes}, [*self.commands], documents])


InstanceFactory = Callable[[Random], Instance]
"""Makes the instance of a seed."""


def seeded(task: Task, seed: int) -> Random:
    """The same choices for the same task and seed, whatever its limits."""
    return Random(stable_seed(task.source, task.name, seed))


async def prepare(jail: Jail, instance: Instance) -> None:
    """Put an instance's files where they belong. Raises TaskError where the instance itself is broken."""
    workspace = jail.workspace
    for folder in instance.folders:
        workspace.make_folder(folder)
    for path, content in instance.files.items():
        workspace.write(path, content)
    for path, mode in instance.modes.items():
        workspace.set_mode(path, mode)
    for command in instance.commands:
        done = await jail.run(["/bin/bash", "--noprofile", "--norc", "-c", command], timeout_s=COMMAND_TIMEOUT_S)
        if done.exit_code != 0:
            said = done.output.decode(errors="replace")[-300:]
            raise TaskError(f"Preparing a task, `{command}` gave {done.exit_code}: {said!r}. Fix the task.")


async def unmet(goal: Goal, probe: Probe) -> str | None:
    """Why a goal does not hold; None where it does. What the agent made impossible to look at, as by a folder's mode, does not hold."""
    try:
        return await goal.unmet(probe)
    except SandboxError:  # an OSError too, by its second parent
        raise
    except OSError as error:
        return f"it cannot be looked at: {error.strerror or error}"


async def unmet_goals(goals: Sequence[Goal], probe: Probe) -> list[str]:
    """Why which goals do not hold."""
    return [reason for goal in goals if (reason := await unmet(goal, probe)) is not None]


async def unmet_at_end(goals: Sequence[Goal], probe: Probe) -> list[str]:
    """The same of an episode that is over. Services are asked first; then every process of the agent's is ended, so that none changes
    anything between two looks, nor speaks or writes for a program of the verifier's. Once only: no service answers after it."""
    found = {index: await unmet(goal, probe) for index, goal in enumerate(goals) if _is_live(goal)}
    await probe.jail.end_processes()
    found |= {index: await unmet(goal, probe) for index, goal in enumerate(goals) if index not in found}
    return [reason for index in range(len(goals)) if (reason := found[index]) is not None]


def _is_live(goal: Goal) -> bool:
    return getattr(goal, "is_live", False) or any(_is_live(part) for part in getattr(goal, "goals", ()))


async def next_step(instance: Instance, actions: Sequence[Action], probe: Probe) -> Action | None:
    """What the oracle would do now: the first step whose goal does not hold, or that looks and was not taken while something after it is
    still to be done; Finished when all is; None where all steps are done, but the goals are not met."""
    to_do = [step.goal is not None and await unmet(step.goal, probe) is not None for step in instance.steps]
    last = max((index for index, is_open in enumerate(to_do) if is_open), default=-1)
    answers = any(isinstance(goal, Answers) for goal in instance.goals)
    for index, step in enumerate(instance.steps):
        if to_do[index] or (step.goal is None and step.action not in actions and (index < last or answers)):
            return step.action
    others = [goal for goal in instance.goals if not isinstance(goal, Answers)]
    return None if await unmet_goals(others, probe) else Finished(answer=instance.answer)


def bash(command: str, goal: Goal | None = None) -> Step:
    return Step(action=ToolCall(name="execute_bash", arguments={"command": command}), goal=goal)


def edit(goal: Goal | None = None, **arguments: str | int) -> Step:
    """One call of the file tool."""
    return Step(action=ToolCall(name="str_replace_editor", arguments=dict(arguments)), goal=goal)


def python(code: str, goal: Goal | None = None) -> Step:
    return Step(action=ToolCall(name="JupyterCI", arguments={"code": code}), goal=goal)


def call(name: str, goal: Goal | None = None, **arguments: str) -> Step:
    return Step(action=ToolCall(name=name, arguments=dict(arguments)), goal=goal)


def quoted(text: str) -> str:
    """As one word of a shell command."""
    return shlex.quote(text)
