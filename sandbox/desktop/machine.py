"""A virtual machine as a process: QEMU with a disk image, snapshots, and one port of loopback that leads to the guest agent. What a desktop
is, is not known here (sandbox/desktop/qemu.py).

The image is never written: the machine writes to an overlay of its own, and its snapshots lie there. The guest reaches nothing but QEMU's
own DHCP; what reaches the guest is that one port. QEMU runs as the unprivileged user of sandbox/browser/isolation/scratch.py, under its own
seccomp filter, in a folder of its own, and is killed by the kernel with the thread that started it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sandbox.browser.isolation.scratch import Profile, browser_user, reap_profiles
from sandbox.desktop.qmp import Qmp
from warehouse.core.errors import DesktopCrashed, DesktopMissing, SandboxError

Accelerator = Literal["kvm", "tcg"]

QEMU, QEMU_IMG = "qemu-system-x86_64", "qemu-img"
AGENT_PORT = 8765
SNAPSHOT = "ready"
KVM_TRIAL_S = 20.0
KERNEL_LINE = "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 panic=-1 mitigations=off no_timer_check"
"""`no_timer_check`: on a busy host the emulated timer is late, and the kernel would take it for broken and give up."""
COMMON = ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
SECCOMP = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A folder with root.img, vmlinuz and initrd.img, as scripts/build-vm-image.sh makes it."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"

    def require(self) -> None:
        """Raises DesktopMissing where QEMU or a file of the image is not there."""
        for program in (QEMU, QEMU_IMG, "setpriv"):
            if shutil.which(program) is None:
                raise DesktopMissing(f"There is no {program}. On Debian as root: apt-get install qemu-system-x86 qemu-utils util-linux")
        for file in (self.disk, self.kernel, self.initrd):
            if not file.is_file():
                raise DesktopMissing(f"There is no {file}. As root: scripts/build-vm-image.sh {self.folder}")


def _wrapper() -> list[str]:
    """Changes the user (with the group that may use /dev/kvm) and asks to be killed with the parent, in this order."""
    user = browser_user()
    change: list[str] = []
    if not user.is_us:
        groups = [f"--groups={os.stat('/dev/kvm').st_gid}"] if os.path.exists("/dev/kvm") else ["--clear-groups"]
        change = [f"--reuid={user.uid}", f"--regid={user.gid}", *groups]
    return ["setpriv", *change, "--pdeathsig=KILL", "--"]


@lru_cache(maxsize=8)
def find_accelerator(image: Image) -> Accelerator:
    """KVM where it really works, which is tried: the image's kernel, without a disk, has to get as far as missing it. Else TCG, which is
    slower by an order of magnitude. Blocks, for some seconds at the first call."""
    if not os.path.exists("/dev/kvm"):
        return "tcg"
    command = [
        *_wrapper(),
        QEMU,
        *COMMON,
        *SECCOMP,
        "-machine",
        "pc,accel=kvm",
        "-cpu",
        "host",
        "-m",
        "512",
        "-kernel",
        str(image.kernel),
        "-append",
        "console=ttyS0 panic=-1",
        "-serial",
        "stdio",
        "-monitor",
        "none",
    ]
    try:
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_TRIAL_S).stdout
    except subprocess.TimeoutExpired:
        return "tcg"
    return "kvm" if b"Kernel panic - not syncing: VFS" in said else "tcg"


class Machine:
    """A running QEMU. Start it with `boot` or `resume`."""

    def __init__(self, image: Image, *, accelerator: Accelerator, memory_mib: int) -> None:
        self._image, self.accelerator, self._memory_mib = image, accelerator, memory_mib
        reap_profiles()
        self._scratch = Profile()
        self.folder = self._scratch.path
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        self.port = 0
        """Of loopback; leads to the guest agent."""

    @property
    def overlay(self) -> Path:
        return self.folder / "overlay.qcow2"

    @property
    def seed(self) -> Path:
        return self.folder / "seed.tar"

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def console_tail(self) -> str:
        """What the guest's kernel and QEMU itself said last."""
        texts = []
        for name in ("console.log", "qemu.log"):
            with suppress(OSError):
                texts.append((self.folder / name).read_text(errors="replace")[-1500:].strip())
        return "\n".join(text for text in texts if text)

    async def boot(self, seed: bytes) -> None:
        """Start from the image, with an archive for the guest to unpack as its second disk. Returns when QEMU runs; the guest boots on."""
        self._image.require()
        self.seed.write_bytes(seed)
        # virtio disks are counted in sectors of 512 bytes, which tar archives are too
        make = [QEMU_IMG, "create", "-q", "-f", "qcow2", "-b", str(self._image.disk.resolve()), "-F", "raw", str(self.overlay)]
        done = await asyncio.to_thread(subprocess.run, make, capture_output=True, text=True)
        if done.returncode != 0:
            raise SandboxError(f"qemu-img could not make an overlay of {self._image.disk}: {done.stderr.strip()}")
        await self._start(())

    async def resume(self, overlay: Path, seed: Path) -> None:
        """Start from the snapshot in a copy of an overlay that `keep` made, with the seed that the machine had."""
        self._image.require()
        await _copy(overlay, self.overlay)
        shutil.copyfile(seed, self.seed)
        await self._start(("-loadvm", SNAPSHOT))

    async def _start(self, more: tuple[str, ...]) -> None:
        user = browser_user()
        for path in (self.folder, self.overlay, self.seed):
            path.chmod(0o700 if path is self.folder else 0o600)
            if not user.is_us:
                os.chown(path, user.uid, user.gid)
        with (self.folder / "qemu.log").open("ab") as log:
            # Not in another thread: the kernel kills the process with the thread that started it.
            command = [*_wrapper(), *self._command(), *more]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        try:
            self._qmp = await Qmp.connect(self.folder / "qmp")
            self.port = _forwarded_port(await self._qmp.monitor("info usernet"))
        except BaseException:
            said = self.console_tail()
            self.kill()
            if said:
                raise DesktopCrashed(f"QEMU did not start: {said[-800:]}") from None
            raise

    def _command(self) -> list[str]:
        cpu = "host" if self.accelerator == "kvm" else "max"
        return [
            QEMU,
            *COMMON,
            *SECCOMP,
            "-machine",
            f"pc,accel={self.accelerator}",
            "-cpu",
            cpu,
            "-m",
            str(self._memory_mib),
            "-smp",
            "1",
            "-kernel",
            str(self._image.kernel.resolve()),
            "-initrd",
            str(self._image.initrd.resolve()),
            "-append",
            KERNEL_LINE,
            "-drive",
            f"file={self.overlay},if=virtio,format=qcow2,cache=unsafe",
            "-drive",
            f"file={self.seed},if=virtio,format=raw,readonly=on",
            # restrict: the guest reaches neither the host nor anything beyond it
            "-nic",
            f"user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:0-:{AGENT_PORT}",
            "-device",
            "virtio-rng-pci",
            "-rtc",
            "base=2026-01-01T12:00:00,clock=vm",
            "-serial",
            f"file:{self.folder / 'console.log'}",
            "-monitor",
            "none",
            "-qmp",
            f"unix:{self.folder / 'qmp'},server=on,wait=off",
        ]

    async def save(self) -> float:
        """Keep memory, devices and disk as a snapshot; seconds that it took. The machine runs on."""
        return await self._monitor_quietly(f"savevm {SNAPSHOT}")

    async def load(self) -> float:
        """Put memory, devices and disk back to the snapshot; seconds that it took."""
        return await self._monitor_quietly(f"loadvm {SNAPSHOT}")

    async def _monitor_quietly(self, line: str) -> float:
        start = time.monotonic()
        if said := (await self._control().monitor(line)).strip():
            raise SandboxError(f"QEMU could not {line!r}: {said}")
        return time.monotonic() - start

    async def keep(self, overlay: Path) -> None:
        """Copy the overlay with the snapshot in it, while the machine stands still."""
        await self._control().execute("stop")  # which also writes out what QEMU holds of the disk
        try:
            await _copy(self.overlay, overlay)
        finally:
            await self._control().execute("cont")

    def _control(self) -> Qmp:
        if self._qmp is None or not self.is_alive:
            raise DesktopCrashed(f"The virtual machine is gone. It said last: {self.console_tail()[-800:]}")
        return self._qmp

    def kill(self) -> None:
        """End QEMU at once and remove its folder; may be called twice."""
        if self._qmp is not None:
            self._qmp.close()
            self._qmp = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._scratch.remove()


async def _copy(source: Path, target: Path) -> None:
    """Sharing blocks where the file system can. Raises SandboxError."""
    command = ["cp", "--reflink=auto", "--sparse=auto", str(source), str(target)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SandboxError(f"A machine's overlay could not be copied to {target.parent}: {done.stderr.strip()}. Is the disk full?")


def _forwarded_port(usernet: str) -> int:
    """The port of loopback by what `info usernet` lists: `TCP[HOST_FORWARD]  12  127.0.0.1 35173  10.0.2.15  8765 …`."""
    match = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)\s", usernet)
    if match is None:
        raise SandboxError(f"QEMU names no port that leads to the guest: {usernet!r}")
    return int(match[1])
