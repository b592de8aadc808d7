"""Failures of the machine as errors of ours: a full or read-only disk, too few open files, too little memory, a damaged database file, a
library that is not installed.

Libraries each say it in their own way (an errno, an SQLite message inside SQLAlchemy's, torch's RuntimeError). Entry points ask `refusal`
for whatever reaches them and is not an error of ours; rooms that know better what was to be written name it themselves.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from warehouse.core.disk import free_bytes, is_full_disk, storage_full
from warehouse.core.errors import ConfigError, CorruptDatabase, FlywheelError, MachineLimit, StorageFull, missing_extra
from warehouse.core.home import Home

FULL_DISK_BYTES = 64 * 1024
"""With less free, whatever failed is taken to have failed for that: torch says only that its file ended too early."""
NEEDED_ADDRESS_BYTES = 3 * 2**30
"""`flywheel status` reserves 2.6 GB on two processors; a browser a hundred times that."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_READ_ONLY_WORDS = ("readonly database", "Read-only file system")
_FILES = (errno.EMFILE, errno.ENFILE)
_NOT_OPENED = "unable to open database file"
"""SQLite says no more, whatever the reason is."""
_FILES_WORDS = ("Too many open files", _NOT_OPENED)
_MEMORY_WORDS = ("bad_alloc", "can't allocate memory", "Cannot allocate memory", "can't start new thread", "failed to map segment")
_DAMAGED_WORDS = ("file is not a database", "database disk image is malformed")


TRAIN = frozenset({"torch", "transformers", "accelerate", "deepspeed", "llguidance", "peft", "safetensors", "tensorboard", "tokenizers"})
"""Packages of the extra `train`. Without it homes are read, and nothing acts or learns."""


def refusal(error: BaseException, place: Path) -> FlywheelError | None:
    """The error of ours for what the machine refused, with `place` the folder that was worked in; None where the machine did not."""
    for each in _chain(error):
        found = missing_of_train(each) or _full(each, place) or _damaged(each, place) or _read_only(each, place) or _limit(each)
        if found is not None:
            return found
    return None


def check_address_space() -> None:
    """For entry points: libraries abort the process, or fail in words of their own, where they cannot map their memory. Raises
    MachineLimit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < NEEDED_ADDRESS_BYTES:
        raise MachineLimit(
            f"this process may address {limit:,} bytes (`ulimit -v`) and needs {NEEDED_ADDRESS_BYTES:,}, most of which it only reserves. "
            "Raise the limit: `ulimit -v unlimited`"
        )


def shortage(error: BaseException) -> MachineLimit | StorageFull | None:
    """What the machine gives too little of, said for who works in no folder of its own; None for all else."""
    found = refusal(error, Home.from_env().root)
    return found if isinstance(found, MachineLimit | StorageFull) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what led to it, SQLAlchemy's original included; each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [more for more in (each.__context__, each.__cause__, getattr(each, "orig", None)) if isinstance(more, BaseException)]


def missing_of_train(error: BaseException) -> ConfigError | None:
    """For a module of the extra `train` that is not installed, the error that names the extra; None for all else."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return ConfigError(missing_extra(package, "train")) if package in TRAIN else None


def check_can_train() -> None:
    """For what takes long and would come to it late. Raises ConfigError."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(missing_extra("torch", "train"))


def _full(error: BaseException, place: Path) -> StorageFull | None:
    free = free_bytes(place)
    if not is_full_disk(error) and (free is None or free >= FULL_DISK_BYTES):
        return None
    path = _path_of(error) or place
    return storage_full(str(path), path, error, then="give the same command again: what was finished is kept")


def _read_only(error: BaseException, place: Path) -> ConfigError | None:
    is_refused = isinstance(error, OSError) and error.errno in _READ_ONLY
    path = _path_of(error)
    if is_refused and path is not None and not path.is_relative_to(place):
        return None  # something else than the home: who opened it knows better what it is
    is_unopened = _NOT_OPENED in str(error) and _may_not_write(place)
    if not is_refused and not is_unopened and not any(words in str(error) for words in _READ_ONLY_WORDS):
        return None
    return ConfigError(
        f"{path or place} cannot be written ({_line(error)}). Make it writable for this user (the disk may be mounted read-only), or name "
        "another home with --home or FLYWHEEL_HOME"
    )


def _may_not_write(place: Path) -> bool:
    try:
        found = next(each for each in (place, *place.parents) if each.exists())
        return bool(os.statvfs(found).f_flag & os.ST_RDONLY) or not os.access(found, os.W_OK)
    except OSError:
        return False


def _limit(error: BaseException) -> MachineLimit | None:
    if (isinstance(error, OSError) and error.errno in _FILES) or any(words in str(error) for words in _FILES_WORDS):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MachineLimit(
            f"this process may not open more than {soft} files ({_line(error)}). Raise the limit, e.g. `ulimit -n 4096` (the hard limit "
            f"here is {_unlimited(hard)}), or lower sandbox.num_workers"
        )
    is_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN))
    if is_memory or any(words in str(error) for words in _MEMORY_WORDS):
        address_space, processes = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_NPROC))
        return MachineLimit(
            f"no more memory or processes can be had ({_line(error)}). The limits here: address space {_unlimited(address_space)} bytes "
            f"(`ulimit -v`), processes {_unlimited(processes)} (`ulimit -u`). Raise them, or end what else takes memory"
        )
    return None


def _damaged(error: BaseException, place: Path) -> CorruptDatabase | None:
    if not any(words in str(error) for words in _DAMAGED_WORDS):
        return None
    file = next((path for path in sorted(place.rglob("*.db")) if _is_damaged(path)), None)
    which = f"the database file {file}" if file is not None else f"a database file under {place} (Dagster's and Prefect's are *.db)"
    return CorruptDatabase(f"{which} is damaged ({_line(error)}). Restore it from a backup")


def _is_damaged(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as con:
            return bool(con.execute("pragma quick_check(1)").fetchone() != ("ok",))
    except sqlite3.Error as error:
        return any(words in str(error) for words in _DAMAGED_WORDS)


def _path_of(error: BaseException) -> Path | None:
    name = getattr(error, "filename", None)
    return Path(os.fsdecode(name)).absolute() if isinstance(name, str | bytes) else None


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _unlimited(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
