"""The processes of ranks 1 and up of a run that trains in several, as rank 0 sees them: start, send each round, watch, stop.

The leader, rank 0, is the trainer's own process; it alone collects, counts, writes and publishes weights. The others (process.py) are
started by models/training/launcher.py, on this host or on several. They read their job and the episodes of each round from files in the
launch's folder, and start a round when the launcher's store has it. They end when it says so, and with the leader, however that ends.
Collectives are in process_group.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch.distributed import Store  # type: ignore[attr-defined]

from agent.episode.episode import Episode
from models.families.registry import device_named
from models.rl.config import PpoConfig
from models.rl.distributed.process_group import ProcessGroup
from models.rl.learner import Round
from models.rl.updates.replay import ReplayPool
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.launcher import GRACE_S, LAUNCH_FOLDER, Launch
from warehouse.core.home import atomic_write

JOB_FILE, BATCH = "job.json", "batch.jsonl"
POLL_S = 0.05
FOREVER = timedelta(days=365)
"""How long a rank waits for a round: it ends with the leader."""


class Job(BaseModel):
    """All that a rank needs when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Annotated[str, Field(description="where the leader trains")]
    init: Annotated[Path, Field(description="checkpoint that the run started from")]
    config: PpoConfig
    state: Annotated[Path, Field(description="folder of the run's states; the newest is loaded")]
    critic: Annotated[Path, Field(description="checkpoint that the critic begins with, where it exists and there is no state")]
    episodes: Annotated[Path, Field(description="folder of the run's rollout log, for screenshots")]
    timeout_s: Annotated[float, Field(gt=0, description="TrainingHosts.timeout_s")]
    num_sft: Annotated[int, Field(ge=0, description="SFT samples that the leader can replay")]
    num_ct: Annotated[int, Field(ge=0, description="CT samples that the leader can replay")]


def device_beside(device: str, place: int) -> str:
    """The GPU `place` places after `device`, or the CPU too. Raises ModelError for a GPU that does not exist."""
    kind, _, index = device.partition(":")
    return device_named(f"{kind}:{int(index or 0) + place}") if kind == "cuda" else device


class Save(BaseModel):
    """Write this process's part of what is shared out into a folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path


_ORDER: TypeAdapter[Round | Save] = TypeAdapter(Round | Save)


def next_order(store: Store, number: int) -> Round | Save | None:
    """What the leader sends next, number by number, once it has; None when nothing more will come. Raises RuntimeError when the leader is
    gone."""
    store.wait([f"order/{number}"], FOREVER)
    said = store.get(f"order/{number}")
    return _ORDER.validate_json(said) if said else None


def has_saved(number: int, rank: int) -> str:
    """Key of the store that a rank sets when it has saved, as order `number` said."""
    return f"saved/{number}/{rank}"


class RankProcesses:
    """The processes of ranks 1 and up of the run in `run_folder`. Used from one thread at a time."""

    def __init__(
        self,
        group: ProcessGroup,
        run_folder: Path,
        *,
        init: Path,
        config: PpoConfig,
        state: Path,
        critic: Path,
        episodes: Path,
        replay: ReplayPool,
        device: str,
        hosts: TrainingHosts = THIS_MACHINE,
    ) -> None:
        """Raises ModelError where this machine has too few GPUs, ConfigError where it is none of the hosts."""
        self._group, self._folder, self._on_gpu = group, run_folder.resolve() / LAUNCH_FOLDER, device.startswith("cuda")
        self._job = Job(
            device=device,
            init=init.resolve(),
            config=config,
            state=state.resolve(),
            critic=critic.resolve(),
            episodes=episodes.resolve(),
            timeout_s=hosts.timeout_s,
            num_sft=len(replay.sft),
            num_ct=len(replay.ct),
        )
        self._num_sent = 0
        self._launch = Launch(
            "models.rl.distributed.process", [str(self._folder)], self._folder, num_processes=group.size, hosts=hosts, leads=True
        )
        device_beside(device, self._launch.num_here)

    def start(self) -> None:
        """Start them, wait until each has loaded the leader's state, and join the group. Raises ProcessLost, with its error, where one ends
        before."""
        atomic_write(self._folder / JOB_FILE, self._job.model_dump_json().encode())
        store = self._launch.start()
        while not all(store.check([f"ready/{rank}"]) for rank in range(1, self._group.size)):
            self.check()
            time.sleep(POLL_S)
        with self.naming_the_lost():
            self._group.join(store, self._launch.address, on_gpu=self._on_gpu)

    def send(self, round_: Round, episodes: Sequence[Episode]) -> None:
        """Have them learn from these episodes; the leader has to do the same at once."""
        batch = b"".join(episode.model_dump_json().encode() + b"\n" for episode in episodes)
        (self._folder / BATCH).write_bytes(batch)  # all have read the one before: a round ends on all ranks together
        self._say(round_.model_dump_json())

    def _say(self, text: str) -> None:
        if self._launch.store is not None:
            self._num_sent += 1
            self._launch.store.set(f"order/{self._num_sent}", text)

    def save_parts(self, folder: Path) -> None:
        """Have them write their parts of what is shared out into a folder. Raises ProcessLost."""
        store = self._launch.store
        if store is None or not self._job.config.zero_stage:
            return
        self._say(Save(folder=folder.resolve()).model_dump_json())
        keys = [has_saved(self._num_sent, rank) for rank in range(1, self._group.size)]
        while not all(store.check([key]) for key in keys):
            self.check()
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raises ProcessLost where one has ended."""
        self._launch.check()

    def naming_the_lost(self) -> contextlib.AbstractContextManager[None]:
        """A ProcessLost raised within the block is raised again with the process that ended and its status."""
        return self._launch.naming_the_lost()

    def stop(self) -> None:
        """Ask them to end, wait, and kill those that do not. Does nothing where none was started."""
        self._say("")
        self._group.leave()
        self._launch.stop(wait_s=GRACE_S)
        (self._folder / BATCH).unlink(missing_ok=True)
