"""What every worker is given, and the small things several of them do: open a checkpoint as a policy, open sandboxes, list instances.

Nothing here decides what a stage does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.episode.episode import EpisodeRequest, Purpose
from assets.settings.profile import TaskSettings
from models.engine.choice import EngineChoice
from models.training import tracking
from models.training.tracking_config import TrackingConfig
from pipelines.orchestration.work.progress import Progress
from pipelines.stages.engines import ClosablePolicy, open_engine
from sandbox.tasks.sources import reported_seeds, tasks_in
from sandbox.tasks.task import Split, Task
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """One stage's work folder, its place in the warehouse, and where to speak."""

    folder: Path
    home: Home
    iteration: str
    stage: str
    log: Callable[[str], None]
    _last: list[Callable[[], object]] = field(default_factory=list, init=False, repr=False)

    def when_finished(self, clean_up: Callable[[], object]) -> None:
        """Do this once the result is stored: a worker that is killed before finds what it would go on from."""
        self._last.append(clean_up)

    def clean_up(self) -> None:
        """In the order in which it was asked for."""
        for each in self._last:
            each()

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.home)

    @property
    def checkpoints(self) -> Path:
        """Where this stage's checkpoints lie, one folder an id."""
        return self.home.checkpoints / self.iteration / self.stage

    @property
    def draft(self) -> Path:
        """Where a checkpoint is written while its id is not known; `storing.store_checkpoint` gives it its place."""
        return self.checkpoints / "draft"

    @property
    def candidate(self) -> Path:
        """Where a checkpoint lies that is tried and thrown away: below the home's checkpoints, whence a policy server may load it."""
        return self.checkpoints / "candidate"

    @property
    def run_folder(self) -> Path:
        """Curves of this stage's training run, and what it resumes from when it was killed."""
        return self.checkpoints / "run"

    @property
    def exchange(self) -> Path:
        """Where RL puts weights for policy servers of its own."""
        return self.checkpoints / "exchange"

    @property
    def harness_folder(self) -> Path:
        """Where the gateway of a harness logs."""
        return self.folder / "harness"

    def progress(self) -> Progress:
        return Progress(self.folder, iteration=self.iteration, stage=self.stage, log=self.log)

    def track(self, config: TrackingConfig, params: Mapping[str, Any]) -> None:
        """Report the training run of this stage to trackers, too. Raises ConfigError for one that is not installed."""
        tracking.use(config, self.home.root, name=f"{self.iteration}/{self.stage}", params=params)

    def engine(self, checkpoint_id: str, choice: EngineChoice) -> ClosablePolicy:
        """A registered checkpoint, ready to act."""
        return open_engine(registry.find(self.warehouse, checkpoint_id).folder, choice)


def profile_tasks(settings: TaskSettings, domain: str | None = None) -> list[Task]:
    """The tasks of the profile's lists, of one domain or of all, in their order."""
    return [task for task in tasks_in(settings.lists).values() if task.domain in (settings.domains if domain is None else (domain,))]


def requests_for(
    settings: TaskSettings,
    *,
    purpose: Purpose,
    policy_id: str,
    split: Split,
    num: int,
    skip: int = 0,
    attempts: int = 1,
    temperature: float = 0.0,
    screenshots: bool = True,
    task_pool: Mapping[str, Sequence[int]] | None = None,
) -> list[EpisodeRequest]:
    """One request per task, instance and attempt, instance by instance, so that a collection cut short is still balanced over tasks. A
    `task_pool` says by task id which seeds they are; without it every task has `num`, or of another split than `train` as many as it has
    different ones."""
    tasks = [task for task in profile_tasks(settings) if split is not Split.TRAIN or not task.held_out]

    def seeds_of(task: Task) -> list[int]:
        if task_pool is not None:
            return list(task_pool.get(task.task_id, ()))
        return task.seeds(split, num, skip=skip) if split is Split.TRAIN else reported_seeds(task, split, num)

    seeds = {task.task_id: seeds_of(task) for task in tasks}
    return [
        EpisodeRequest(
            purpose=purpose,
            task=task,
            seed=seeds[task.task_id][index],
            attempt=attempt,
            policy_id=policy_id,
            temperature=temperature,
            screenshots=screenshots,
        )
        for index in range(max(map(len, seeds.values()), default=0))
        for attempt in range(attempts)
        for task in tasks
        if index < len(seeds[task.task_id])
    ]
