"""An Android device for tests: AOSP's own `adbd` and Debian's `adb` server, over device-side commands that are simulated (commands.py).

adbd 34 is taken from Debian trixie (its packages are fetched by apt, checked by Debian's keyring, and unpacked into a cache folder; nothing
is installed) and run by the loader and libraries it came with. It lets in whoever reaches it, so it runs in bubblewrap as a user without
privileges, in a network namespace that holds nothing but its own loopback; what leaves it is the adb server's Unix socket.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from sandbox.cache import cache_folder

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = (
    "adbd",
    "android-libbase",
    "android-libboringssl",
    "android-libcutils",
    "android-liblog",
    "libbrotli1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libgcc-s1",
    "liblz4-1",
    "libmd0",
    "libprotobuf32t64",
    "libstdc++6",
    "libsystemd0",
    "libxxhash0",
    "libzstd1",
    "zlib1g",
)
PROGRAMS = ("input", "screencap", "uiautomator", "am", "pm", "settings", "content", "wm", "cmd", "svc", "getprop", "fakelog")
NOBODY = 65534
ADBD_PORT = 15561  # adb looks for emulators at 5555 to 5585 by itself and lists those twice
START_TIMEOUT_S = 120.0


class Unavailable(Exception):
    """This machine cannot have the device, and why: a reason to skip."""


def adbd_root() -> Path:
    """The unpacked packages; fetched at the first call. Raises Unavailable."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("adbd is run from Debian's packages for Linux on x86_64")
    for tool in ("apt-get", "dpkg-deb", "bwrap", "adb", "setpriv"):
        if shutil.which(tool) is None:
            raise Unavailable(f"there is no {tool}: apt-get install adb bubblewrap util-linux")
    if not KEYRING.is_file():
        raise Unavailable("there is no keyring to check Debian's packages by: apt-get install debian-archive-keyring")
    root = cache_folder() / f"adbd-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"
    if not root.exists():
        aside = Path(tempfile.mkdtemp(prefix="adbd-", dir=root.parent))
        try:
            _fetch(aside)
            (aside / "root").chmod(0o755)
            with suppress(OSError):  # another process was first
                (aside / "root").rename(root)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return root


