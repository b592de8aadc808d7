"""The files that pass between a web session's browser and its workspace: downloads going in, uploads coming out. Nothing else of the
workspace is read or written here, and the browser's user never sees it: it has a staging folder of its own.

What runs in the workspace is not trusted: it may put symbolic links where we are about to write or read. So folders and files are opened
one name at a time, from the workspace down, and a link anywhere is refused.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from sandbox.browser.isolation.scratch import browser_user
from sandbox.file_rights import rights_of

DOWNLOADS = "Downloads"
MAX_NAME_BYTES = 200
MAX_UPLOAD_BYTES = 64 * 1024 * 1024
COPY_BYTES = 1024 * 1024

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A file that is not handed over, and why: said to the agent."""


class Staging:
    """A folder of the browser's user, below the browser's own files."""

    def __init__(self, browser_files: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="transfer-", dir=browser_files))
        user = browser_user()
        if not user.is_us:
            os.chown(self.path, user.uid, user.gid)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def safe_name(suggested: str) -> str:
    """A plain file name from what a server suggests: no folders, no control characters, not hidden, not too long."""
    name = suggested.replace("\\", "/").rpartition("/")[2]
    name = re.sub(r"[\x00-\x1f\x7f]", "", name).strip().lstrip(".")
    while len(name.encode()) > MAX_NAME_BYTES:
        stem, dot, ending = name.rpartition(".")
        name = stem[:-1] + dot + ending if stem and len(ending) < 20 else name[:-1]
    return name or "download"


def put_download(workspace: Path, staged: Path, suggested: str) -> str:
    """Put a complete download into the workspace's folder `Downloads` under a free name: all of it at once, with the rights of the
    workspace's owner. Gives the path below the workspace. Raises Refused where the folder is a link or a file, or the disk says no."""
    try:
        owner = os.stat(workspace)
        with rights_of(owner.st_uid, owner.st_gid), _folder(workspace, DOWNLOADS, make=True) as folder:
            aside = f".{secrets.token_hex(8)}.part"
            target = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                with open(staged, "rb") as source, os.fdopen(target, "wb") as copy:
                    shutil.copyfileobj(source, copy, COPY_BYTES)
                name = _link_free(folder, aside, safe_name(suggested))
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=folder)
    except OSError as error:
        raise Refused(f"the download could not be saved in {DOWNLOADS}: {error.strerror}") from error
    return f"{DOWNLOADS}/{name}"


def _link_free(folder: int, aside: str, name: str) -> str:
    """Give the file its name, or "name (1)" and so on where that is taken; never replaces anything."""
    path = PurePosixPath(name)
    for number in range(1000):
        candidate = f"{path.stem} ({number}){path.suffix}" if number else name
        try:
            os.link(aside, candidate, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            continue
        return candidate
    raise FileExistsError(17, "too many files of this name")


def stage_upload(workspace: Path, relative: str, staging: Path) -> Path:
    """A copy of a workspace file that the browser may read. Raises Refused for a path that leads out, is not a plain file, or is too
    large."""
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise Refused(f"{relative!r} is not a path inside the workspace; name a file relative to it, e.g. {DOWNLOADS}/report.pdf")
    try:
        with _folder(workspace, *parts[:-1]) as folder:
            source = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(source, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise Refused(f"{relative!r} is not a plain file")
                if status.st_size > MAX_UPLOAD_BYTES:
                    raise Refused(f"{relative!r} is larger than {MAX_UPLOAD_BYTES >> 20} MiB")
                holder = Path(tempfile.mkdtemp(dir=staging))
                holder.chmod(0o755)
                copy = holder / parts[-1]
                with copy.open("xb") as target:
                    shutil.copyfileobj(file, target, COPY_BYTES)
                copy.chmod(0o644)
    except OSError as error:
        raise Refused(f"{relative!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a zero byte
        raise Refused(f"{relative!r} is not a file name") from error
    return copy


@contextmanager
def _folder(workspace: Path, *names: str, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder below the workspace, reached without following a link."""
    current = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            inner = os.open(name, _FOLDER, dir_fd=current)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)
