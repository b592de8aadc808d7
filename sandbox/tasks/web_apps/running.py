"""RunningApp: one application in a jail of its own, with fresh data. Nothing of it is there after the episode; it reaches no network.

The data is made once, in a jail too, and kept beside the application in the cache; an episode begins with a copy.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from sandbox.tasks.web_apps.apps import PORT, WebApp
from sandbox.tasks.web_apps.http import Answer, request
from sandbox.tasks.web_apps.install import apps_folder, install, make_once
from sandbox.tasks.web_apps.state import State, read_state
from sandbox.terminal.bubblewrap import PYTHON, JailLimits
from sandbox.terminal.jail import Jail, JailProcess
from sandbox.terminal.workspace import Refused
from warehouse.core.errors import JailCrashed, WebAppCrashed, WebAppSpoiled

START_TIMEOUT_S = 60.0
SEED_TIMEOUT_S = 120.0
POLL_S = 0.02
READ_LIMIT_S = 1.0
"""What cannot be read is looked at again for so long."""
APP_PLACE = "/opt/app"
LIMITS = JailLimits(processes=64, memory_mib=1024, cpus=2.0, workspace_mib=64)
MAX_DATABASE_BYTES = 16 << 20
_INSIDE = Path(__file__).with_name("inside")


@cache
def _program(name: str) -> str:
    return (_INSIDE / name).read_text(encoding="utf-8")


class RunningApp:
    """Made by `RunningApp.start`; close it when its episode is over."""

    def __init__(self, app: WebApp, jail: Jail, process: JailProcess) -> None:
        self.app, self.jail = app, jail
        self._process = process
        self._cookies: dict[str, str] = {}

    @classmethod
    async def start(cls, app: WebApp) -> RunningApp:
        """Raises WebAppMissing, WebAppCrashed, BubblewrapMissing, JailCrashed, SandboxTimeout."""
        folder, files = await prepare(app)
        jail = await Jail.start(LIMITS, lent={APP_PLACE: folder})
        try:
            for path, content in files.items():
                jail.workspace.write(path, content)
            process = await jail.spawn([PYTHON, "-IBSc", _program("serve.py"), *app.serve])
            running = cls(app, jail, process)
            await running._wait()
            return running
        except BaseException:
            await jail.close()
            raise

    async def _wait(self) -> None:
        """Until it answers as it should."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.exit_code is not None:
                raise WebAppCrashed(f"{self.app.name} ended with {self._process.exit_code} before it was up: {await self._said()!r}")
            try:
                status = (await self.get(self.app.ready)).status
            except ConnectionRefusedError:
                await asyncio.sleep(POLL_S)
                continue
            if status != 200:
                raise WebAppCrashed(f"{self.app.name} answers {self.app.ready} with {status}. It said: {await self._said()!r}")
            return
        raise WebAppCrashed(f"{self.app.name} was not up within {START_TIMEOUT_S:g} s. It said: {await self._said()!r}")

    async def _said(self) -> str:
        """The end of its log."""
        done = await self.jail.run(["/usr/bin/tail", "-c", "600", "/tmp/app.log"])
        return done.output.decode(errors="replace")

    async def get(self, path: str) -> Answer:
        return await request(self.jail.connect, PORT, "GET", path, cookies=self._cookies)

    async def post(self, path: str, form: Mapping[str, str]) -> Answer:
        return await request(self.jail.connect, PORT, "POST", path, form=form, cookies=self._cookies)

    async def state(self) -> State:
        """As its database is now. Raises WebAppSpoiled where that is not a database any more, holds something else than tables, or is
        larger than any that episodes make."""
        stop_at_s = time.monotonic() + READ_LIMIT_S
        while True:
            try:
                content = self.jail.workspace.read(self.app.database, limit_bytes=MAX_DATABASE_BYTES)
                return await read_state(content, self.app.tables)
            except Refused as error:
                raise WebAppSpoiled(f"the application's database is not what it was: {error}") from error
            except (WebAppSpoiled, FileNotFoundError) as error:  # the application may be writing
                if time.monotonic() > stop_at_s:
                    raise WebAppSpoiled(f"the application's database cannot be read: {error}") from error
            await asyncio.sleep(POLL_S)

    async def check(self) -> None:
        """Raises JailCrashed, SandboxTimeout, and WebAppCrashed where nothing listens any more in a jail that is well."""
        await self.jail.check()
        try:
            _, writer = await self.jail.connect(PORT)
        except ConnectionRefusedError as error:
            raise WebAppCrashed(f"{self.app.name} has ended, or takes no connections any more") from error
        writer.close()

    async def close(self) -> None:
        for stream in self._process.take_streams():
            os.close(stream)
        await self.jail.close()


async def prepare(app: WebApp) -> tuple[Path, dict[str, bytes]]:
    """The application's folder, and the files that an episode begins with; both are made where they are not there yet. Raises
    WebAppMissing, WebAppCrashed and what jails raise."""
    folder = await asyncio.to_thread(install, app.name, app.pins)
    return folder, await _seeded(app, folder)


async def _seeded(app: WebApp, folder: Path) -> dict[str, bytes]:
    """The files of a fresh copy's workspace, by path."""
    place = apps_folder() / f"{app.name}-{app.world_id}"
    if not place.is_dir():
        files = await _seed(app, folder)
        await asyncio.to_thread(make_once, place, lambda aside: _write(aside, files))
    return await asyncio.to_thread(_read, place)


async def _seed(app: WebApp, folder: Path) -> dict[str, bytes]:
    jail = await Jail.start(replace(LIMITS, cpus=1.0), lent={APP_PLACE: folder})
    try:
        jail.workspace.write("world.json", app.seed_json())
        done = await jail.run([PYTHON, "-IBSc", _program("seed.py"), app.seed], timeout_s=SEED_TIMEOUT_S)
        if done.exit_code != 0:
            raise WebAppCrashed(f"Seeding {app.name} gave {done.exit_code}: {done.output.decode(errors='replace')[-600:]!r}")
        workspace = jail.workspace
        return {entry.path: workspace.read(entry.path) for entry in workspace.walk("data") if entry.kind == "file"}
    except JailCrashed as error:
        raise WebAppCrashed(f"The jail of {app.name} ended while its data was made: {error}") from error
    finally:
        await jail.close()


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _read(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
