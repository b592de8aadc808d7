"""QemuDesktops: desktops in a virtual machine, each episode's put back from a snapshot. How QEMU is run is sandbox/desktop/machine.py.

A machine boots once: then the guest agent runs with nothing open, and that moment is kept, memory and disk. Every episode begins there, so
nothing crosses from one to the next. The kept moment also outlives us, in the cache folder: later machines of the same image and agent
begin there without booting.
"""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sandbox.cache import cache_folder
from sandbox.desktop.agent_desktop import AgentDesktop
from sandbox.desktop.box import ENVIRONMENT
from sandbox.desktop.machine import AGENT_PORT, KERNEL_LINE, QEMU, Accelerator, Image, Machine, find_accelerator
from warehouse.core.errors import DesktopCrashed, SandboxError, SandboxTimeout
from warehouse.core.identity import content_id

HERE = Path(__file__).parent
IN_GUEST = "/opt/flywheel"
MAX_KEPT = 3
"""Kept moments, some hundred MiB each: those used longest ago are removed."""
POLL_S = 0.2


def default_image() -> Image:
    """Where scripts/build-vm-image.sh is asked to put the image."""
    return Image(folder=cache_folder() / "vm-debian")


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuSettings:
    """Sizes and limits of a machine. `boot_s` is for a slow host without KVM."""

    image: Image = field(default_factory=default_image)
    width_px: int = 1024
    height_px: int = 768
    memory_mib: int = 1024
    accelerator: Literal["auto"] | Accelerator = "auto"
    is_kept: bool = True
    """Whether the booted moment is kept for later machines."""
    boot_s: float = 600.0
    restore_s: float = 120.0
    call_s: float = 120.0


@dataclass(slots=True, kw_only=True)
class Times:
    """How long the parts took, in seconds; None for what did not happen."""

    boot_s: float | None = None
    save_s: float | None = None
    resume_s: float | None = None
    loads_s: list[float] = field(default_factory=list)
    """From the command until the guest's agent answers, for each episode after the first."""


class QemuDesktop(AgentDesktop):
    """The desktop of a machine, from one restoration to the next."""

    machine = ""

    @property
    def environment(self) -> str:
        return f"{super().environment}, {self.machine}"


