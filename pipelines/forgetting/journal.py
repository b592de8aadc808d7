"""What is being forgotten, on the disk before anything is erased, so that a killed process can be resumed: by then the
annotation database may no longer say what the person gave. Once it is finished a receipt stays in its place: what was erased, how much of
it and when, by ids and counts alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.forgetting.subjects import Subject
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write

FOLDER = "forgotten"


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Journal(_File):
    """Ids of all that is to go."""

    subject: Subject
    begun_at: str
    iteration: str
    """From which on snapshots leave it out."""
    episodes: tuple[str, ...]
    judged: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    runs: tuple[str, ...]
    recordings: tuple[str, ...]
    account: str | None
    name_digest: str | None = None
    """Of the account's name, which the command may be given with once the name is erased."""
    screens: tuple[tuple[str, str], ...]
    """Iteration and stage of the episodes."""

    def is_of_person(self, given: str) -> bool:
        """Whether this is the account that is given by name or id."""
        from annotation.storage.ids import digest_of

        return self.account is not None and (given == self.account or digest_of(given.strip().lower()) == self.name_digest)


class Receipt(_File):
    """`counts`: rows by table, runs, recordings and files."""

    subject: Subject
    begun_at: str
    finished_at: str
    counts: dict[str, int]
    tainted: tuple[str, ...]
    """Checkpoints that had learned from it."""
    still_held: tuple[str, ...] = ()
    """Exports that could not be written again without it: they are to be erased by hand."""


def begin(home: Home, journal: Journal) -> None:
    atomic_write(_path(home, journal.subject, "unfinished.json"), journal.model_dump_json(indent=1).encode())


def finish(home: Home, journal: Journal, counts: dict[str, int], *, tainted: tuple[str, ...], still_held: tuple[str, ...]) -> Path:
    """The receipt, in place of the journal. What went before a kill is not counted twice, nor known any more: the counts are of the last
    start."""
    path = _path(home, journal.subject, "json")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    receipt = Receipt(
        subject=journal.subject, begun_at=journal.begun_at, finished_at=now, counts=counts, tainted=tainted, still_held=still_held
    )
    atomic_write(path, receipt.model_dump_json(indent=1).encode())
    _path(home, journal.subject, "unfinished.json").unlink(missing_ok=True)
    return path


def unfinished(home: Home) -> list[Journal]:
    """Raises ConfigError for a file that cannot be read."""
    found = []
    for path in sorted((home.root / FOLDER).glob("*.unfinished.json")):
        try:
            found.append(Journal.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.error_count()} errors): restore it from a backup, or remove it and forget the same again"
            ) from error
    return found


def _path(home: Home, subject: Subject, ending: str) -> Path:
    return home.root / FOLDER / f"{subject.forget_id}.{ending}"
