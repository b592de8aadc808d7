"""AndroidDevice: one device or emulator behind an adb server, as coroutines over `adbutils`, which alone is imported here. What an
action, a task or an episode is, is not known here.

adbutils blocks: every call runs in the one thread of its device, in order, under a limit. The adb server must be there already (`adb
start-server`): we neither start nor stop one. Needs Android 7 or later, for exit codes and raw output of commands.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from adbutils import AdbClient, AdbConnection, AdbDevice, AdbError, AdbTimeout
from adbutils.errors import AdbSyncError

from warehouse.core.errors import DeviceLost, DeviceMissing, SandboxError, SandboxTimeout

T = TypeVar("T")

READY_STATE = "device"
DUMP_FILE = "/data/local/tmp/flywheel-ui.xml"
DUMP_ATTEMPTS = 4
MAX_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """How a command on the device ended."""

    command: str
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace").replace("\r\n", "\n").strip()


class _Connection(AdbConnection):
    """A connection to an adb server that is there; adbutils would start one that outlives us. Closes at once, where adbutils waits 10 ms
    each time."""

    def __init__(self, host: str, port: int, limit_s: float) -> None:
        self._address, self._limit_s = (host, port), limit_s
        super().__init__(host, port)

    def _safe_connect(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, timeout=self._limit_s)
        except TimeoutError as error:
            raise AdbTimeout("connect to adb server timeout") from error
        except OSError as error:
            raise AdbError(f"connect to adb server failed: {error}") from error

    def close(self) -> None:
        self.conn.close()


class _Client(AdbClient):
    def __init__(self, host: str, port: int, limit_s: float) -> None:
        super().__init__(host, port)
        self._limit_s = limit_s
        self._version: int | None = None
        self._made: weakref.WeakSet[AdbConnection] = weakref.WeakSet()

    def make_connection(self, timeout: float | None = None) -> AdbConnection:
        connection = _Connection(self.host, self.port, timeout or self._limit_s)
        self._made.add(connection)
        return connection

    def server_version(self) -> int:
        """Asked once: adbutils asks before every command."""
        if self._version is None:
            self._version = int(super().server_version())
        return self._version

    def close_connections(self) -> None:
        """adbutils leaves the connection open when a device is refused."""
        for connection in list(self._made):
            connection.close()


class AndroidDevice:
    """`device = await AndroidDevice.open()`; close it when done. One command at a time; callers may be many."""

    def __init__(self, client: _Client, serial: str, limit_s: float) -> None:
        """For `open`, which also looks whether the device is there."""
        self.serial = serial
        self._client, self._limit_s = client, limit_s
        self._device = AdbDevice(client, serial=serial)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"adb-{serial}")
        self._is_closed = False
        self._build = ""

    @classmethod
    async def open(cls, serial: str | None = None, *, host: str = "127.0.0.1", port: int = 5037, limit_s: float = 30.0) -> AndroidDevice:
        """The device of a serial (`emulator-5554`, `host:port` after `adb connect`), or the only one there is. `limit_s` is the longest
        that one command may take. Raises DeviceMissing for no device, an unusable one, or several to choose from."""
        client = _Client(host, port, limit_s)
        try:
            found = {info.serial: info.state for info in await asyncio.to_thread(client.list, extended=False)}
        except (AdbError, OSError) as error:
            raise DeviceMissing(f"No adb server answers at {host}:{port} ({error}). Start one: adb start-server") from error
        listed = ", ".join(f"{name} ({state})" for name, state in sorted(found.items())) or "none"
        if serial is None:
            ready = [name for name, state in found.items() if state == READY_STATE]
            if len(ready) != 1:
                raise DeviceMissing(f"{len(ready)} Android devices are ready, of {listed}; a session needs one: name it by its serial.")
            serial = ready[0]
        if found.get(serial) != READY_STATE:
            raise DeviceMissing(
                f"Android device {serial!r} is {found.get(serial, 'not connected')}; devices there: {listed}. Connect it (adb connect, "
                "USB), or allow this computer on its screen."
            )
        device = cls(client, serial, limit_s)
        try:
            await device._identify()
        except BaseException:
            await device.close()
            raise
        return device

    async def _identify(self) -> None:
        features = await self._call(self._device.get_features)
        if "shell_v2" not in features.split(","):
            raise DeviceMissing(f"Android device {self.serial} is older than Android 7: its adbd has no shell protocol 2 ({features}).")
        names = ("ro.product.model", "ro.build.version.release", "ro.build.version.incremental")
        answer = await self.shell("; ".join(f"getprop {name}" for name in names))
        self._build = "Android " + " ".join(part for part in answer.text.splitlines() if part)

    @property
    def environment(self) -> str:
        """Model, version and build: what pixels and behaviour depend on."""
        return self._build

    async def shell(self, command: str, *, check: bool = True, limit_s: float | None = None) -> ShellResult:
        """Run a command line in the device's shell. Raises SandboxError for an exit code other than 0, unless `check` is off."""
        result = await self._call(lambda: self._shell(command, limit_s or self._limit_s), limit_s)
        if check and result.exit_code != 0:
            said = (result.stderr or result.stdout).decode(errors="replace").strip()[:MAX_ERROR_CHARACTERS]
            raise SandboxError(f"Android device {self.serial}: {command!r} ended with exit code {result.exit_code}: {said!r}.")
        return result

    def _shell(self, command: str, limit_s: float) -> ShellResult:
        answer = self._device.shell2(command, timeout=limit_s, encoding=None, v2=True)
        return ShellResult(command=command, exit_code=answer.returncode, stdout=answer.stdout, stderr=answer.stderr)

    async def screenshot(self) -> bytes:
        """The screen as PNG bytes, as it is turned now."""
        png = (await self.shell("screencap -p")).stdout
        if not png.startswith(b"\x89PNG"):
            raise SandboxError(f"screencap of Android device {self.serial} gave no PNG: {png[:80]!r}. Is a secure window in front?")
        return png

    async def dump_ui(self) -> str:
        """UI Automator's tree of the screen as XML. UI Automator waits until nothing moves and gives up on a screen that never rests; it
        is asked a few times before that is an error."""
        path = shlex.quote(DUMP_FILE)
        for attempt in range(DUMP_ATTEMPTS):
            result = await self.shell(f"rm -f {path}; uiautomator dump {path} >&2 && cat {path}", check=False)
            if result.exit_code == 0 and b"<hierarchy" in result.stdout:
                return result.stdout.decode(errors="replace")
            await asyncio.sleep(0.2 * (attempt + 1))
        said = (result.stderr + result.stdout).decode(errors="replace").strip()[:MAX_ERROR_CHARACTERS]
        raise SandboxError(f"UI Automator of Android device {self.serial} gave no tree in {DUMP_ATTEMPTS} attempts: {said!r}.")

    async def screen_size(self) -> tuple[int, int]:
        """Width and height in pixels of the screen held upright (`wm size`, an override before the panel's own)."""
        lines = (await self.shell("wm size")).text.splitlines()
        try:
            width, height = lines[-1].rpartition(":")[2].split("x")
            return int(width), int(height)
        except (IndexError, ValueError) as error:
            raise SandboxError(f"`wm size` of Android device {self.serial} said {lines!r}, expected a line like 1080x2400.") from error

    async def push(self, content: bytes, path: str, mode: int = 0o644) -> None:
        """Write a file on the device."""
        await self._call(lambda: self._device.sync.push(content, path, mode, check=True))

    async def launchable(self) -> dict[str, str]:
        """The activity that a launcher shows, as `am` names it, by package."""
        main = "-a android.intent.action.MAIN -c android.intent.category.LAUNCHER"
        lines = (await self.shell(f"cmd package query-activities --brief {main}")).text.splitlines()
        found = [line.strip() for line in lines if "/" in line and " " not in line.strip()]
        return {activity.partition("/")[0]: activity for activity in reversed(found)}

    async def wait_until_ready(self, limit_s: float) -> None:
        """Wait until the device is back and its system has booted: after a snapshot was loaded, adb loses it for a moment."""

        async def booted() -> None:
            while True:
                try:
                    if (await self.shell("getprop sys.boot_completed", check=False)).text == "1":
                        return
                except (DeviceLost, SandboxTimeout):
                    pass
                await asyncio.sleep(0.2)

        try:
            await asyncio.wait_for(booted(), limit_s)
        except TimeoutError as error:
            raise SandboxTimeout(f"Android device {self.serial} was not ready within {limit_s:g} s.") from error

    async def _call(self, work: Callable[[], T], limit_s: float | None = None) -> T:
        """Run in the device's thread; what adb says becomes an error of ours."""
        if self._is_closed:
            raise SandboxError(f"Android device {self.serial} is closed.")
        limit_s = limit_s or self._limit_s

        def run() -> T:
            try:
                return work()
            except BaseException:
                self._client.close_connections()
                raise

        try:
            # The socket's own limit counts from byte to byte; this one counts the whole.
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._thread, run), limit_s * 1.5)
        except (AdbTimeout, TimeoutError) as error:
            raise SandboxTimeout(f"Android device {self.serial} did not answer within {limit_s:g} s.") from error
        except AdbSyncError as error:
            raise SandboxError(f"Android device {self.serial}: the file was not transferred: {error}") from error
        except (AdbError, EOFError, OSError) as error:
            raise DeviceLost(f"Android device {self.serial} is gone, or its adb server: {error}. See `adb devices`.") from error

    async def close(self) -> None:
        """Forget the device; it goes on running. May be called twice."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def join(commands: Sequence[str]) -> str:
    """One command line that ends at the first command that fails."""
    return " && ".join(commands)
