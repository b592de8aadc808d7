"""A policy server as a separate process on loopback that lives as long as its parent: starting it, seeing that it ended, ending
it. What the process does is __main__.py's. Imports no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from models.engine.settings import EngineSettings
from models.server.settings import ServerSettings
from warehouse.core.errors import EngineUnreachable, ModelError, from_plain
from warehouse.core.processes import environment_of_child

START_LIMIT_S = 1800.0
"""Within it the process reads the checkpoint, which may have many gigabytes."""
END_LIMIT_S = 5.0


class ServerJob(BaseModel):
    """What the process reads from its standard input. The token is neither on its command line nor in its environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Annotated[Path, Field(description="checkpoint that answers")]
    dtype: Annotated[str, Field(description="of its weights")]
    device: Annotated[str, Field(description="where they lie, e.g. cpu or cuda:0")]
    engine: EngineSettings
    limits: ServerSettings
    token: Annotated[str, Field(repr=False, description="what every request has to send")]


class ServerProcess:
    """A server that a thread of its own starts and waits for: Linux ends it with that thread, and so with this process. Close it."""

    def __init__(self, job: ServerJob) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None
        self._is_started = threading.Event()
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="policy-server", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def address(self) -> str:
        """Where it answers; waits until it does. Raises what opening the checkpoint raised there, EngineUnreachable where it just ended."""
        try:
            return self._address.result(START_LIMIT_S)
        except TimeoutError as error:
            raise EngineUnreachable(f"the policy server of {self._job.folder} did not start within {START_LIMIT_S:g} s") from error

    def why_ended(self) -> str | None:
        """In words; None while it runs."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return None
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def close(self) -> None:
        """End it. May be called twice."""
        self._is_started.wait()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            command = [sys.executable, "-m", "models.server", str(os.getpid())]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with subprocess.Popen(command, **pipes, start_new_session=True, env=environment_of_child()) as process:
                self._process = process
                self._is_started.set()
                self._wait(process)
        except Exception as error:
            if not self._address.done():
                self._address.set_exception(error)
        finally:
            self._is_started.set()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        given, said = _pipes(process)
        try:
            given.write(self._job.model_dump_json().encode())
            given.close()
            line = said.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            process.wait()
            raise EngineUnreachable(f"the policy server of {self._job.folder} {self.why_ended()} before it answered: see above")
        first = json.loads(line)
        if "url" in first:
            self._address.set_result(first["url"])
        else:
            self._address.set_exception(from_plain(first, ModelError))
        process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    return process.stdin, process.stdout
