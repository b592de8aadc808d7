"""Where everything lives: the folders of one FLYWHEEL_HOME, and the one way to write a whole file. Nothing here knows what is in them.

FLYWHEEL_HOME
├── tables/        Delta tables, one folder a table
├── chain/         which commits of each table count: see chain.py
├── set_aside/     files of commits that a power cut tore, or that a repair moved away
├── checkpoints/   <iteration>/<stage>/<checkpoint id>, and beside it run/, the training run of that stage
├── dagster/       runs and events
├── prefect/       the collection server's database
├── reports/       HTML reports, data docs, drawings
├── work/          one folder a stage: its request, its result, and what a relaunch picks up
├── scratch/       rows on their way into the tables, queries too large for memory
├── locks/         one small file a lock
├── imports/       of each import what was kept aside, and what became of its records
├── forgotten/     what is being forgotten, and receipts of what was
├── exports.jsonl  where exports were written
├── alerts/        alerts that were sent or wait for a channel
├── report_split.jsonl  when the report split was looked at, and for which release
├── opened.json    which iterations are open: see assets/iterations/opened.py
├── cache/         what is made of the tables again where it is missing
└── profile.yaml   the profile that it was last run with

With FLYWHEEL_STORE, tables and checkpoints are kept in an object store (store.py): cache/store/<digest of its address>/ then holds the
copies of tables and their chains, and checkpoints/ those of checkpoints. All else is of this machine.

The root is its owner's alone (mode 0700): screens, people's words and servers' tokens are below it. Who shares a home with a group gives
the group its rights and others none. What programs of other users read (browsers, jails) is copied to where they may read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.durable import PRIVATE, make_folder, sync
from warehouse.core.errors import ConfigError, StorageFull
from warehouse.core.store import Store

HOME_VARIABLE = "FLYWHEEL_HOME"
DEFAULT_HOME = ".flywheel"


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """The root folder of one installation; each folder below it is made when it is first asked for."""

    root: Path
    store: Store | None = field(default_factory=Store.from_env)
    """Where tables and checkpoints are kept; None: below the root."""

    @classmethod
    def from_env(cls) -> Home:
        """The folder in FLYWHEEL_HOME, else `.flywheel` under the working directory."""
        return cls(Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).absolute())

    def check_exists(self) -> None:
        """Raises ConfigError where there is no such folder: a mistyped one is not an empty home."""
        if self.store is not None:
            self.make()
        elif not self.root.is_dir():
            raise ConfigError(f"there is no home {self.root}: name one with --home or {HOME_VARIABLE}, or make one with `flywheel run`")

    def make(self) -> Path:
        """The root folder, made where it is missing; one that every user of the machine may enter is closed to them, and that is logged.
        Raises ConfigError, StorageFull."""
        try:
            make_folder(self.root)
        except OSError as error:
            raise _not_made(self.root, error) from error
        with contextlib.suppress(OSError):  # somebody else's home, or one that is only to be read
            mode = stat.S_IMODE(self.root.stat().st_mode)
            if mode & stat.S_IRWXO:
                self.root.chmod(PRIVATE)
                log.warning("%s was open to every user of this machine (mode %o): closed to them now (%o)", self.root, mode, PRIVATE)
        return self.root

    @property
    def tables(self) -> Path:
        if self.store is None:
            return self._folder("tables")
        return _made(self._copies(self.store) / "tables")

    @property
    def has_tables(self) -> bool:
        """Whether there may be rows: nothing is made by asking."""
        return self.store is not None or (self.root / "tables").is_dir()

    @property
    def chain(self) -> Path:
        """Need not exist: only a commit makes it."""
        return self.root / "chain" if self.store is None else self._copies(self.store) / "chain"

    def _copies(self, store: Store) -> Path:
        return self.make() / "cache" / "store" / hashlib.sha256(store.url.encode()).hexdigest()[:16]

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
    def scratch(self) -> Path:
        return self._folder("scratch")

    @property
    def work(self) -> Path:
        return self._folder("work")

    @property
    def locks(self) -> Path:
        return self._folder("locks")

    def _folder(self, name: str) -> Path:
        return _made(self.make() / name)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(exist_ok=True, parents=True)
    except OSError as error:
        raise _not_made(folder, error) from error
    return folder


def _not_made(folder: Path, error: OSError) -> StorageFull | ConfigError:
    if is_full_disk(error):
        return storage_full(f"the folder {folder}", folder, error)
    return ConfigError(f"{folder} cannot be made ({error}): set {HOME_VARIABLE} to a folder that you may write to")


def page_name(iteration: str, run: str | None = None) -> str:
    """File among the reports of an iteration's page, or of a training run's."""
    return f"iteration-{iteration}.html" if run is None else f"run-{iteration}-{run}.html"


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
            raise storage_full(f"{path} ({len(data):,} bytes)", path.parent, error) from error
        raise
    sync(path.parent)
