"""WorkerProcess: a worker as its manager holds it: starting it, asking it, watching that it answers, ending it with all it started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox.browser.isolation.scratch import reap_profiles
from sandbox.fleet.channel import Channel, Params
from sandbox.fleet.settings import FleetSettings
from warehouse.core.errors import SandboxError, SandboxTimeout

ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""What is on the path of modules: a worker finds them as we did."""
EXIT_LIMIT_S = 20.0


class WorkerProcess:
    """A running worker. It leads a session and process group of its own; its browsers die with it (chromium.py)."""

    def __init__(self, settings: FleetSettings, on_lost: Callable[[WorkerProcess], None]) -> None:
        """Starts the process, which takes some milliseconds here and half a second there: `start` waits for it. `on_lost` is called as
        soon as it can be asked no more, for whatever reason."""
        self._settings, self._on_lost = settings, on_lost
        self._channel: Channel | None = None
        self._watch: asyncio.Task[None] | None = None
        self.born_s = self.used_s = time.monotonic()
        self.num_leases = 0
        self.report: Params = {"browser_pids": [], "counts": {}, "memory_mib": 0.0, "browsers_memory_mib": 0.0, "slots": []}
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                [*_dies_with_us(), sys.executable, "-m", "sandbox.fleet.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints there is not the caller's output
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._sock = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_alive(self) -> bool:
        """It can be asked."""
        return self._channel is not None and not self._channel.is_lost

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            raise SandboxError("The worker was not started.")
        return self._channel

    async def start(self) -> None:
        """Wait until it can be asked. Raises SandboxError or ConfigError where it comes to nothing; it is gone then."""
        try:
            self._channel = await Channel.open(self._sock, on_lost=lambda: self._on_lost(self))
            async with asyncio.timeout(self._settings.start_limit_s):
                self.report = await self._channel.call("start", settings=self._settings.model_dump(mode="json"))
        except TimeoutError as error:
            self.kill("It did not start in time.")
            limit_s = self._settings.start_limit_s
            raise SandboxTimeout(f"A sandbox process was not ready after {limit_s:g} s; the machine is overloaded.") from error
        except BaseException:
            self.kill("It did not start.")
            raise
        self._watch = asyncio.create_task(self._watch_over(self._channel), name=f"worker {self.pid}")

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.channel.call(method, **params)

    async def refresh(self) -> None:
        """Have the report renewed. Raises WorkerCrashed."""
        self.report = await self.ask("ping")

    async def _watch_over(self, channel: Channel) -> None:
        """Ask again and again whether it still answers, until it is gone."""
        limit_s = self._settings.hung_after_s
        while not channel.is_lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await channel.lost.wait()
            ping = asyncio.create_task(self.refresh())
            ping.add_done_callback(_retrieve)
            try:
                # Not a timeout that cancels: if our own loop stood still, the answer is there before the time is seen to be up.
                await asyncio.wait([ping], timeout=limit_s)
            finally:
                ping.cancel()
            if not ping.done():
                self.kill(f"The sandbox process {self.pid} answered nothing for {limit_s:g} s and was killed. Start the episode again.")
        await self._wait_for_exit()
        await asyncio.to_thread(reap_profiles)  # what the browsers of a killed worker left on the disk

    def kill(self, reason: str) -> None:
        """End it at once, with its group; what waits for it gets WorkerCrashed. May be called twice."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._channel is not None:
            self._channel.close(reason)
        else:
            self._sock.close()

    async def close(self) -> None:
        """Let it end its sessions and browsers, then end it. What waits for it gets WorkerCrashed. May be called twice."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._channel is not None:
            self._channel.close("The sandbox process was closed.")
            await self._wait_for_exit()
        self.kill("The sandbox process was closed.")

    async def _wait_for_exit(self) -> None:
        """It ends by itself when its socket closes; what does not is killed."""
        deadline_s = time.monotonic() + EXIT_LIMIT_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        self.kill("The sandbox process is gone.")


def _dies_with_us() -> list[str]:
    """A wrapper that has the kernel kill what it becomes when our thread ends, however that happens; nothing where there is none, and the
    worker goes by its socket alone."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [] if setpriv is None else [setpriv, "--pdeathsig=KILL", "--"]


def _retrieve(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()
