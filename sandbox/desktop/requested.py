"""What every desktop that is driven by requests has in common, whether a box of this machine answers them (local.py) or a guest agent
(agent_desktop.py): both know the same methods by the same names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from sandbox.browser.input import Phase
from sandbox.desktop import keys
from sandbox.desktop.desktop import CommandResult, FileEntry, Window, WindowChange
from sandbox.session import Element

QUIET_MS = 100.0
"""The screen has settled when it stood still, and no program wanted the processor, for so long."""
SETTLE_LIMIT_MS = 4000.0
"""An animation never settles: then the screen is taken as it is after this."""


class RequestedDesktop(ABC):
    """The part of the Desktop protocol that is one request with plain arguments each. `call_s` is the longest that one may take."""

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s

    @abstractmethod
    async def _call(self, method: str, *, limit_s: float | None = None, **arguments: Any) -> Any: ...

    async def elements(self) -> tuple[Element, ...]:
        return tuple(Element.from_json(item) for item in await self._call("elements"))

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

    async def list_files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(path=PurePosixPath(path), is_folder=is_folder) for path, is_folder in await self._call("list_files"))

    async def run(self, command: Sequence[str], timeout_s: float = 10.0, environment: Mapping[str, str] | None = None) -> CommandResult:
        limit_s, given = self._call_s + timeout_s, dict(environment or {})
        code, stdout, stderr = await self._call("run", limit_s=limit_s, command=list(command), timeout_s=timeout_s, environment=given)
        return CommandResult(exit_code=code, stdout=stdout, stderr=stderr)


def inside_home(path: PurePosixPath) -> str:
    """Raises ValueError for a path that is not below the home."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{str(path)!r} does not lie in the desktop's home folder: give a relative path without '..'.")
    return path.as_posix()
