"""One rank from 1 up of a run that trains in several processes: `python -m models.rl.distributed.process FOLDER`. ranks.py has it started
and sends it each round.

It learns from each batch as the leader does, and nothing else: it collects nothing and writes nothing of the run.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch

from agent.episode.episode import Episode
from models.rl.distributed.process_group import ProcessGroup
from models.rl.distributed.ranks import BATCH, JOB_FILE, Job, Save, device_beside, has_saved, next_order
from models.rl.learner import Learner
from models.rl.rollouts.log import RolloutLog
from models.rl.state import save_optimizers
from models.rl.updates.replay import ReplayPool
from models.training.launcher import NodeJob, store_at
from models.training.processes import NODE_JOB, work_as_rank


def main(folder: Path) -> int:
    rank = int(os.environ["RANK"]) + 1
    return work_as_rank(folder, rank, partial(_learn, folder, rank))


def _learn(folder: Path, rank: int) -> None:
    job = Job.model_validate_json((folder / JOB_FILE).read_text())
    node = NodeJob.model_validate_json(Path(os.environ[NODE_JOB]).read_text())
    store = store_at(node.store)
    torch.set_num_threads(1)  # as the leader does: the same sums in the same order
    on_gpu = job.device.startswith("cuda")
    # Beside the leader the GPUs behind its own, on another host from the first on.
    base = job.device if node.first_device else job.device.partition(":")[0]
    device = device_beside(base, node.first_device + int(os.environ["LOCAL_RANK"]))
    if on_gpu:
        torch.cuda.set_device(device)
    group = ProcessGroup(rank, job.config.num_processes, timedelta(seconds=job.timeout_s))
    replay = ReplayPool.as_large_as(job.num_sft, job.num_ct)
    learner = Learner(job.init, job.config, replay=replay, device=device, group=group)
    learner.load(job.state, job.critic)
    store.set(f"ready/{rank}", "")
    group.join(store, node.address, on_gpu=on_gpu)
    learner.check_same_weights()
    learner.share_out(job.state)
    rollout_log, number = RolloutLog(job.episodes), 1
    while (order := next_order(store, number)) is not None:
        if isinstance(order, Save):
            save_optimizers(order.folder, learner.optimizers())
            store.set(has_saved(number, rank), "")
        else:
            learner.learn_from(learner.trajectories(_batch(folder, rollout_log)), order)
        number += 1
    group.leave()


def _batch(folder: Path, rollout_log: RolloutLog) -> list[Episode]:
    found = (Episode.model_validate_json(line) for line in (folder / BATCH).read_bytes().splitlines())
    return [rollout_log.with_screenshots(episode) if episode.request.screenshots else episode for episode in found]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
