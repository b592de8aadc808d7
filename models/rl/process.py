"""One process that learns with others of its run and follows their leader: `python -m models.rl.process JOB_FILE`. What starts it, and
tells it of each turn, is ranks.py.

It does with each batch what the leader does with it, and nothing else: it collects nothing and writes nothing of the run. It ends when its
standard input does, and with the leader.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

from agent.episode.episode import Episode
from models.rl.learner import Learner, Turn
from models.rl.process_group import Gang
from models.rl.ranks import BATCH, LOST_OTHERS, MEETING, Job, error_file, ready_file
from models.rl.replay import ReplayPool
from models.rl.rollout_log import EpisodeSpool
from models.training.processes import leave_error
from warehouse.core.errors import FlywheelError, ProcessLost
from warehouse.core.processes import die_with


def main(job_file: Path) -> int:
    job = Job.model_validate_json(job_file.read_text())
    die_with(job.leader_pid)
    try:
        _follow(job, job_file.parent)
    except ProcessLost:
        traceback.print_exc()
        return LOST_OTHERS
    except FlywheelError as error:
        leave_error(error_file(job_file.parent, job.rank), error)
        traceback.print_exc()
        return 1
    return 0


def _follow(job: Job, folder: Path) -> None:
    torch.set_num_threads(1)  # as the leader does: the same sums in the same order
    on_gpu = job.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(job.device)
    gang = Gang(job.rank, job.config.num_processes)
    replay = ReplayPool.as_large_as(job.num_sft, job.num_ct)
    learner = Learner(job.init, job.config, replay=replay, device=job.device, gang=gang)
    learner.load(job.state)
    ready_file(folder, job.rank).touch()
    gang.join(folder / MEETING, on_gpu=on_gpu)
    learner.check_alike()
    spool = EpisodeSpool(job.episodes)
    for line in sys.stdin:
        turn = Turn.model_validate_json(line)
        learner.learn_from(learner.trajectories(_batch(folder, spool)), turn)
    gang.leave()


def _batch(folder: Path, spool: EpisodeSpool) -> list[Episode]:
    found = (Episode.model_validate_json(line) for line in (folder / BATCH).read_bytes().splitlines())
    return [spool.with_screenshots(episode) if episode.request.screenshots else episode for episode in found]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
