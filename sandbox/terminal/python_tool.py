"""The tool `JupyterCI`: Python that keeps its state from call to call, in a jail. What runs there is repl.py; no Jupyter is needed.

Started by the first call; after a call that neither ends nor lets itself be interrupted it is killed, and the next call starts a new one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sandbox.terminal.bubblewrap import PYTHON
from sandbox.terminal.jail import Jail, JailProcess
from sandbox.terminal.output import Capture
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import JailCrashed, SandboxError

SERVER = Path(__file__).with_name("repl.py").read_text(encoding="utf-8")
DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 300.0
MAX_PRINTED_BYTES = 64 << 20
OUTPUT_CHARS = 8000
READ_BYTES = 1 << 16
GRACE_S = 2.0
"""How long an interrupted call has to end."""


class PythonCall(BaseModel):
    """The arguments of one call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: Annotated[str, Field(max_length=200_000)]
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, description="seconds")] = DEFAULT_TIMEOUT_S


class PythonTool:
    """One session's Python."""

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._process: JailProcess | None = None
        self._requests = self._answers = self._output = -1
        self._capture = Capture(OUTPUT_CHARS)
        self._answer: asyncio.Future[str] | None = None

    async def execute(self, call: PythonCall) -> str:
        """What the code printed, a traceback included, and how it ended where it did not end well. Raises ToolError, SandboxError."""
        if self._answer is not None:
            raise ToolError("another call still runs")
        if self._process is None or self._process.exit_code is not None:
            await self._start()
        process = self._running()
        self._answer = asyncio.get_running_loop().create_future()
        try:
            note = await self._run(process, call)
        finally:
            self._answer = None
        self._take_output()
        output = self._capture.take()
        if not note:
            return output or "[no output]"
        return f"{output}{'' if not output or output.endswith(chr(10)) else chr(10)}[{note}]"

    async def _run(self, process: JailProcess, call: PythonCall) -> str:
        """Run the code; how it ended, "" for well."""
        code = call.code.encode(errors="replace")
        await self._send(process, f"{len(code)}\n".encode() + code)
        if await self._wait(process, call.timeout):
            return self._ending(process)
        too_much = self._capture.num_bytes > MAX_PRINTED_BYTES
        reason = f"printing more than {MAX_PRINTED_BYTES >> 20} MiB" if too_much else f"{call.timeout:g} s"
        await process.kill(signal.SIGINT)
        if await self._wait(process, GRACE_S, limited=False):
            ending = self._ending(process)
            return f"interrupted after {reason}" + (f"; {ending}" if process.exit_code is not None else "; variables are kept")
        await process.kill()
        await process.wait()
        return f"interrupted after {reason}, did not end and was killed: variables are lost; the next call starts a new interpreter"

    def _ending(self, process: JailProcess) -> str:
        if process.exit_code is None:
            return ""
        return f"Python ended with exit code {process.exit_code}: variables are lost; the next call starts a new interpreter"

    async def _wait(self, process: JailProcess, seconds: float, *, limited: bool = True) -> bool:
        """Whether the call ended, or Python did, within the time; False also where too much was printed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._answer is not None and not self._answer.done() and process.exit_code is None:
            left = deadline - loop.time()
            if left <= 0 or (limited and self._capture.num_bytes > MAX_PRINTED_BYTES):
                return False
            either: list[asyncio.Future[Any]] = [self._answer, process.ended]
            await asyncio.wait(either, timeout=min(left, 0.25), return_when=asyncio.FIRST_COMPLETED)
        return True

    async def _send(self, process: JailProcess, data: bytes) -> None:
        view = memoryview(data)
        while view and process.exit_code is None:
            try:
                view = view[os.write(self._requests, view) :]
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except BrokenPipeError:
                return

    async def _start(self) -> None:
        self.close()
        (their_requests, self._requests), (self._answers, their_answers) = os.pipe(), os.pipe()
        try:
            self._process = await self._jail.spawn([PYTHON, "-c", SERVER], fds=[their_requests, their_answers])
        except SandboxError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ToolError(f"Python could not be started: {error}") from error
        finally:
            os.close(their_requests)
            os.close(their_answers)
        their_input, self._output = self._process.take_streams()
        os.close(their_input)
        loop = asyncio.get_running_loop()
        for fd in (self._requests, self._answers):
            os.set_blocking(fd, False)
        loop.add_reader(self._answers, self._receive_answer)
        loop.add_reader(self._output, self._take_output)

    def _running(self) -> JailProcess:
        if self._process is None:
            raise JailCrashed("Python was not started in the jail.")
        return self._process

    def _receive_answer(self) -> None:
        with suppress(OSError):
            said = os.read(self._answers, 4096)
            if said and self._answer is not None and not self._answer.done():
                self._answer.set_result(said.decode(errors="replace").strip())
            if not said:
                asyncio.get_running_loop().remove_reader(self._answers)

    def _take_output(self) -> None:
        """What is in the pipe now, whatever comes after."""
        for _ in range(16):
            try:
                part = os.read(self._output, READ_BYTES)
            except OSError:
                return
            if not part:
                asyncio.get_running_loop().remove_reader(self._output)
            self._capture.add(part)
            if len(part) < READ_BYTES:
                return

    def close(self) -> None:
        """The process ends with its jail, or with the end of its requests. May be called twice."""
        loop = asyncio.get_running_loop()
        for fd in (self._answers, self._output, self._requests):
            if fd >= 0:
                loop.remove_reader(fd)
                os.close(fd)
        self._requests = self._answers = self._output = -1
        self._process = None