class QemuDesktops:
    """Desktops, one at a time, of one machine. Where the machine died, the next desktop has another one."""

    def __init__(self, settings: QemuSettings | None = None) -> None:
        self._settings = settings or QemuSettings()
        self._machine: Machine | None = None
        self._token = ""
        self._desktop: QemuDesktop | None = None
        self._is_closed = False
        self.times = Times()

    @property
    def machine(self) -> Machine | None:
        """The machine that runs now, if any."""
        return self._machine

    async def fresh(self) -> QemuDesktop:
        """The desktop as it was when the machine had booted. Raises DesktopMissing, DesktopCrashed, SandboxTimeout."""
        if self._is_closed:
            raise SandboxError("These desktops are closed; make others.")
        if self._desktop is not None:
            await self._desktop.close()
            self._desktop = None
        if self._machine is not None and self._machine.is_alive:
            try:
                return await self._restore(self._machine)
            except SandboxError:
                self._end_machine()  # a machine that cannot be put back is replaced
        self._end_machine()
        try:
            self._desktop = await self._start()
        except BaseException:
            self._end_machine()
            raise
        return self._desktop

    async def _restore(self, machine: Machine) -> QemuDesktop:
        start = time.monotonic()
        await machine.load()
        self._desktop = await self._answering(machine, self._settings.restore_s)
        self.times.loads_s.append(time.monotonic() - start)
        return self._desktop

    async def _start(self) -> QemuDesktop:
        """A new machine: from the kept snapshot, or booted without a usable one."""
        settings = self._settings
        settings.image.require()
        accelerator = find_accelerator(settings.image) if settings.accelerator == "auto" else settings.accelerator
        kept = cache_folder() / self._key(accelerator)
        if settings.is_kept and kept.is_dir():
            try:
                return await self._resume(self._new_machine(accelerator), kept)
            except (SandboxError, OSError):
                self._end_machine()
                shutil.rmtree(kept, ignore_errors=True)
        return await self._boot(self._new_machine(accelerator), kept)

    def _new_machine(self, accelerator: Accelerator) -> Machine:
        self._machine = Machine(self._settings.image, accelerator=accelerator, memory_mib=self._settings.memory_mib)
        return self._machine

    async def _resume(self, machine: Machine, kept: Path) -> QemuDesktop:
        start = time.monotonic()
        os.utime(kept)
        self._token = (kept / "token").read_text(encoding="ascii")
        await machine.resume(kept / "overlay.qcow2", kept / "seed.tar")
        desktop = await self._answering(machine, self._settings.restore_s)
        self.times.resume_s = time.monotonic() - start
        return desktop

    async def _boot(self, machine: Machine, kept: Path) -> QemuDesktop:
        start, settings = time.monotonic(), self._settings
        self._token = secrets.token_urlsafe(32)
        await machine.boot(seed_archive(self._token, settings.width_px, settings.height_px))
        desktop = await self._answering(machine, settings.boot_s)
        await desktop.settle()
        self.times.boot_s = time.monotonic() - start
        self.times.save_s = await machine.save()
        if settings.is_kept:
            await self._keep(machine, kept)
        return desktop

    async def _answering(self, machine: Machine, limit_s: float) -> QemuDesktop:
        """The desktop, once the agent in the machine answers. Raises DesktopCrashed where QEMU ends first, SandboxTimeout."""
        deadline = time.monotonic() + limit_s
        while machine.is_alive:
            try:
                # A request that the guest was too early for is lost without a word, so each is given up soon.
                await QemuDesktop.open("127.0.0.1", machine.port, self._token, call_s=5.0)
                desktop = await QemuDesktop.open("127.0.0.1", machine.port, self._token, call_s=self._settings.call_s)
                desktop.machine = f"{qemu_version()} {machine.accelerator}"
                return desktop
            except (DesktopCrashed, SandboxTimeout) as error:
                if time.monotonic() > deadline:
                    said = machine.console_tail()[-800:]
                    raise SandboxTimeout(f"No guest agent answered within {limit_s:g} s. The machine said last: {said!r}") from error
                await asyncio.sleep(POLL_S)
        raise DesktopCrashed(f"The virtual machine ended before its agent answered. It said last: {machine.console_tail()[-800:]!r}")

    async def _keep(self, machine: Machine, kept: Path) -> None:
        """The snapshot for later machines, in a folder that only we read: the agent's token is in it."""
        aside = Path(tempfile.mkdtemp(prefix="aside-", dir=kept.parent))
        try:
            await machine.keep(aside / "overlay.qcow2")
            shutil.copyfile(machine.seed, aside / "seed.tar")
            (aside / "token").write_text(self._token, encoding="ascii")
            with suppress(OSError):  # another process was first
                aside.rename(kept)
            forget_old(kept.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _key(self, accelerator: Accelerator) -> str:
        """Of all that the kept moment depends on."""
        settings, image = self._settings, self._settings.image
        files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in (image.disk, image.kernel, image.initrd)]
        agent = [[name, content.decode()] for name, content in agent_files().items()]
        sizes = [settings.width_px, settings.height_px, settings.memory_mib]
        return content_id("vm-booted", [files, agent, sizes, accelerator, qemu_version(), KERNEL_LINE, dict(ENVIRONMENT)])

    def _end_machine(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.kill()

    async def is_well(self) -> bool:
        """Not known: there is one machine."""
        return False

    async def close(self) -> None:
        self._is_closed = True
        if self._desktop is not None:
            await self._desktop.close()
        self._end_machine()


@lru_cache(maxsize=1)
def agent_files() -> dict[str, bytes]:
    """What runs in the guest, by its path there. Read once, so that all machines of a process have the same, even after an edit."""
    parts = [HERE.parent / "__init__.py", HERE / "__init__.py", *sorted(path for path in (HERE / "inside").iterdir() if path.is_file())]
    files = {f"sandbox/{path.relative_to(HERE.parent).as_posix()}": path.read_bytes() for path in parts}
    return files | {"guest_agent.py": (HERE / "guest_agent.py").read_bytes()}


@lru_cache(maxsize=1)
def qemu_version() -> str:
    """`QEMU 7.2.22`."""
    said = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(said.splitlines()[0].split()[:4]).replace("emulator version ", "")


def forget_old(folder: Path) -> None:
    """Remove all kept moments but those used last."""
    kept = sorted(folder.glob("vm-booted-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[MAX_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def seed_archive(token: str, width_px: int, height_px: int) -> bytes:
    """What the guest unpacks to /opt/flywheel at boot: the agent, what it needs, its token, and `start`, which starts it."""
    variables = ENVIRONMENT | {"PYTHONPATH": f"{IN_GUEST}:/opt/python"}
    agent = [
        "/usr/bin/python3",
        f"{IN_GUEST}/guest_agent.py",
        "--host",
        "0.0.0.0",
        "--port",
        str(AGENT_PORT),  # nosec B104 # in the guest
        "--token-file",
        f"{IN_GUEST}/token",
        "--screen",
        f"{width_px}x{height_px}",
    ]
    start = f"#!/bin/sh\ncd /home/user || exit 1\nexec env -i {_assignments(variables)} {shlex.join(agent)}\n"
    files = {"token": (token.encode(), 0o400), "start": (start.encode(), 0o755)}
    files |= {name: (content, 0o644) for name, content in agent_files().items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
