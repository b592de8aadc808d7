"""Where browsers keep their files, and as whom they run: the unprivileged user, profile folders, readable copies of task pages.

When we are root, browsers run as another user, because Chromium's own sandbox refuses root. That user must own its profile folder and
must be able to read the pages, which lie in a virtual environment that may be closed to others: then a copy is made, once.

A profile folder is locked (flock) by the process that made it, so that later processes recognise the folders of dead ones.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id

USER_VARIABLE = "FLYWHEEL_BROWSER_USER"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserUser:
    """The user a browser runs as."""

    uid: int
    gid: int

    @property
    def is_us(self) -> bool:
        return self.uid == os.geteuid()


def browser_user() -> BrowserUser:
    """We ourselves, or for root the user named by FLYWHEEL_BROWSER_USER (default: nobody). Raises ConfigError."""
    if os.geteuid() != 0:
        return BrowserUser(uid=os.geteuid(), gid=os.getegid())
    name = os.environ.get(USER_VARIABLE, "nobody")
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(f"{USER_VARIABLE} is {name!r}: no such user. Name an existing user without privileges, e.g. nobody.") from error
    if entry.pw_uid == 0:
        raise ConfigError(f"{USER_VARIABLE} is {name!r}, which is root: Chromium's sandbox needs a user without privileges, e.g. nobody.")
    return BrowserUser(uid=entry.pw_uid, gid=entry.pw_gid)


def scratch_root() -> Path:
    """A folder of ours for all browsers of this machine's user, that others may pass through but not list."""
    user = browser_user()
    for parent in dict.fromkeys([Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]):
        if not _can_pass(parent, user):
            continue
        root = parent / f"flywheel-browsers-{os.geteuid()}"
        with suppress(FileExistsError):
            root.mkdir(mode=0o711)
        status = root.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            root.chmod(0o711)
            return root
    raise ConfigError(
        f"No temporary folder that user id {user.uid} can reach: tried {tempfile.gettempdir()}, /tmp and /var/tmp. "
        "Set TMPDIR to a folder that every user may pass through."
    )


class Profile:
    """A profile folder, owned by the browser's user and locked by this process until removed."""

    def __init__(self) -> None:
        user = browser_user()
        self.path = Path(tempfile.mkdtemp(prefix="profile-", dir=scratch_root()))
        self._lock = self.path.with_suffix(".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not user.is_us:
            os.chown(self.path, user.uid, user.gid)

    def remove(self) -> None:
        """May be called twice. The lock goes last: until then nobody else reaps the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        self._lock.close()


def reap_profiles() -> int:
    """Remove the profile folders of processes that are gone; how many there were."""
    return sum(_reap(folder) for folder in scratch_root().glob("profile-*") if folder.suffix != ".lock")


def _reap(folder: Path) -> bool:
    """Remove one folder if its process is gone. Others make and remove theirs at the same time."""
    lock_path = folder.with_suffix(".lock")
    try:
        if not lock_path.exists() and folder.stat().st_mtime > time.time() - 60:
            return False  # being made right now
        with lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            lock_path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


@lru_cache(maxsize=32)
def readable_root(root: Path) -> Path:
    """`root`, or a copy of it where the browser's user cannot read it. Copies are keyed by names, sizes and times, and kept."""
    root = root.resolve()
    user = browser_user()
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if user.is_us or (_can_pass(root, user) and all(_can_read(path, root, user) for path in files)):
        return root
    listing = [[str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    copy = scratch_root() / content_id("copy", [str(root), listing])
    if not copy.exists():
        aside = Path(tempfile.mkdtemp(prefix="aside-", dir=copy.parent))
        shutil.copytree(root, aside, dirs_exist_ok=True)
        for path in [aside, *aside.rglob("*")]:
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        try:
            aside.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(aside, ignore_errors=True)
    return copy


def _can_pass(folder: Path, user: BrowserUser) -> bool:
    """Whether a user may reach what lies in a folder."""
    if user.is_us:
        return os.access(folder, os.X_OK)
    return all(_allows(step, user, stat.S_IXOTH) for step in (folder.resolve(), *folder.resolve().parents))


def _can_read(path: Path, root: Path, user: BrowserUser) -> bool:
    return _allows(path, user, stat.S_IROTH) and all(_allows(step, user, stat.S_IXOTH) for step in _between(path, root))


def _between(path: Path, root: Path) -> Iterator[Path]:
    for step in path.parents:
        if step == root:
            return
        yield step


def _allows(path: Path, user: BrowserUser, others_bit: int) -> bool:
    status = path.stat()
    if status.st_uid == user.uid:
        return bool(status.st_mode & (others_bit << 6))
    if status.st_gid == user.gid:
        return bool(status.st_mode & (others_bit << 3))
    return bool(status.st_mode & others_bit)
