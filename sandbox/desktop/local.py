"""LocalDesktop: the Desktop protocol over a box on this machine, and LocalDesktops, which has the next one started before it is needed.

No desktop is used for two episodes: every one is a new box, so nothing can cross from one to the next. What that costs, half a second,
is spent while the episode before still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from sandbox.desktop.apps import find_app, packages_id, require
from sandbox.desktop.box import HOME, Box, BoxSettings
from sandbox.desktop.requested import RequestedDesktop, inside_home
from sandbox.desktop.wine import MAKING_LIMIT_S, furnish_command, make_template, windows_path
from warehouse.core.errors import SandboxError

FURNISHING_LIMIT_S = 60.0


class LocalDesktop(RequestedDesktop):
    """One display of this machine with its applications, in a box."""

    def __init__(self, box: Box) -> None:
        super().__init__(box.settings.call_s)
        self._box = box
        self._version = ""
        self._has_wine = False

    @classmethod
    async def open(cls, settings: BoxSettings | None = None) -> LocalDesktop:
        """Start a box and wait until it is up. Raises DesktopMissing, DesktopCrashed, SandboxTimeout."""
        desktop = cls(Box(settings or BoxSettings()))
        try:
            await desktop._box.ready()
            desktop._version = f"{await desktop._call('version')}, {await asyncio.to_thread(packages_id)}"
        except BaseException:
            await desktop.close()
            raise
        return desktop

    @property
    def size_px(self) -> tuple[int, int]:
        return self._box.settings.width_px, self._box.settings.height_px

    @property
    def environment(self) -> str:
        return f"{self._version}, {self.size_px[0]}x{self.size_px[1]}"

    @property
    def pid(self) -> int:
        """Process id of the box: everything of the desktop is below it."""
        return self._box.pid

    def memory_mib(self) -> float:
        """Proportional set size of the desktop with all that runs in it."""
        return self._box.memory_mib()

    async def _call(self, method: str, blob: bytes = b"", *, limit_s: float | None = None, **arguments: Any) -> Any:
        return (await self._box.call(method, blob, limit_s=limit_s, **arguments))[0]

    async def screenshot(self) -> bytes:
        return (await self._box.call("screenshot"))[1]

    async def launch(self, app: str, files: Sequence[PurePosixPath] = ()) -> None:
        found = find_app(app)
        require([app])
        paths = [PurePosixPath(HOME, inside_home(path)) for path in files]
        if found.needs_wine and not self._has_wine:
            await _make_wine_template()
            laid_out = await self.run(furnish_command(), timeout_s=FURNISHING_LIMIT_S)
            if laid_out.exit_code != 0:
                raise SandboxError(f"No Wine prefix could be laid out in a desktop: {laid_out.stderr[-500:]}")
            self._has_wine = True
        names = [windows_path(path) if found.needs_wine else str(path) for path in paths]
        await self._call("launch", command=[*found.command_for(paths), *names])

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        await self._call("put_file", content, path=inside_home(path))

    async def get_file(self, path: PurePosixPath) -> bytes | None:
        was_found, content = await self._box.call("get_file", path=inside_home(path))
        return content if was_found else None

    async def processes(self) -> list[str]:
        """Names of the programs that run in the box."""
        return list(await self._call("processes"))

    async def close(self) -> None:
        await asyncio.to_thread(self._box.close)


class LocalDesktops:
    """Desktops of this machine, one at a time, and a spare one that starts while the one before is in use."""

    def __init__(self, settings: BoxSettings | None = None, *, has_spare: bool = True) -> None:
        self._settings = settings or BoxSettings()
        self._has_spare = has_spare
        self._current: LocalDesktop | None = None
        self._spare: asyncio.Task[LocalDesktop] | None = None

    async def fresh(self) -> LocalDesktop:
        """Raises what LocalDesktop.open raises."""
        await self._end_current()
        spare, self._spare = self._spare, None
        desktop = await spare if spare is not None else await LocalDesktop.open(self._settings)
        if not desktop._box.is_alive:  # the spare one died while it waited
            await desktop.close()
            desktop = await LocalDesktop.open(self._settings)
        self._current = desktop
        if self._has_spare:
            self._spare = asyncio.create_task(LocalDesktop.open(self._settings))
        return desktop

    async def is_well(self) -> bool:
        self._spare = self._spare or asyncio.create_task(LocalDesktop.open(self._settings))
        try:
            return (await asyncio.shield(self._spare))._box.is_alive
        except SandboxError:
            self._spare = None
            return False

    async def _end_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            await current.close()

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        await self._end_current()
        if spare is not None:
            spare.cancel()
            for found in await asyncio.gather(spare, return_exceptions=True):
                if isinstance(found, LocalDesktop):
                    await found.close()


async def _make_wine_template() -> None:
    """In a box of its own, if the template is not there. Raises SandboxError."""

    async def run(workshop: Path, command: list[str]) -> tuple[int, str]:
        desktop = LocalDesktop(Box(BoxSettings(), workshop))
        try:
            await desktop._box.ready()
            result = await desktop.run(command, timeout_s=MAKING_LIMIT_S)
            return result.exit_code, result.stdout + result.stderr
        finally:
            await desktop.close()

    await make_template(run)
