"""The processes of ranks 1 and up of a run that trains in several, as rank 0 sees them: start, send each round, watch, stop.

The leader, rank 0, is the trainer's own process; it alone collects, counts, writes and publishes weights. Another rank (process.py) reads
its job and the episodes of each round from files in the group's folder, and starts a round when a line arrives on its standard input. It
ends when that input closes, and when the leader ends, however that ends. Collectives are in process_group.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.episode.episode import Episode
from models.families.registry import device_named
from models.rl.config import PpoConfig
from models.rl.learner import Round
from models.rl.process_group import ProcessGroup
from models.rl.replay import ReplayPool
from models.training.processes import last_words, left_error
from models.training.processes import start as start_process
from warehouse.core.errors import ProcessLost
from warehouse.core.home import atomic_write
from warehouse.core.processes import end_group

MEETING, BATCH = "meeting", "batch.jsonl"
LOST_A_RANK = 75
"""Exit status of a rank that ended because another one had."""
POLL_S, GRACE_S = 0.05, 10.0


class Job(BaseModel):
    """All that a rank needs when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Annotated[int, Field(ge=1, description="among the processes of the run; 0 is the leader")]
    leader_pid: Annotated[int, Field(ge=1, description="this process ends when that one does")]
    device: Annotated[str, Field(description="where it trains")]
    init: Annotated[Path, Field(description="checkpoint that the run started from")]
    config: PpoConfig
    state: Annotated[Path, Field(description="folder of the run's states; the newest is loaded")]
    episodes: Annotated[Path, Field(description="folder of the run's rollout log, for screenshots")]
    num_sft: Annotated[int, Field(ge=0, description="SFT samples that the leader can replay")]
    num_ct: Annotated[int, Field(ge=0, description="CT samples that the leader can replay")]


def device_beside(device: str, rank: int) -> str:
    """The device of that rank when the leader's is `device`: the GPU `rank` places after it, or the CPU too. Raises ModelError for a GPU
    that does not exist."""
    kind, _, index = device.partition(":")
    return device_named(f"{kind}:{int(index or 0) + rank}") if kind == "cuda" else device


def job_file(folder: Path, rank: int) -> Path:
    return folder / f"job-{rank}.json"


def ready_file(folder: Path, rank: int) -> Path:
    return folder / f"ready-{rank}"


def error_file(folder: Path, rank: int) -> Path:
    return folder / f"error-{rank}.json"


def log_file(folder: Path, rank: int) -> Path:
    return folder / f"process-{rank}.log"


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
        episodes: Path,
        replay: ReplayPool,
        device: str,
    ) -> None:
        """Raises ModelError where there are too few GPUs."""
        self._group, self._folder, self._on_gpu = group, run_folder.resolve() / "gang", device.startswith("cuda")
        self._jobs = [
            Job(
                rank=rank,
                leader_pid=os.getpid(),
                device=device_beside(device, rank),
                init=init.resolve(),
                config=config,
                state=state.resolve(),
                episodes=episodes.resolve(),
                num_sft=len(replay.sft),
                num_ct=len(replay.ct),
            )
            for rank in range(1, group.size)
        ]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start them, wait until each has loaded the leader's state, and join the group. Raises ProcessLost, with its error, where one ends
        before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for job in self._jobs:
            file = job_file(self._folder, job.rank)
            atomic_write(file, job.model_dump_json().encode())
            command = ["-m", "models.rl.process", str(file)]
            self._processes[job.rank] = start_process(command, log_file(self._folder, job.rank), is_spoken_to=True)
        while not all(ready_file(self._folder, job.rank).exists() for job in self._jobs):
            self.check()
            time.sleep(POLL_S)
        with self.naming_the_lost():
            self._group.join(self._folder / MEETING, on_gpu=self._on_gpu)

    def send(self, round_: Round, episodes: Sequence[Episode]) -> None:
        """Have them learn from these episodes; the leader has to do the same at once. Raises ProcessLost."""
        batch = b"".join(episode.model_dump_json().encode() + b"\n" for episode in episodes)
        (self._folder / BATCH).write_bytes(batch)  # all have read the one before: a round ends on all ranks together
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended: the first collective raises
                    process.stdin.write(round_.model_dump_json().encode() + b"\n")
                    process.stdin.flush()

    def check(self) -> None:
        """Raises ProcessLost where one has ended."""
        if any(process.poll() is not None for process in self._processes.values()):
            raise self._process_lost()

    @contextlib.contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """A ProcessLost raised within the block is raised again with the rank that ended and its status."""
        try:
            yield
        except ProcessLost as error:
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline:
                if any(process.poll() is not None for process in self._processes.values()):
                    raise self._process_lost() from error
                time.sleep(POLL_S)
            raise

    def _process_lost(self) -> ProcessLost:
        ended = {rank: status for rank, process in self._processes.items() if (status := process.poll()) is not None}
        rank = next((rank for rank, status in ended.items() if status != LOST_A_RANK), min(ended))
        log = log_file(self._folder, rank)
        error = left_error(error_file(self._folder, rank))
        cause = f"the end of its log {log}:\n{last_words(log)}" if error is None else f"{type(error).__name__}: {error}; its log is {log}"
        return ProcessLost(
            f"training process {rank} of {self._group.size} ended with status {ended[rank]}; start the run again: it resumes from its last "
            f"state. {cause}"
        )

    def stop(self) -> None:
        """Close their input, wait, and kill those that do not end. Nothing happens where none was started."""
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        self._group.leave()
        deadline = time.monotonic() + GRACE_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                end_group(process.pid)
                process.wait()
        (self._folder / BATCH).unlink(missing_ok=True)
