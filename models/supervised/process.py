"""One process of a supervised run in several: `torchrun … -m models.supervised.process RUN_FOLDER`. What starts it is distributed.py.

It ends with the process that started the run and with torchrun between them, however either ends: torchrun leaves it behind, in a session
of its own, when it is killed itself.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import psutil

from models.supervised.distributed import ERROR_FILE, IMAGES_FOLDER, JOB_FILE, RESULT_FILE, WEIGHTS_FOLDER, Job
from models.training.processes import leave_error
from warehouse.core.errors import FlywheelError
from warehouse.core.home import atomic_write
from warehouse.core.processes import die_with


def main(run_folder: Path) -> int:
    job = Job.model_validate_json((run_folder / JOB_FILE).read_text())
    die_with(job.launcher_pid)
    die_with_torchrun(job.launcher_pid)
    try:
        metrics = _fit(job, run_folder)
    except FlywheelError as error:
        leave_error(run_folder / ERROR_FILE, error)
        traceback.print_exc()
        return 1
    if int(os.environ["RANK"]) == 0:
        atomic_write(run_folder / RESULT_FILE, json.dumps(metrics).encode())
    return 0


def _fit(job: Job, run_folder: Path) -> dict[str, float]:
    if job.config.deepspeed_stage is not None:
        prepare_deepspeed()
    import torch

    from models.families.registry import load_codec, load_policy
    from models.families.vision import pixel_loader
    from models.supervised.fitting import fit
    from models.supervised.sample_file import SampleFile
    from models.training.adapters import prepare_for_training

    model: Any = load_policy(job.init)
    if job.config.bf16 and job.config.deepspeed_stage is not None:
        model.to(dtype=torch.bfloat16)
    prepare_for_training(model, job.config, seed=job.config.seed)
    images = run_folder / IMAGES_FOLDER
    metrics = fit(
        model,
        SampleFile(job.trained),
        job.config,
        run_folder,
        held_out=SampleFile(job.held_out),
        weights_folder=run_folder / WEIGHTS_FOLDER,
        pixels=pixel_loader(load_codec(job.init), lambda name: (images / name).read_bytes()),
    )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # the weights are written
        torch.distributed.destroy_process_group()
    return metrics


def prepare_deepspeed() -> None:
    """Settle before DeepSpeed looks: which accelerator there is, and that its shared-memory collectives are not compiled, which takes
    minutes; gloo does without."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    compatible: dict[str, Any] = deepspeed.ops.__compatible_ops__
    compatible["deepspeed_shm_comm"] = False


def die_with_torchrun(launcher_pid: int) -> None:
    """End this process when its parent does, which is a child of process `launcher_pid`; at once when it is gone already, and this one was
    handed on to another."""
    parent = os.getppid()
    die_with(parent)
    try:
        is_there = psutil.Process(parent).ppid() == launcher_pid
    except psutil.NoSuchProcess:
        is_there = False
    if not is_there:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
