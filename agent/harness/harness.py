"""What a harness is: any agent program, started once an episode as a process (Command), or as a Python function that is awaited.

It gets an address at which a model answers (the gateway's), whose key names the episode, and a leased session. What it asks the model is
recorded there, and once the episode is over its calls are refused.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warehouse.core.errors import HarnessFailed, HarnessMissing

TAIL_BYTES = 2000
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
SUPERVISOR = Path(__file__).with_name("supervisor.py")
INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    }
)
"""What a program needs to start, without the tokens and database addresses that we may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a harness is started with. `openai_url` ends with /v1, `anthropic_url` does not; `key` is for both. `session_url`: the session
    as HTTP (endpoint.py). `devtools_url`: of its browser, for the DevTools protocol; None where it has no such browser."""

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
    """A program and its arguments. Its working folder is the assignment's. Of our environment it gets what INHERITED names; `variables` go
    before these, and the assignment's before both."""

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, assignment: Assignment) -> None:
        """Returns when it has ended, and what it had started with it; so it is where this is cancelled, or this process dies. Raises
        HarnessMissing for an unknown program, HarnessFailed for an exit status other than 0, with the last it wrote."""
        log, environment = assignment.folder / "harness.log", self._environment(assignment)
        program = shutil.which(self.argv[0], path=environment.get("PATH"))
        if program is None:
            raise HarnessMissing(f"the harness {self.argv[0]!r} cannot be started: name a program that is there and may be executed")
        command = (sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), str(GRACE_S), os.path.abspath(program), *self.argv[1:])
        with log.open("wb") as said:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=assignment.folder,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as error:
                raise HarnessFailed(f"the harness {self.argv[0]!r} cannot be started: {error.strerror}") from error
        try:
            status = await process.wait()
        finally:
            await _end(process)
        if status:
            text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip().replace(assignment.key, "KEY")
            raise HarnessFailed(f"the harness {self.argv[0]!r} ended with status {status}; it wrote: {text or 'nothing'}")

    def _environment(self, assignment: Assignment) -> dict[str, str]:
        """Nothing asks a proxy for what answers here."""
        ours = {name: value for name, value in os.environ.items() if name in INHERITED or name.startswith("LC_")}
        given = {**ours, **self.variables, **assignment.environment}
        direct = ",".join(filter(None, (given.get("no_proxy") or given.get("NO_PROXY"), "127.0.0.1,localhost")))
        return given | {"no_proxy": direct, "NO_PROXY": direct}


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its supervisor gets one signal, whether or not anybody waits."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), GRACE_S + 5)
    except TimeoutError:
        process.kill()


Harness = Callable[[Assignment], Awaitable[None]]
"""A Command, or a function of a user's own. Returning, it says that it is done; whether the task is, the task's verifier says. It raises
where the program failed."""
