"""Sends commands to a running QEMU over QMP, by the client that QEMU's own project publishes (qemu.qmp); the errors are ours. The
commands themselves are in sandbox/desktop/machine.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from qemu.qmp import ConnectError, ExecuteError, QMPClient, QMPError

from warehouse.core.errors import DesktopCrashed, SandboxError, SandboxTimeout


class Qmp:
    """One connection. Events are not looked at."""

    def __init__(self, client: QMPClient) -> None:
        self._client = client
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, path: Path, limit_s: float = 30.0) -> Qmp:
        """To a QEMU that may still be making its socket. Raises SandboxTimeout."""
        client = QMPClient()
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with suppress(ConnectError):
                        if path.exists():  # the client logs each attempt that fails
                            await client.connect(str(path))
                            return cls(client)
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise SandboxTimeout(f"QEMU did not answer at {path.name} within {limit_s:g} s.") from error

    async def execute(self, command: str, limit_s: float = 120.0, **arguments: Any) -> Any:
        """What a command returns. Raises SandboxError where QEMU refuses it, DesktopCrashed where QEMU is gone, SandboxTimeout."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._client.execute(command, arguments)
        except TimeoutError as error:
            raise SandboxTimeout(f"QEMU did not carry out {command!r} within {limit_s:g} s.") from error
        except ExecuteError as error:
            raise SandboxError(f"QEMU refused {command!r} {arguments}: {error}.") from error
        except QMPError as error:
            raise DesktopCrashed(f"QEMU is gone: {error}.") from error

    async def monitor(self, line: str, limit_s: float = 120.0) -> str:
        """What a line says to QEMU's monitor for people; nothing is good news for most."""
        return str(await self.execute("human-monitor-command", limit_s, **{"command-line": line}))

    def close(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self._disconnect())

    async def _disconnect(self) -> None:
        with suppress(EOFError, OSError, QMPError):  # QEMU may have gone first
            await self._client.disconnect()
