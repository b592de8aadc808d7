"""How a stage's worker reports its progress: a small file that live displays read, and lines in the Dagster log.

The file is `work/<iteration>/<stage>/progress.json`, replaced atomically at most four times a second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from warehouse.core.home import Home

FILE_INTERVAL_S = 0.25
LOG_INTERVAL_S = 5.0
STALE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far a stage is. `total` 0 means unknown. `first_done` of this unit of work was done at `started_at`: a stage that goes on after a
    kill begins with what is there, and that says nothing of its speed. `started_at` and `updated_at` are Unix seconds."""

    stage: str
    iteration: str
    unit: str
    done: int
    total: int
    first_done: int = 0
    started_at: float
    updated_at: float
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float | None:
        """Linear extrapolation, or None while nothing is known."""
        if self.done <= self.first_done or not self.total:
            return None
        return (self.updated_at - self.started_at) / (self.done - self.first_done) * (self.total - self.done)


class Progress:
    """Written by one worker."""

    def __init__(self, folder: Path, *, iteration: str, stage: str, log: Callable[[str], None]) -> None:
        self._path = folder / "progress.json"
        self._iteration, self._stage, self._log = iteration, stage, log
        self._unit, self._first_done, self._started_at = "", 0, time.time()
        self._last_file = self._last_log = 0.0

    def update(self, done: int, total: int, unit: str, metrics: Mapping[str, float] | None = None) -> None:
        """Cheap enough to call for every step or episode. Counting of time restarts where a stage goes on to another unit of work."""
        now = time.time()
        if unit != self._unit:
            if self._unit or done > 1:
                self._first_done, self._started_at = (done if done > 1 else 0), now
            self._unit = unit
        is_last = bool(total) and done >= total
        if now - self._last_file >= FILE_INTERVAL_S or is_last:
            self._last_file = now
            snapshot = Snapshot(
                stage=self._stage,
                iteration=self._iteration,
                unit=unit,
                done=done,
                total=total,
                first_done=self._first_done,
                started_at=self._started_at,
                updated_at=now,
                metrics=dict(metrics or {}),
            )
            aside = self._path.with_suffix(".aside")
            aside.write_text(json.dumps(asdict(snapshot)))
            os.replace(aside, self._path)
        if now - self._last_log >= LOG_INTERVAL_S or is_last:
            self._last_log = now
            figures = " ".join(f"{name}={value:.4g}" for name, value in (metrics or {}).items())
            self._log(f"{self._stage}: {done}/{total or '?'} {unit} {figures}".rstrip())


def read(folder: Path) -> Snapshot | None:
    """The last snapshot of a stage's work folder, or None."""
    try:
        return Snapshot(**json.loads((folder / "progress.json").read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def working(home: Home, iteration: str, since: float = 0.0) -> list[Snapshot]:
    """How far the stages of an iteration are that work now, and have said so since this Unix second."""
    folder = home.work / iteration
    if not folder.is_dir():
        return []
    found = [read(stage) for stage in sorted(folder.iterdir()) if stage.is_dir() and not (stage / "result.json").exists()]
    return [snapshot for snapshot in found if snapshot is not None and snapshot.updated_at > max(since, time.time() - STALE_S)]
