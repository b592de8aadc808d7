"""bubblewrap's command line: what a jail's programs find there and how much they may use. Which host files are lent is here, and nowhere
else. Starting and talking to a jail is jail.py.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from sandbox.browser.isolation.scratch import browser_user
from sandbox.terminal.seccomp import filter_program
from warehouse.core.errors import BubblewrapMissing, MachineLimit

HOME = "/workspace"
UID = 1000
INIT = Path(__file__).with_name("init.py").read_text(encoding="utf-8")
SHELL_START = Path(__file__).with_name("shell.sh").read_text(encoding="utf-8")
PYTHON = "/usr/bin/python3"

ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin:/usr/games",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TMPDIR": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""All that programs in a jail find in their environment."""

ETC: Mapping[str, str] = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{UID}:{UID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "gitconfig": "[user]\n\tname = agent\n\temail = agent@sandbox\n[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n",
    "terminal.sh": SHELL_START,
}
"""Files of a jail's /etc that are made here."""

ETC_OF_OPEN: Mapping[str, str] = {"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n"}
"""What is otherwise there where the network is open."""

LENT_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types", "magic", "perl")
"""Files of the host's /etc that programs need and that reveal nothing."""

LENT_ETC_OF_OPEN = ("resolv.conf", "ssl/certs")
"""And those that they need to reach something by its name."""

OPEN_FILES_NEEDED = 256
"""A shell and the Python tool get their channels as descriptors 250 and 251 (init.py), and bash keeps one at 255."""

Network = Literal["none", "open"]
"""`none`: a loopback of the jail's own, and nothing else. `open`: the host's network as it is, its loopback included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailLimits:
    """What all of a jail together may use, unless a unit says otherwise. What is written to files counts as memory too."""

    processes: int = 128
    memory_mib: int = 1024
    cpus: float = 1.0
    cpu_s: int = 1800
    """Processor time of one process."""
    workspace_mib: int = 256
    scratch_mib: int = 64
    """/tmp and /dev/shm, each."""
    open_files: int = 512
    """Of one process; fewer where the host's hard limit is lower."""
    network: Network = "none"
    """Said by who runs the sandbox (config.py), never by a task."""


def open_files(limits: JailLimits) -> int:
    """How many files a process of a jail may open on this machine. Raises MachineLimit where that is too few to start a shell."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    granted = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
    if granted < min(limits.open_files, OPEN_FILES_NEEDED):
        raise MachineLimit(
            f"a process may open {hard} files at most here (the hard limit), and a terminal needs {OPEN_FILES_NEEDED}. Raise the limit, "
            "e.g. `ulimit -n 4096`, in the shell that starts Flywheel; where it refuses, in /etc/security/limits.conf or with "
            "`docker run --ulimit nofile=4096`"
        )
    return granted


@lru_cache(maxsize=1)
def find_bubblewrap() -> str:
    """Raises BubblewrapMissing."""
    program = shutil.which("bwrap")
    if program is None:
        raise BubblewrapMissing("bwrap is not installed: terminals need it (Linux only). On Debian, as root: apt-get install bubblewrap.")
    return program


@lru_cache(maxsize=1)
def version(program: str) -> str:
    """E.g. "bubblewrap 0.8.0"."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What one jail has beside what all have: folders of the host by where they are seen, read-only; symbolic links by their place; folders
    in memory that can be written to."""

    lent: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scratch: Sequence[str] = ()


def command_line(
    limits: JailLimits, *, control: int, telling: int, held: int, contents: Sequence[int], places: Places | None = None
) -> list[str]:
    """bubblewrap's command line; `contents` are the descriptors of `memory_files`. The order of mounts counts: what comes later lies on
    top."""
    places = places or Places()
    is_open = limits.network == "open"
    scratch = str(limits.scratch_mib << 20)
    mounts = ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", name).is_symlink():
            mounts += ["--symlink", f"usr/{name}", f"/{name}"]
        elif Path("/", name).is_dir():
            mounts += ["--ro-bind", f"/{name}", f"/{name}"]
    mounts += ["--perms", "0755", "--dir", "/etc"]
    for name in (*LENT_ETC, *(LENT_ETC_OF_OPEN if is_open else ())):
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, fd in zip(ETC, contents, strict=False):
        mounts += ["--perms", "0644", "--ro-bind-data", str(fd), f"/etc/{name}"]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm", "--perms", "1777", "--size", scratch]
    mounts += ["--tmpfs", "/tmp", "--size", str(limits.workspace_mib << 20), "--tmpfs", HOME]
    for place, folder in places.lent.items():
        mounts += ["--ro-bind", str(folder), place]
    for place in places.scratch:
        mounts += ["--size", scratch, "--tmpfs", place]
    for place, target in places.links.items():
        mounts += ["--symlink", target, place]
    for place in ("/usr/local", "/dev", "/"):
        mounts += ["--remount-ro", place]
    settings = (control, limits.processes, open_files(limits), limits.cpu_s)
    return [
        find_bubblewrap(),
        "--unshare-user",
        "--unshare-all",
        *(["--share-net"] if is_open else []),
        "--disable-userns",
        "--uid",
        str(UID),
        "--gid",
        str(UID),
        "--cap-drop",
        "ALL",
        "--as-pid-1",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "sandbox",
        "--clearenv",
        *mounts,
        "--chdir",
        HOME,
        "--seccomp",
        str(contents[-1]),
        "--info-fd",
        str(telling),
        "--block-fd",
        str(held),
        PYTHON,
        "-ISc",
        INIT,
        *map(str, settings),
    ]


def launch(command: Sequence[str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """As the user that jails run as. Raises BubblewrapMissing."""
    user = browser_user()
    other: dict[str, Any] = {} if user.is_us else {"user": user.uid, "group": user.gid, "extra_groups": []}
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=fds, cwd="/", env={}, **other
        )
    except FileNotFoundError as error:
        find_bubblewrap.cache_clear()
        raise BubblewrapMissing(f"{command[0]} has gone: on Debian, as root: apt-get install bubblewrap.") from error


def memory_files(network: Network) -> Iterator[int]:
    """Descriptors of what bubblewrap is to read: the files of ETC in their order, then the filter of system calls. One use each, and the
    caller's to close."""
    files = {**ETC, **(ETC_OF_OPEN if network == "open" else {})}
    for content in (*(text.encode() for text in files.values()), filter_program()):
        yield _memory_file(content)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("jail")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
