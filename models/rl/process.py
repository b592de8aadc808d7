"""One rank from 1 up of a run that trains in several processes: `python -m models.rl.process JOB_FILE`. ranks.py starts it and sends it
each round.

It learns from each batch as the leader does, and nothing else: it collects nothing and writes nothing of the run. It ends when its standard
input closes, and when the leader ends.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

from agent.episode.episode import Episode
from models.rl.learner import Learner, Round
from models.rl.process_group import ProcessGroup
from models.rl.ranks import BATCH, LOST_A_RANK, MEETING, Job, error_file, ready_file
from models.rl.replay import ReplayPool
from models.rl.rollout_log import RolloutLog
from models.training.processes import leave_error
from warehouse.core.errors import FlywheelError, ProcessLost
from warehouse.core.processes import die_with


def main(job_file: Path) -> int:
    job = Job.model_validate_json(job_file.read_text())
    die_with(job.leader_pid)
    try:
        _learn(job, job_file.parent)
    except ProcessLost:
        traceback.print_exc()
        return LOST_A_RANK
    except FlywheelError as error:
        leave_error(error_file(job_file.parent, job.rank), error)
        traceback.print_exc()
        return 1
    return 0


def _learn(job: Job, folder: Path) -> None:
    torch.set_num_threads(1)  # as the leader does: the same sums in the same order
    on_gpu = job.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(job.device)
    group = ProcessGroup(job.rank, job.config.num_processes)
    replay = ReplayPool.as_large_as(job.num_sft, job.num_ct)
    learner = Learner(job.init, job.config, replay=replay, device=job.device, group=group)
    learner.load(job.state)
    ready_file(folder, job.rank).touch()
    group.join(folder / MEETING, on_gpu=on_gpu)
    learner.check_same_weights()
    rollout_log = RolloutLog(job.episodes)
    for line in sys.stdin:
        round_ = Round.model_validate_json(line)
        learner.learn_from(learner.trajectories(_batch(folder, rollout_log)), round_)
    group.leave()


def _batch(folder: Path, rollout_log: RolloutLog) -> list[Episode]:
    found = (Episode.model_validate_json(line) for line in (folder / BATCH).read_bytes().splitlines())
    return [rollout_log.with_screenshots(episode) if episode.request.screenshots else episode for episode in found]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
