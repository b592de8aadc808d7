"""What a harness is: any agent program, started once an episode as a process (Command), or as a Python function that is awaited.

It gets an address at which a model answers (the gateway's), whose key names the episode, and a leased session. What it asks the model is
recorded there; what it is told ends there, too: once the episode is over its calls are refused.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from warehouse.core.errors import HarnessFailed

TAIL_BYTES = 2000
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a harness is started with. `openai_url` ends with /v1, `anthropic_url` does not; `key` is for both. `session_url`: the session
    as HTTP (door.py). `devtools_url`: of its browser, for the DevTools protocol; None where it has no such browser."""

    episode: str
    task: str
    instruction: str
    max_steps: int
    """Calls of the model that are answered."""
    temperature: float
    seed: int
    openai_url: str
    anthropic_url: str
    key: str
    session_url: str
    devtools_url: str | None
    folder: Path
    """An empty folder, which goes with the episode."""

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables, for a process."""
        variables = {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "FLYWHEEL_EPISODE": self.episode,
            "FLYWHEEL_TASK": self.task,
            "FLYWHEEL_INSTRUCTION": self.instruction,
            "FLYWHEEL_MAX_STEPS": str(self.max_steps),
            "FLYWHEEL_TEMPERATURE": str(self.temperature),
            "FLYWHEEL_SEED": str(self.seed),
            "FLYWHEEL_SESSION": self.session_url,
        }
        return variables | ({"FLYWHEEL_DEVTOOLS": self.devtools_url} if self.devtools_url is not None else {})


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments. Its working folder is the assignment's; it inherits our environment, under `variables`, under the
    assignment's."""

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, assignment: Assignment) -> None:
        """Returns when it has ended; cancelled, it ends the program and all that this has started. Raises HarnessFailed for an exit status
        other than 0, with the last it wrote."""
        log = assignment.folder / "harness.log"
        environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", **self.variables, **assignment.environment}
        with log.open("wb") as said:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    cwd=assignment.folder,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as error:
                raise HarnessFailed(
                    f"the harness {self.argv[0]!r} cannot be started: {error.strerror}; name a program that is there"
                ) from error
        try:
            status = await process.wait()
        finally:
            await _end_group(process)
        if status:
            text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
            raise HarnessFailed(f"the harness {self.argv[0]!r} ended with status {status}; it wrote: {text or 'nothing'}")


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Whoever is left of the program's own session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


Harness = Callable[[Assignment], Awaitable[None]]
"""A Command, or a function of a user's own. Returning, it says that it is done; whether the task is, the task's verifier says. It raises
where the program failed."""
