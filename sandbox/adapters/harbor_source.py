"""Harbor's task folders as a task source: task.toml, instruction.md, environment/Dockerfile, tests/test.sh, solution/solve.sh.

    SOURCE = harbor_source("bench", Path("harbor-tasks"))

They are played in the terminal's jails, without Docker: harbor_dockerfile.py says what of a Dockerfile can be done there, and refuses the
rest by name. The oracle is solve.sh. A verdict puts a copy of the workspace into a second jail, with the tests, and test.sh says in
/logs/verifier/reward.txt what it is worth: nothing that the agent left running, and nothing outside of its folders, is there. The tests are
lent read-only. What test.sh itself starts of the agent's programs can write the reward, as in Harbor.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.adapters.adapted_source import version_of
from sandbox.adapters.harbor_dockerfile import Built, built
from sandbox.browser.isolation.scratch import scratch_root
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from sandbox.terminal.bubblewrap import HOME
from sandbox.terminal.jail import Jail
from sandbox.terminal.tasks import VERIFIERS_ENVIRONMENT, Instance, Probe, Step, bash
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import bytes_id

VERSION = "1"
CONFIG, INSTRUCTION, TEST, SOLVE = "task.toml", "instruction.md", "tests/test.sh", "solution/solve.sh"
REWARDS = "/logs/verifier"
COPY_S = 60.0
MAX_TEST_S = 600.0
MAX_REWARD_BYTES = 4096
TAIL_CHARS = 300
SCRATCH = ("/logs",)
"""Folders that only the verifier's jail can write to."""


def _lies_in(path: Path, folder: Path) -> bool:
    """Links followed."""
    return path.resolve().is_relative_to(folder.resolve())


def _text(folder: Path, name: str) -> str:
    """The text of a task's own file. Raises ConfigError for one that is not a file, or lies elsewhere: a task must not show other files."""
    path = folder / name
    try:
        if not _lies_in(path, folder):
            raise ConfigError(f"{path} leads out of the task's folder: copy the file that it is a link to.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not text: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One folder, as far as task.toml goes."""

    folder: Path
    name: str
    test_s: float
    test_variables: Mapping[str, str]
    workdir: str | None

    @property
    def instruction(self) -> str:
        """Without the marks that say what a benchmark's files are, as Harbor leaves them out."""
        lines = _text(self.folder, INSTRUCTION).split("\n")
        while lines and (not lines[0].strip() or (lines[0].startswith(("#", "<!--")) and "canary" in lines[0].lower())):
            del lines[0]
        return "\n".join(lines).strip()

    @property
    def solution(self) -> str | None:
        """None where there is none that is one script by itself."""
        script = self.folder / SOLVE
        if not script.is_file() or [path.name for path in script.parent.iterdir()] != [script.name]:
            return None
        return _text(self.folder, SOLVE)

    @property
    def version(self) -> str:
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and _lies_in(path, self.folder))
        files = {path.relative_to(self.folder).as_posix(): path for path in paths}
        return version_of("harbor", VERSION, {name: bytes_id("file", path.read_bytes()) for name, path in files.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """The goal of a Harbor task: test.sh gives a copy of the workspace the reward that it takes."""

    task: HarborTask
    links: Mapping[str, str]
    success_at: float

    async def unmet(self, probe: Probe) -> str | None:
        pack = ["/bin/bash", "-c", "exec /usr/bin/tar --create --sparse --ignore-failed-read --one-file-system . 2>/dev/null"]
        packed = await probe.jail.run(pack, timeout_s=COPY_S, limit_bytes=probe.jail.limits.workspace_mib + 16 << 20, cwd=HOME)
        if packed.exit_code != 0:
            return "the workspace cannot be copied"
        with _readable(self.task.folder / "tests") as tests:
            jail = await Jail.start(probe.jail.limits, lent={"/tests": tests}, links=self.links, scratch=SCRATCH)
            try:
                return await self._run(jail, packed.output)
            finally:
                await jail.close()

    async def _run(self, jail: Jail, workspace: bytes) -> str | None:
        unpack = ["/usr/bin/tar", "--extract", "--sparse", "--no-same-owner", "--directory", HOME]
        done = await jail.run(unpack, given=workspace, timeout_s=COPY_S)
        if done.exit_code != 0:
            return f"{HOME} cannot be filled: {_tail(done.output)}"
        begin = f'mkdir -p {REWARDS} && exec /bin/bash "$0"'
        variables = {**VERIFIERS_ENVIRONMENT, **self.task.test_variables}
        done = await jail.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", begin, "/tests/test.sh"], timeout_s=self.task.test_s, environment=variables
        )
        if done.exit_code is None:
            return f"tests/test.sh took longer than {self.task.test_s:g} s"
        if done.exit_code < 0:
            return f"tests/test.sh was killed by signal {-done.exit_code}"
        await jail.end_processes()
        reward = await _reward(jail)
        if reward is None:
            return f"tests/test.sh wrote no reward: it ended with {done.exit_code} and said {_tail(done.output)}"
        return None if reward >= self.success_at else f"a reward of {reward:g}, tests/test.sh said {_tail(done.output)}"


async def _reward(jail: Jail) -> float | None:
    """As a number in reward.txt, or under `reward` in reward.json."""
    for name in ("reward.txt", "reward.json"):
        said = await jail.run(["/bin/cat", f"{REWARDS}/{name}"], limit_bytes=MAX_REWARD_BYTES)
        if said.exit_code == 0:
            try:
                value = float(said.output) if name == "reward.txt" else float(json.loads(said.output)["reward"])
            except (ValueError, TypeError, KeyError, RecursionError):
                return None
            return value if math.isfinite(value) else None
    return None


def _tail(output: bytes) -> str:
    return repr(output.decode(errors="replace").strip()[-TAIL_CHARS:])


@contextmanager
def _readable(folder: Path) -> Iterator[Path]:
    """A copy that the jail's user can read, without links that lead out of the folder."""
    with tempfile.TemporaryDirectory(prefix="tests-", dir=scratch_root()) as name:
        copy = Path(name)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and _lies_in(path, folder):
                place = copy / path.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode | 0o444)
        yield copy


