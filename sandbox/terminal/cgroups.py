"""One control group for each jail: how much memory, how many processes and how much processor time all of it together may take.

Version 1 and version 2 of Linux's control groups, whichever this process may write; where neither, the jail's resource limits must do
(jail.py says which hold). Groups of processes that are gone are removed when the next one is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

PREFIX = "flywheel-jail"
PERIOD_US = 100_000
_numbers = count()
_to_remove: list[Path] = []
"""Groups whose processes have ended."""

FILES_V1 = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
FILES_V2 = {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A folder in which groups can be made, and the controllers it has."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


class Cgroup:
    """A control group of one jail; empty until a process is added."""

    def __init__(self, *, memory_mib: int, processes: int, cpus: float) -> None:
        self._folders: dict[Path, tuple[str, ...]] = {}
        """And the controllers of each."""
        self.held: dict[str, str] = {}
        """Which of memory, pids and cpu are held, and by which version; of a process only once it is added."""
        name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        remove_ended()
        for hierarchy in hierarchies():
            settings = {
                "memory": str(memory_mib << 20),
                "pids": str(processes),
                "cpu": str(int(cpus * PERIOD_US)) if hierarchy.version == 1 else f"{int(cpus * PERIOD_US)} {PERIOD_US}",
            }
            files = FILES_V1 if hierarchy.version == 1 else FILES_V2
            folder = hierarchy.folder / name
            with suppress(OSError):
                folder.mkdir()
                self._folders[folder] = hierarchy.controllers
                for controller in hierarchy.controllers:
                    (folder / files[controller]).write_text(settings[controller])
                    self.held[controller] = f"cgroup v{hierarchy.version}"
            if "memory" in hierarchy.controllers:
                for swap, value in (("memory.memsw.limit_in_bytes", settings["memory"]), ("memory.swap.max", "0")):
                    if (folder / swap).exists():
                        with suppress(OSError):
                            (folder / swap).write_text(value)

    def add(self, pid: int) -> None:
        """Put a process, and whatever it starts from now on, into the group; `held` is then what holds it."""
        for folder, controllers in list(self._folders.items()):
            try:
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError:  # version 2 lets only who owns both groups move a process
                del self._folders[folder]
                _to_remove.append(folder)
                self.held = {name: how for name, how in self.held.items() if name not in controllers}

    def memory_mib(self) -> float | None:
        """What the group uses now; None where memory is not counted."""
        for folder in self._folders:
            for name in ("memory.usage_in_bytes", "memory.current"):
                if (folder / name).exists():
                    return int((folder / name).read_text()) / (1 << 20)
        return None

    def remove(self) -> None:
        """Once its processes have ended. May be called twice. The kernel may need a moment more to see that a group is empty: then it is
        removed with the next one, or when the last one goes."""
        _to_remove.extend(self._folders)
        self._folders = {}
        remove_ended()


@lru_cache(maxsize=1)
def hierarchies() -> tuple[Hierarchy, ...]:
    """Where this process can make groups with memory, pids and cpu; tried once. Removes what dead processes left there."""
    return usable(Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text())


def usable(mounts: str, memberships: str) -> tuple[Hierarchy, ...]:
    """From the texts of /proc/self/mounts and /proc/self/cgroup."""
    found: dict[str, Hierarchy] = {}
    for hierarchy in candidates(mounts, memberships):
        controllers = tuple(name for name in hierarchy.controllers if name not in found)
        if controllers and _can_make(hierarchy.folder, hierarchy.version, controllers):
            found |= dict.fromkeys(controllers, Hierarchy(folder=hierarchy.folder, version=hierarchy.version, controllers=controllers))
    return tuple(dict.fromkeys(found.values()))


def candidates(mounts: str, memberships: str) -> Iterator[Hierarchy]:
    paths = dict(line.split(":", 2)[1:] for line in memberships.splitlines() if line.count(":") >= 2)
    for line in mounts.splitlines():
        _, mount, kind, options = line.split(" ")[:4]
        if kind == "cgroup":
            names = tuple(name for name in FILES_V1 if name in options.split(","))
            path = next((path for key, path in paths.items() if set(names) & set(key.split(","))), "/")
            if names:
                yield Hierarchy(folder=_below(Path(mount), path), version=1, controllers=names)
        elif kind == "cgroup2":
            own = _below(Path(mount), paths.get("", "/"))
            for folder in (own, *own.parents):  # a group with processes of its own, as ours is, passes no controllers on
                with suppress(OSError):
                    enabled = (folder / "cgroup.subtree_control").read_text().split()
                    yield Hierarchy(folder=folder, version=2, controllers=tuple(name for name in FILES_V2 if name in enabled))


def _below(mount: Path, path: str) -> Path:
    """Our own group's folder; in a container the path may be one of the host's, then the mount itself."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _can_make(folder: Path, version: int, controllers: tuple[str, ...]) -> bool:
    files = FILES_V1 if version == 1 else FILES_V2
    remove_stale(folder)
    probe = folder / f"{PREFIX}-{os.getpid()}-probe"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return all(os.access(probe / files[name], os.W_OK) for name in controllers) and os.access(probe / "cgroup.procs", os.W_OK)
    finally:
        with suppress(OSError):
            probe.rmdir()


def remove_ended() -> None:
    """Try to remove every group that waits for it."""
    left = _to_remove[:]
    _to_remove.clear()
    for folder in left:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            _to_remove.append(folder)


def remove_stale(folder: Path) -> None:
    for left in folder.glob(f"{PREFIX}-*"):
        owner = re.match(rf"{PREFIX}-(\d+)-", left.name)
        if owner and not Path("/proc", owner[1]).exists():
            with suppress(OSError):
                left.rmdir()
