"""AgentDesktop: the Desktop protocol over a guest agent's HTTP (sandbox/desktop/guest_agent.py), wherever the agent runs; and
AgentDesktops, for a machine that somebody else keeps running.

Every request has a connection of its own: a machine that is put back to a snapshot knows nothing of connections made since.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import urlencode

from sandbox.cache import cache_folder
from sandbox.desktop.apps import find_app
from sandbox.desktop.requested import RequestedDesktop, inside_home
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxError, SandboxTimeout
from warehouse.core.locks import FileLock

AGENT_VERSION = "2"
POLL_S = 0.2


class AgentDesktop(RequestedDesktop):
    """The desktop behind an agent. `close` leaves the agent running: the starter of its machine ends it."""

    def __init__(self, host: str, port: int, token: str, *, call_s: float = 60.0) -> None:
        """For `open`. `call_s` is the longest that one request may take."""
        super().__init__(call_s)
        self._host, self._port, self._token = host, port, token
        self._health: dict[str, Any] = {}
        self._is_closed = False

    @classmethod
    async def open(cls, host: str, port: int, token: str, *, call_s: float = 60.0) -> Self:
        """Raises DesktopCrashed where no agent answers, SandboxError for a wrong token or another version of the agent."""
        desktop = cls(host, port, token, call_s=call_s)
        desktop._health = json.loads((await desktop._request("GET", "/v1/health"))[1])["result"]
        if desktop._health["version"] != AGENT_VERSION:
            raise SandboxError(
                f"The guest agent at {host}:{port} is version {desktop._health['version']}, this side speaks {AGENT_VERSION}: copy "
                "sandbox/desktop/guest_agent.py to the guest again."
            )
        return desktop

    @property
    def size_px(self) -> tuple[int, int]:
        width, height = self._health["size"]
        return int(width), int(height)

    @property
    def environment(self) -> str:
        return f"{self._health['system']}, {self.size_px[0]}x{self.size_px[1]}, guest agent {self._health['version']}"

    @property
    def sources(self) -> dict[str, str]:
        """Where the lists of windows and elements come from (a value that begins with "none: " says why there are none), and which
        characters the agent can type."""
        return {name: self._health[name] for name in ("windows", "elements", "types")}

    async def screenshot(self) -> bytes:
        return (await self._request("GET", "/v1/screenshot"))[1]

    async def launch(self, app: str, files: Sequence[PurePosixPath] = ()) -> None:
        command = list(find_app(app).command_for(files))
        if self._health["platform"] == "win32" and command[0] == "wine":
            command = command[1:]
        command += [inside_home(path) for path in files]  # programs start in the home folder
        if not await self._call("launch", command=command):
            raise DesktopMissing(f"The guest has no program {command[0]!r} for the application {app!r}. Install it in the guest's image.")

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        await self._request("PUT", f"/v1/file?{urlencode({'path': inside_home(path)})}", content)

    async def get_file(self, path: PurePosixPath) -> bytes | None:
        status, content = await self._request("GET", f"/v1/file?{urlencode({'path': inside_home(path)})}")
        return None if status == 404 else content

    async def close(self) -> None:
        self._is_closed = True

    async def _call(self, method: str, *, limit_s: float | None = None, **arguments: Any) -> Any:
        body = json.dumps(arguments).encode()
        return json.loads((await self._request("POST", f"/v1/{method}", body, limit_s))[1])["result"]

    async def _request(self, method: str, target: str, body: bytes = b"", limit_s: float | None = None) -> tuple[int, bytes]:
        """Status (200 or 404) and body. Raises DesktopCrashed, SandboxTimeout, SandboxError."""
        if self._is_closed:
            raise DesktopCrashed("The desktop is closed; open another one.")
        limit_s, what = limit_s or self._call_s, f"{method} {target.partition('?')[0]}"
        where = f"The guest agent at {self._host}:{self._port}"
        try:
            # The socket's own limit counts from byte to byte; this one counts the whole.
            status, answer = await asyncio.wait_for(asyncio.to_thread(self._exchange, method, target, body, limit_s), limit_s * 1.5)
        except TimeoutError as error:
            raise SandboxTimeout(f"{where} did not answer {what} within {limit_s:g} s.") from error
        except (OSError, http.client.HTTPException) as error:
            raise DesktopCrashed(f"{where} is gone: {error!r}.") from error
        if status not in (200, 404):
            raise SandboxError(f"{where} answered {what} with {status}: {answer[:300].decode(errors='replace')}")
        return status, answer

    def _exchange(self, method: str, target: str, body: bytes, limit_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=limit_s)
        try:
            connection.request(method, target, body, {"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """A machine with an agent. `restore` is a command of ours that puts the machine back to how it was; `restore_s` is how long that may
    take, and then as long again until the agent answers."""

    host: str
    port: int
    token: str = field(repr=False)
    restore: tuple[str, ...]
    restore_s: float = 300.0
    call_s: float = 60.0


class AgentDesktops:
    """Desktops of one machine, one at a time; a lock keeps other processes of this host away from it until `close`."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._lock = FileLock(cache_folder() / f"agent-{settings.host}-{settings.port}.lock")
        self._desktop: AgentDesktop | None = None

    async def fresh(self) -> AgentDesktop:
        """The machine's desktop, put back. Raises SandboxError where another session has the machine or it cannot be put back, and what
        AgentDesktop.open raises."""
        settings = self._settings
        if not self._lock.is_held and not self._lock.acquire():
            raise SandboxError(
                f"The machine at {settings.host}:{settings.port} is in use by process {self._lock.holder()}: it has one desktop. Wait for "
                "that process to end, or give this one another machine."
            )
        if self._desktop is not None:
            await self._desktop.close()
            self._desktop = None
        await self._restore()
        self._desktop = await self._answering()
        return self._desktop

    async def _restore(self) -> None:
        command, limit_s = self._settings.restore, self._settings.restore_s
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise SandboxError(f"The command that puts a machine back, {command[0]!r}, cannot be run: {error.strerror}.") from error
        try:
            _, said = await asyncio.wait_for(process.communicate(), limit_s)
        except TimeoutError as error:
            raise SandboxTimeout(f"{' '.join(command)!r} did not put the machine back within {limit_s:g} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            output = said[-300:].decode(errors="replace").strip()
            raise SandboxError(f"{' '.join(command)!r} did not put the machine back (exit code {process.returncode}): {output}")

    async def _answering(self) -> AgentDesktop:
        settings, deadline = self._settings, time.monotonic() + self._settings.restore_s
        while True:
            try:
                return await AgentDesktop.open(settings.host, settings.port, settings.token, call_s=settings.call_s)
            except (DesktopCrashed, SandboxTimeout):  # it starts
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)

    async def is_well(self) -> bool:
        """Not known: there is one machine."""
        return False

    async def close(self) -> None:
        if self._desktop is not None:
            await self._desktop.close()
            self._desktop = None
        self._lock.release()
