"""The other processes of a run that learns in several, as the one that leads sees them: started, told each turn, watched, ended.

The leader is the trainer's own process, rank 0; it alone collects, counts, writes and hands weights on. A follower (process.py) is told by
files in the gang's folder what it is made of and which episodes a turn is about, by a line on its standard input that the turn has come.
It ends with that input, and with the leader however that ends. What is computed together is process_group.py's business.
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
from models.rl.learner import Turn
from models.rl.process_group import Gang
from models.rl.replay import ReplayPool
from models.training.processes import last_words, left_error, start
from warehouse.core.errors import ProcessLost
from warehouse.core.home import atomic_write
from warehouse.core.processes import end_group

MEETING, BATCH = "meeting", "batch.jsonl"
LOST_OTHERS = 75
"""Status of a follower that ended because another process had."""
POLL_S, GRACE_S = 0.05, 10.0


class Job(BaseModel):
    """All that a follower is told when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Annotated[int, Field(ge=1, description="among the processes of the run; 0 leads")]
    leader_pid: Annotated[int, Field(ge=1, description="process whose end ends this one")]
    device: Annotated[str, Field(description="where it learns")]
    init: Annotated[Path, Field(description="checkpoint that the run began with")]
    config: PpoConfig
    state: Annotated[Path, Field(description="folder of the run's states, of which the newest counts")]
    episodes: Annotated[Path, Field(description="folder of the run's spool, for screenshots")]
    num_sft: Annotated[int, Field(ge=0, description="samples that the leader can replay")]
    num_ct: Annotated[int, Field(ge=0, description="the same of the other kind")]


def device_beside(device: str, rank: int) -> str:
    """Where the process of that rank learns when the leader does on `device`: on the GPU so many behind it, or on the CPU as well. Raises
    ModelError for one that is not there."""
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


class Followers:
    """The followers of a run in `run_folder`, whose gang's folder they work in. Used from one thread at a time."""

    def __init__(
        self, gang: Gang, run_folder: Path, *, init: Path, config: PpoConfig, state: Path, episodes: Path, replay: ReplayPool, device: str
    ) -> None:
        """Raises ModelError where there are too few GPUs."""
        self._gang, self._folder, self._on_gpu = gang, run_folder.resolve() / "gang", device.startswith("cuda")
        self._jobs = [
            Job(
                rank=rank, leader_pid=os.getpid(), device=device_beside(device, rank), init=init.resolve(), config=config,
                state=state.resolve(), episodes=episodes.resolve(), num_sft=len(replay.sft), num_ct=len(replay.ct),
            )
            for rank in range(1, gang.size)
        ]  # fmt: skip
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def gather(self) -> None:
        """Start them, wait until each has loaded what the leader has, and join. Raises ProcessLost where one does not get so far, what it
        says where it says why."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for job in self._jobs:
            file = job_file(self._folder, job.rank)
            atomic_write(file, job.model_dump_json().encode())
            command = ["-m", "models.rl.process", str(file)]
            self._processes[job.rank] = start(command, log_file(self._folder, job.rank), is_spoken_to=True)
        while not all(ready_file(self._folder, job.rank).exists() for job in self._jobs):
            self.check()
            time.sleep(POLL_S)
        with self.explained():
            self._gang.join(self._folder / MEETING, on_gpu=self._on_gpu)

    def tell(self, turn: Turn, episodes: Sequence[Episode]) -> None:
        """Have them learn from these episodes; the leader is to do the same at once. Raises ProcessLost."""
        batch = b"".join(episode.model_dump_json().encode() + b"\n" for episode in episodes)
        (self._folder / BATCH).write_bytes(batch)  # everybody has read the one before: a turn ends with all of them together
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it is gone, which the first sum will find
                    process.stdin.write(turn.model_dump_json().encode() + b"\n")
                    process.stdin.flush()

    def check(self) -> None:
        """Raises ProcessLost where one has ended."""
        if any(process.poll() is not None for process in self._processes.values()):
            raise self._what_became()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Where the others do not answer within, ProcessLost says which of them ended and how."""
        try:
            yield
        except ProcessLost as error:
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline:
                if any(process.poll() is not None for process in self._processes.values()):
                    raise self._what_became() from error
                time.sleep(POLL_S)
            raise

    def _what_became(self) -> ProcessLost:
        ended = {rank: status for rank, process in self._processes.items() if (status := process.poll()) is not None}
        rank = next((rank for rank, status in ended.items() if status != LOST_OTHERS), min(ended))
        log = log_file(self._folder, rank)
        error = left_error(error_file(self._folder, rank))
        words = f"the end of its log {log}:\n{last_words(log)}" if error is None else f"{type(error).__name__}: {error}; its log is {log}"
        return ProcessLost(
            f"process {rank} of the {self._gang.size} that learn together ended with status {ended[rank]}; the run goes on from its last "
            f"state when it is started again. {words}"
        )

    def end(self) -> None:
        """End them all, by themselves or by force. Those that never started are ended already."""
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        self._gang.leave()
        deadline = time.monotonic() + GRACE_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            if process.poll() is None:
                end_group(process.pid)
                process.wait()
        (self._folder / BATCH).unlink(missing_ok=True)