def harbor_source(
    name: str,
    folder: Path,
    *,
    success_at: float = 1.0,
    images: Sequence[str] = (),
    held_out: bool = False,
    domain: str = "terminal",
    max_steps: int = 30,
    **more: Any,
) -> TaskSource:
    """The task in `folder`, or those in the folders below it. `success_at`: the reward from which on it is solved. `images`: more base
    images that this machine has all of, as patterns. `held_out`: none is ever trained on. `more`: other parts of the TaskSource, such as
    `licence`. Raises ConfigError for a folder without tasks; what of a Dockerfile cannot be done is reported when its task is played."""
    found = {task.name: task for task in _tasks_in(folder)}

    def load_tasks(group: str | None = None) -> dict[str, Task]:
        if group is not None:
            raise ConfigError(f"The source {name!r} has no task group {group!r}; it has no groups.")
        return {
            key: Task(source=name, name=key, domain=domain, max_steps=max_steps, held_out=held_out, version=version(key)) for key in found
        }

    @cache
    def version(key: str) -> str:
        return found[key].version

    def find(task: Task) -> HarborTask:
        if task.source != name or task.name not in found:
            raise TaskError(f"Task {task.source}/{task.name} is none of the source {name!r}, which has {', '.join(found)}.")
        return found[task.name]

    def instance(task: Task, seed: int) -> Instance:
        harbor = find(task)
        return _instance(harbor, built(harbor.folder / "environment", workdir=harbor.workdir, images=images), success_at)

    def facts(task: Task, seed: int) -> Facts:
        harbor = find(task)
        return Facts(
            instruction=harbor.instruction, content=[version(task.name)], difficulty=0.5, provenance={"folder": harbor.folder.name}
        )

    return TaskSource(
        name=name,
        kind="terminal",
        load_tasks=load_tasks,
        instance=instance,
        environment=f"harbor tasks {VERSION}",
        facts=facts,
        description=lambda task: " ".join(find(task).instruction.split())[:200],
        has_oracle=lambda task: find(task).solution is not None,
        has_one_instance=True,
        **more,
    )


def _tasks_in(folder: Path) -> list[HarborTask]:
    """Raises ConfigError."""
    folder = folder.resolve()
    places = [folder] if (folder / CONFIG).is_file() else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if not places:
        raise ConfigError(f"{folder} holds no Harbor task: expected {CONFIG} in it, or in folders below it.")
    return [_task(place) for place in places]


def _task(folder: Path) -> HarborTask:
    """Raises ConfigError for a folder that is none, or that wants what no jail has."""
    try:
        config = tomllib.loads(_text(folder, CONFIG))
        verifier, environment = config.get("verifier", {}), config.get("environment", {})
        wants_os, workdir = str(environment.get("os", "linux")).lower(), environment.get("workdir")
        if workdir is not None and not isinstance(workdir, str):
            raise TypeError(f"[environment].workdir is {workdir!r}, not a path")
        test_s, variables = float(verifier.get("timeout_sec", MAX_TEST_S)), dict(verifier.get("env", {}))
    except ConfigError:
        raise
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder / CONFIG} is not Harbor's: {error}") from error
    for name in (INSTRUCTION, TEST):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} is not a Harbor task that can be played: it has no {name}.")
        _text(folder, name)
    wants = {
        "[[steps]], a task of several": config.get("steps"),
        "[environment].os": wants_os != "linux",
        "[environment].gpus": environment.get("gpus"),
        "[environment].tpu": environment.get("tpu"),
        "[environment].env": environment.get("env"),
        "[environment].mcp_servers": environment.get("mcp_servers"),
        "[environment].healthcheck": environment.get("healthcheck"),
        "a verifier in an environment of its own": verifier.get("environment") or verifier.get("environment_mode", "shared") != "shared",
        "[[verifier.collect]]": verifier.get("collect"),
        "[verifier].env with ${…}": any("${" in str(value) for value in variables.values()),
    }
    if wanted := [what for what, is_wanted in wants.items() if is_wanted]:
        raise ConfigError(f"{folder / CONFIG} wants what a jail has not: {'; '.join(wanted)}. Run it with Harbor, or leave it out.")
    return HarborTask(
        folder=folder,
        name=folder.name,
        test_s=min(test_s, MAX_TEST_S),
        test_variables={key: str(value) for key, value in variables.items()},
        workdir=workdir,
    )


def _instance(task: HarborTask, made: Built, success_at: float) -> Instance:
    goal = Graded(task=task, links=made.links, success_at=success_at)
    steps: list[Step] = [] if task.solution is None else [bash(_as_command(task.solution), goal)]
    return Instance(
        instruction=task.instruction,
        files=made.files,
        folders=made.folders,
        modes=made.modes,
        links=made.links,
        commands=made.commands,
        goals=[goal],
        steps=steps,
    )


def _as_command(script: str) -> str:
    """A script as a command of its own shell: `set -e` and `exit` are not the terminal's."""
    return f"bash -c {shlex.quote(script.strip())}"
