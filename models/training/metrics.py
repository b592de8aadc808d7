"""Training metrics on their way out: a JSON-lines file, TensorBoard, trackers (tracking.py), and a callback for observers. No
orchestrator is known here.

A resumed run drops the lines after the step it resumes from, so every step is in the file once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from models.training.tracking import Trackers
from warehouse.core.home import atomic_write

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is, and what it measured there."""

    step: int
    num_steps: int
    metrics: Mapping[str, float]


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """For runs that nobody watches."""


class MetricLog:
    """Writes each Progress to `folder`: metrics.jsonl, TensorBoard's event files, trackers; then calls `on_progress`."""

    def __init__(self, folder: Path, on_progress: OnProgress = ignore_progress, *, resume_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / METRICS_FILE
        keep_until(folder, resume_step)
        self._board = SummaryWriter(str(folder), purge_step=resume_step + 1 if resume_step else None)
        self._trackers = Trackers(folder)
        self._on_progress = on_progress

    def write(self, progress: Progress) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(progress))
        for name, value in progress.metrics.items():
            self._board.add_scalar(name, value, progress.step)
        self._trackers.log(progress.step, progress.metrics)
        self._on_progress(progress)

    def close(self) -> None:
        self._board.close()
        self._trackers.close()


def keep_until(folder: Path, step: int) -> int:
    """Drop what a run reported after `step`, from where it is resumed; returns how many reports are left."""
    kept = [progress for progress in read_metrics(folder) if progress.step <= step]
    atomic_write(folder / METRICS_FILE, "".join(_line(progress) for progress in kept).encode())
    return len(kept)


def read_metrics(folder: Path) -> list[Progress]:
    """The metrics of a run so far; a line that was cut off by a kill is left out."""
    path = folder / METRICS_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [Progress(**json.loads(line)) for line in lines[:-1]]


def _line(progress: Progress) -> str:
    return json.dumps(asdict(progress), allow_nan=False) + "\n"
