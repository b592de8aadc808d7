"""What every worker is given, and the small things several of them do: open a checkpoint as a policy, open sandboxes, list instances.

Nothing here decides what a stage does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assets.profile import SandboxSettings, TaskSettings
from pipelines.progress import Progress
from sandbox.miniwob.source import load_tasks
from sandbox.task import Split, Task
from warehouse import registry
from warehouse.home import Home
from warehouse.tables import Warehouse

if TYPE_CHECKING:
    from agent.pool_collector import PoolCollector
    from models.engine import EmbeddedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """One stage's work folder, its place in the warehouse, and where to speak."""

    folder: Path
    home: Home
    iteration: str
    stage: str
    log: Callable[[str], None]

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.home)

    @property
    def checkpoint_folder(self) -> Path:
        """Where this stage's checkpoint goes."""
        return self.home.checkpoints / self.iteration / self.stage

    def progress(self) -> Progress:
        return Progress(self.folder, iteration=self.iteration, stage=self.stage, log=self.log)

    def engine(self, checkpoint_id: str) -> EmbeddedEngine:
        """A registered checkpoint, loaded to act."""
        from models.checkpoint import load_model, load_tokenizer
        from models.engine import EmbeddedEngine

        folder = registry.find(self.warehouse, checkpoint_id).folder
        return EmbeddedEngine(load_model(folder), load_tokenizer(folder), checkpoint_id)
