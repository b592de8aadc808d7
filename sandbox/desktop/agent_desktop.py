"""AgentDesktop: the Desktop protocol over a guest agent's HTTP (sandbox/desktop/guest_agent.py), wherever the agent runs.

Every request has a connection of its own: a machine that is put back to a snapshot knows nothing of connections made since.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Self
from urllib.parse import urlencode

from sandbox.browser.input import Phase
from sandbox.desktop import keys
from sandbox.desktop.apps import find_app
from sandbox.desktop.desktop import CommandResult, FileEntry, Window, WindowChange
from sandbox.desktop.local import QUIET_MS, SETTLE_LIMIT_MS
from sandbox.session import Element
from warehouse.errors import DesktopCrashed, DesktopMissing, SandboxError, SandboxTimeout

AGENT_VERSION = "1"


class AgentDesktop:
    """The desktop behind an agent. `close` leaves the agent running: whoever started its machine ends it."""

    def __init__(self, host: str, port: int, token: str, *, call_s: float = 60.0) -> None:
        """For `open`. `call_s` is the longest that one request may take."""
        self._host, self._port, self._token, self._call_s = host, port, token, call_s
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

    async def elements(self) -> tuple[Element, ...]:
        return tuple(
            Element(
                role=item["role"], text=item["text"], states=tuple(item["states"]), x_px=item["x"], y_px=item["y"],
                width_px=item["width"], height_px=item["height"],
            )
            for item in await self._call("elements")
        )  # fmt: skip

    async def perform(self, phases: Sequence[Phase]) -> None:
        events = keys.events(phases)
        pause_s = sum(event[1] for event in events if event[0] == "pause") / 1000
        await self._call("input", limit_s=self._call_s + pause_s, events=events)

    async def settle(self) -> bool:
        return bool(await self._call("settle", quiet_ms=QUIET_MS, limit_ms=SETTLE_LIMIT_MS))

    async def windows(self) -> tuple[Window, ...]:
        return tuple(Window(**item) for item in await self._call("windows"))

    async def change_window(self, window_id: int, change: WindowChange) -> None:
        await self._call("change_window", window_id=window_id, change=change)

    async def place_window(self, window_id: int, x_px: int, y_px: int, width_px: int | None = None, height_px: int | None = None) -> None:
        await self._call("place_window", window_id=window_id, box=[x_px, y_px, width_px, height_px])

    async def launch(self, app: str, files: Sequence[PurePosixPath] = ()) -> None:
        command = list(find_app(app).command)
        if self._health["platform"] == "win32" and command[0] == "wine":
            command = command[1:]
        command += [_inside_home(path) for path in files]  # programs start in the home folder
        if not await self._call("launch", command=command):
            raise DesktopMissing(f"The guest has no program {command[0]!r} for the application {app!r}. Install it in the guest's image.")

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        await self._request("PUT", f"/v1/file?{urlencode({'path': _inside_home(path)})}", content)

    async def get_file(self, path: PurePosixPath) -> bytes | None:
        status, content = await self._request("GET", f"/v1/file?{urlencode({'path': _inside_home(path)})}")
        return None if status == 404 else content

    async def list_files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(path=PurePosixPath(path), is_folder=is_folder) for path, is_folder in await self._call("list_files"))

    async def run(self, command: Sequence[str], timeout_s: float = 10.0) -> CommandResult:
        limit_s = self._call_s + timeout_s
        code, stdout, stderr = await self._call("run", limit_s=limit_s, command=list(command), timeout_s=timeout_s)
        return CommandResult(exit_code=code, stdout=stdout, stderr=stderr)

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


def _inside_home(path: PurePosixPath) -> str:
    """Raises ValueError for a path that is not below the home."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{str(path)!r} does not lie in the desktop's home folder: give a relative path without '..'.")
    return path.as_posix()
