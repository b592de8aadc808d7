"""How much memory the processes of stages take while an iteration runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from warehouse.core.home import Home

STAGES = "pipelines.stages"
"""The module that a stage's worker runs, followed by its folder."""
EVERY_S = 1.0


@contextlib.contextmanager
def stage_memory(home: Home) -> Iterator[dict[tuple[str, str], int]]:
    """By (iteration, stage), while the block runs: the most resident memory of one process of the stage, its worker or a process that the
    worker started here, bytes, looked at every second."""
    found: dict[tuple[str, str], int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            for folder, worker in _workers(home):
                key = (folder.parent.name, folder.name)
                found[key] = max(found.get(key, 0), _largest(worker))

    thread = threading.Thread(target=look, name="stage memory")
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _workers(home: Home) -> Iterator[tuple[Path, psutil.Process]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            command = process.cmdline()
            folder = Path(command[command.index(STAGES) + 1])
            if folder.is_relative_to(home.work):
                yield folder, process


def _largest(worker: psutil.Process) -> int:
    largest = 0
    with contextlib.suppress(psutil.Error):
        for process in (worker, *worker.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                largest = max(largest, process.memory_info().rss)
    return largest
