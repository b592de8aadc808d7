"""The files of one session as the host uses them: for the file tool, the verifiers, and what a task puts there. Never leaves the workspace.

Paths are resolved by the kernel with openat2 RESOLVE_BENEATH, starting at a descriptor of the workspace itself: neither "..", nor an
absolute path, nor a link, nor a link that is put in place between two looks leads out, because there is no look apart from the opening.
Where we are root, files are touched with the rights of the jail's user, so even a mistake here would have no power to lend.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from sandbox.browser.isolation.scratch import BrowserUser
from sandbox.file_rights import rights_of
from warehouse.core.errors import SandboxError

HOME = PurePosixPath("/workspace")
OPENAT2 = 437
"""System call number, the same on every architecture."""
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
RACE_RETRIES = 64
MAX_READ_BYTES = 16 << 20
T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """What was asked for is not in the workspace, or no ordinary file: reported to the caller, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or folder; links are not followed."""

    path: str
    """Below the workspace, "" for itself."""
    kind: str
    """file, folder, link or other."""
    num_bytes: int
    mode: int
    """Permission bits."""


class Workspace:
    """The folder that a session's terminal, tools and downloads share. All methods are quick and do not wait for anything."""

    def __init__(self, directory: int, *, user: BrowserUser) -> None:
        self._directory = directory
        self._user = user

    def relative(self, path: str) -> str:
        """A path below the workspace from what was written: "notes.txt", "/workspace/notes.txt". Raises Refused for one outside."""
        if "\0" in path:
            raise Refused("a path cannot hold a NUL character")
        parts = PurePosixPath(path)
        if parts.is_absolute():
            if not parts.is_relative_to(HOME):
                raise Refused(f"{path} is outside of {HOME}; only files below it can be used")
            parts = parts.relative_to(HOME)
        return "" if str(parts) == "." else str(parts)

    def read(self, path: str, *, limit_bytes: int = MAX_READ_BYTES, follows_links: bool = True) -> bytes:
        """A whole file. Raises Refused where it is none, is larger than the limit, or lies outside; FileNotFoundError and its kin. Without
        `follows_links` a link on the way is an OSError."""
        with self._opened(path, os.O_RDONLY | os.O_NONBLOCK, resolve=0 if follows_links else RESOLVE_NO_SYMLINKS) as fd:
            status = os.fstat(fd)
            self._check_file(path, status)
            if status.st_size > limit_bytes:
                raise Refused(f"{path} has {status.st_size} bytes; at most {limit_bytes} can be read")
            content = b""
            while len(content) <= limit_bytes and (part := os.read(fd, min(limit_bytes + 1, 1 << 20))):
                content += part
            return content[:limit_bytes]

    def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Write a whole file, with the folders that it lies in. An existing file keeps its mode. Raises Refused, OSError as when full."""
        data = content.encode() if isinstance(content, str) else content
        parent = str(PurePosixPath(self.relative(path)).parent)
        if parent != ".":
            self.make_folder(parent)
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, mode) as fd:
            self._check_file(path, os.fstat(fd))
            os.ftruncate(fd, 0)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    def make_folder(self, path: str) -> None:
        """With the folders above it; one that is there is fine."""
        made = PurePosixPath()
        for part in PurePosixPath(self.relative(path)).parts:
            if part == "..":
                raise Refused(f"{path}: name the folder without '..'")
            with self._opened(str(made), os.O_PATH | os.O_DIRECTORY) as parent, self._rights(), suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=parent)
            made /= part
        with self._opened(str(made), os.O_PATH | os.O_DIRECTORY):
            return

    def remove(self, path: str) -> None:
        """One file or link. Raises FileNotFoundError, IsADirectoryError."""
        relative = PurePosixPath(self.relative(path))
        with self._opened(str(relative.parent), os.O_PATH | os.O_DIRECTORY) as parent, self._rights():
            os.unlink(relative.name, dir_fd=parent)

    def set_mode(self, path: str, mode: int) -> None:
        with self._opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd, self._rights():
            os.fchmod(fd, mode)

    def look(self, path: str) -> Entry | None:
        """What is at a path, a link not followed; None where nothing is. Raises Refused for a path outside."""
        relative = self.relative(path)
        try:
            with self._opened(relative, os.O_PATH | os.O_NOFOLLOW) as fd:
                return _entry(relative, os.fstat(fd))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def walk(self, path: str = "", *, depth: int = 64, limit: int = 10_000) -> list[Entry]:
        """What lies in a folder, sorted, each folder before what is in it, down to `depth` levels, at most `limit` of them."""
        found: list[Entry] = []
        self._walk(self.relative(path), depth, limit, found)
        return found

    def _walk(self, relative: str, depth: int, limit: int, found: list[Entry]) -> None:
        with self._opened(relative, os.O_RDONLY | os.O_DIRECTORY) as fd:
            names = sorted(os.listdir(fd))
        for name in names:
            if len(found) >= limit:
                return
            entry = self.look(str(PurePosixPath(relative, name)))
            if entry is None:
                continue  # removed meanwhile
            found.append(entry)
            if entry.kind == "folder" and depth > 1:
                with suppress(OSError):  # removed or swapped for something else meanwhile, or not ours to read
                    self._walk(entry.path, depth - 1, limit, found)

    def duplicate(self) -> int:
        """A descriptor of the folder, the caller's to close. Until then /proc/self/fd/N leads here and nowhere else, even where the jail
        has ended."""
        self._check_open()
        return os.dup(self._directory)

    def close(self) -> None:
        """The files live on as long as the jail does. May be called twice."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    @contextmanager
    def _opened(self, path: str, flags: int, mode: int = 0, *, resolve: int = 0) -> Iterator[int]:
        self._check_open()
        relative = self.relative(path)
        with self._rights():
            fd = _open_beneath(self._directory, relative or ".", flags, mode, resolve)
        try:
            yield fd
        finally:
            os.close(fd)

    def _check_open(self) -> None:
        if self._directory < 0:
            raise SandboxError("The workspace is closed with its session; reset the session first.")

    def _rights(self) -> AbstractContextManager[None]:
        return rights_of(self._user.uid, self._user.gid)

    @staticmethod
    def _check_file(path: str, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{path} is not an ordinary file")


def _open_beneath(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """openat2. Raises OSError; Refused where the path leads out of the directory."""
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve)
    for _ in range(RACE_RETRIES):
        fd = int(_libc.syscall(OPENAT2, directory, os.fsencode(path), how, len(how)))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code == errno.EXDEV:
            raise Refused(f"{path} leads out of {HOME}; only files below it can be used")
        if code == errno.ENOSYS:
            raise SandboxError("This kernel has no openat2: the file tool needs Linux 5.6 or later.")
        if code != errno.EAGAIN:  # EAGAIN: a folder above was moved while the path was walked
            raise OSError(code, os.strerror(code), path)
    raise Refused(f"{path} keeps moving while it is opened")


def _entry(path: str, status: os.stat_result) -> Entry:
    kinds: dict[str, Callable[[int], bool]] = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "link": stat.S_ISLNK}
    kind = next((name for name, matches in kinds.items() if matches(status.st_mode)), "other")
    return Entry(path=path, kind=kind, num_bytes=status.st_size, mode=stat.S_IMODE(status.st_mode))