def _fetch(folder: Path) -> None:
    """Download with lists and caches of our own, so that the machine's apt is as it was."""
    for name in ("state/lists/partial", "cache/archives/partial", "debs", "root"):
        (folder / name).mkdir(parents=True)
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True).stdout
    mirror = os.environ.get("DEBIAN_MIRROR") or next((line for line in said.splitlines() if line.rstrip("/").endswith("/debian")), None)
    if mirror is None:
        raise Unavailable("apt on this machine knows no mirror of Debian: name one in DEBIAN_MIRROR")
    sources = folder / "trixie.sources"
    sources.write_text(f"Types: deb\nURIs: {mirror}\nSuites: trixie\nComponents: main\nSigned-By: {KEYRING}\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": 3,
        "Acquire::http::Timeout": 20,
    }
    apt = ["apt-get", "-q", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    for command in ([*apt, "update"], [*apt, "download", *PACKAGES]):
        done = subprocess.run(command, cwd=folder / "debs", capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise Unavailable(f"adbd's packages cannot be had from {mirror}: {(done.stderr or done.stdout).strip()[-300:]}")
    for package in sorted((folder / "debs").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True, capture_output=True)


class SimulatedDevice:
    """`with SimulatedDevice() as device:` an adb server at 127.0.0.1:`adb_port` that can connect to `serial`."""

    serial = f"127.0.0.1:{ADBD_PORT}"

    def __init__(self) -> None:
        self._root = adbd_root()
        self.folder = Path(tempfile.mkdtemp(prefix="flywheel-android-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.adb_port = self.console_port = 0

    def __enter__(self) -> Self:
        try:
            self._lay_out()
            self._start([sys.executable, "-m", "tests.sandbox.android_device.device", str(self.folder / "run")], "device")
            with (self.folder / "seccomp").open("rb") as seccomp:
                fd = seccomp.fileno()
                self._start(self._jail(fd), "adbd", as_nobody=os.geteuid() == 0, fds=(fd,))
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lay_out(self) -> None:
        self.folder.chmod(0o755)
        for name in ("run", "data", "sdcard", "bin"):
            (self.folder / name).mkdir()
            if os.geteuid() == 0 and name != "bin":
                os.chown(self.folder / name, NOBODY, NOBODY)
        for name in PROGRAMS:
            shutil.copy(HERE / "shim.pl", self.folder / "bin" / name)
            (self.folder / "bin" / name).chmod(0o755)
        (self.folder / "seccomp").write_bytes(no_vsock_filter())

    def _start(self, command: list[str], name: str, *, as_nobody: bool = False, fds: tuple[int, ...] = ()) -> None:
        """In a process group of its own, to be killed with us."""
        user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"] if as_nobody else []
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", *user, "--pdeathsig=KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                start_new_session=True,
                pass_fds=fds,
            )
        self._processes.append(process)

    def _jail(self, seccomp_fd: int) -> list[str]:
        libraries = "/adbd/usr/lib/x86_64-linux-gnu"
        loader = f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries}:{libraries}/android"
        script = f"{loader} /adbd/usr/lib/android-sdk/platform-tools/adbd & exec adb -L localfilesystem:/run/device/server server nodaemon"
        return [
            "bwrap",
            "--unshare-all",
            "--die-with-parent",
            "--uid",
            "0",
            "--gid",
            "0",
            "--cap-drop",
            "ALL",
            "--seccomp",
            str(seccomp_fd),
            "--clearenv",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/bin",
            "/bin",
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--ro-bind",
            str(self._root),
            "/adbd",
            "--ro-bind",
            str(self.folder / "bin"),
            "/system/bin",
            "--bind",
            str(self.folder / "run"),
            "/run/device",
            "--bind",
            str(self.folder / "data"),
            "/data",
            "--bind",
            str(self.folder / "sdcard"),
            "/sdcard",
            "--dir",
            "/data/local/tmp",
            "--setenv",
            "PATH",
            "/system/bin:/usr/bin:/bin",
            "--setenv",
            "HOME",
            "/data",
            "--setenv",
            "ADBD_PORT",
            str(ADBD_PORT),
            "--",
            "/bin/sh",
            "-c",
            script,
        ]

    def _wait(self) -> None:
        """Until adb's server answers and has connected to the device."""
        deadline = time.monotonic() + START_TIMEOUT_S
        ports = self.folder / "run" / "ports.json"
        while True:
            if ports.exists():
                found = json.loads(ports.read_text())
                self.adb_port, self.console_port = found["adb"], found["console"]
                with suppress(subprocess.TimeoutExpired):
                    if "connected to" in self.adb("connect", self.serial).stdout and self.adb("get-state").stdout.strip() == "device":
                        return
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                logs = {path.name: path.read_text(errors="replace")[-500:] for path in self.folder.glob("*.log")}
                raise RuntimeError(f"The simulated Android device did not start: {logs}")
            time.sleep(0.05)

    def adb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Debian's adb client against our server; it never starts another."""
        command = ["adb", "-L", f"tcp:127.0.0.1:{self.adb_port}", *arguments]
        if not (self.folder / "run" / "server").exists():
            return subprocess.CompletedProcess(command, 1, "", "no server yet")
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def kill_adbd(self) -> None:
        """As if the cable were cut: adbd and the adb server in front of it are gone."""
        self._kill(self._processes[-1])

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            self._kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)


def no_vsock_filter() -> bytes:
    """A seccomp filter under which there are no vsock sockets: adbd listens on one too, and network namespaces do not hold those."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, errno = 0x7FFF0000, 0x00050000
    socket_call, vsock_family, no_such_family = 41, 40, 97
    program = [
        (load, 0, 0, 0),  # the system call's number
        (jump_if_equal, 0, 3, socket_call),
        (load, 0, 0, 16),  # its first argument
        (jump_if_equal, 0, 1, vsock_family),
        (give, 0, 0, errno | no_such_family),
        (give, 0, 0, allow),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
