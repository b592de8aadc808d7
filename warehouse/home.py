"""Where everything lives: the folders of one FLYWHEEL_HOME, and the one way to write a whole file. Nothing here knows what is in them.

FLYWHEEL_HOME
├── tables/        Delta tables, one folder a table
├── chain/         which commits of each table count: see chain.py
├── set_aside/     files of commits that a power cut tore, or that a repair moved away
├── checkpoints/   <iteration>/<stage>/<checkpoint id>, and beside it run/, the training run of that stage
├── dagster/       runs and events
├── prefect/       the collection server's database and results
├── reports/       HTML reports, data docs, drawings
├── work/          one folder a stage: its request, its result, and what a relaunch picks up
├── spool/         scratch: images on their way into the tables, queries too large for memory
├── locks/         one small file a lock
├── report_split.jsonl  when the report split was looked at, and for which release
└── profile.yaml   the profile that it was last turned under
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from warehouse.durable import make_folder, sync
from warehouse.errors import ConfigError, StorageFull

HOME_VARIABLE = "FLYWHEEL_HOME"
DEFAULT_HOME = ".flywheel"
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Home:
    """The root folder of one installation; each folder below it is made when it is first asked for."""

    root: Path

    @classmethod
    def from_env(cls) -> Home:
        """The folder in FLYWHEEL_HOME, else `.flywheel` under the working directory."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).absolute())

    def check_exists(self) -> None:
        """Raises ConfigError where there is no such folder: a mistyped one is no empty home."""
        if not self.root.is_dir():
            raise ConfigError(f"there is no home {self.root}: name one with --home or {HOME_VARIABLE}, or make one with `flywheel run`")

    @property
    def tables(self) -> Path:
        return self._folder("tables")

    @property
    def chain(self) -> Path:
        """Need not exist: only a commit makes it."""
        return self.root / "chain"

    @property
    def set_aside(self) -> Path:
        return self._folder("set_aside")

    @property
    def checkpoints(self) -> Path:
        return self._folder("checkpoints")

    @property
    def dagster(self) -> Path:
        return self._folder("dagster")

    @property
    def prefect(self) -> Path:
        return self._folder("prefect")

    @property
    def reports(self) -> Path:
        return self._folder("reports")

    @property
    def spool(self) -> Path:
        return self._folder("spool")

    @property
    def work(self) -> Path:
        return self._folder("work")

    @property
    def locks(self) -> Path:
        return self._folder("locks")

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if is_full_disk(error):
                raise StorageFull(f"no room for the folder {folder}: free space on its disk") from error
            raise ConfigError(f"{folder} cannot be made ({error}): set {HOME_VARIABLE} to a folder that you may write to") from error
        return folder


def page_name(iteration: str, run: str | None = None) -> str:
    """File among the reports of an iteration's page, or of a training run's."""
    return f"iteration-{iteration}.html" if run is None else f"run-{iteration}-{run}.html"


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, of whatever library, says that the disk has no room."""
    if isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS:
        return True
    text = str(error)
    return "disk is full" in text or any(f"os error {number}" in text or os.strerror(number) in text for number in FULL_DISK_ERRNOS)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: aside in the same folder, flushed to the disk, then renamed into place.

    Raises StorageFull when the disk has no room; the file that was there before is then untouched.
    """
    make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o644)
        aside.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        if is_full_disk(error):
            raise StorageFull(f"no room for {path} ({len(data)} bytes): free space on its disk and run the stage again") from error
        raise
    sync(path.parent)
