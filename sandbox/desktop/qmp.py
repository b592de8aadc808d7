"""QMP, the protocol in which a running QEMU is told what to do: one JSON object a line, over a Unix socket. What it is told is not known
here (sandbox/desktop/machine.py). Source: QEMU's documentation, "QEMU Machine Protocol Specification".
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from warehouse.core.errors import DesktopCrashed, SandboxError, SandboxTimeout

MAX_LINE_BYTES = 1 << 20


class Qmp:
    """One connection. Commands go one after another; events are not looked at."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lock = asyncio.Lock()
        self._num_sent = 0

    @classmethod
    async def connect(cls, path: Path, limit_s: float = 30.0) -> Qmp:
        """To a QEMU that may still be making its socket. Raises SandboxTimeout."""

        async def connected() -> Qmp:
            while True:
                try:
                    qmp = cls(*await asyncio.open_unix_connection(str(path), limit=MAX_LINE_BYTES))
                    await qmp._line()  # the greeting
                    await qmp.execute("qmp_capabilities")
                    return qmp
                except (FileNotFoundError, ConnectionRefusedError):
                    await asyncio.sleep(0.01)

        try:
            return await asyncio.wait_for(connected(), limit_s)
        except TimeoutError as error:
            raise SandboxTimeout(f"QEMU did not answer at {path.name} within {limit_s:g} s.") from error

    async def execute(self, command: str, limit_s: float = 120.0, **arguments: Any) -> Any:
        """What a command returns. Raises SandboxError where QEMU refuses it, DesktopCrashed where QEMU is gone, SandboxTimeout."""
        async with self._lock:
            self._num_sent += 1
            message = {"execute": command, "arguments": arguments, "id": self._num_sent}
            try:
                self._writer.write(json.dumps(message).encode() + b"\n")
                await self._writer.drain()
                answer = await asyncio.wait_for(self._answer(self._num_sent), limit_s)
            except TimeoutError as error:
                raise SandboxTimeout(f"QEMU did not carry out {command!r} within {limit_s:g} s.") from error
            except OSError as error:
                raise DesktopCrashed(f"QEMU is gone: {error!r}.") from error
        if "error" in answer:
            raise SandboxError(f"QEMU refused {command!r} {arguments}: {answer['error'].get('desc')}.")
        return answer["return"]

    async def monitor(self, line: str, limit_s: float = 120.0) -> str:
        """What a line says to QEMU's monitor for people; nothing is good news for most."""
        return str(await self.execute("human-monitor-command", limit_s, **{"command-line": line}))

    async def _answer(self, number: int) -> dict[str, Any]:
        """The answer of that number: events come between, and answers to commands that were given up."""
        while True:
            message = json.loads(await self._line())
            if message.get("id") == number:
                return dict(message)

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            raise DesktopCrashed("QEMU is gone: it closed its control socket.")
        return line

    def close(self) -> None:
        self._writer.close()
