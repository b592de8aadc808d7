"""One process of a supervised run in several: `python -m models.supervised.process RUN_FOLDER`. What starts it is distributed.py."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from models.supervised.distributed import IMAGES_FOLDER, JOB_FILE, RESULT_FILE, WEIGHTS_FOLDER, Job
from models.training.launcher import LAUNCH_FOLDER
from models.training.processes import work_as_rank
from models.training.zero import prepare_deepspeed
from warehouse.core.home import atomic_write


def main(run_folder: Path) -> int:
    rank = int(os.environ["RANK"])

    def work() -> None:
        metrics = _fit(Job.model_validate_json((run_folder / JOB_FILE).read_text()), run_folder)
        if rank == 0:
            atomic_write(run_folder / RESULT_FILE, json.dumps(metrics).encode())

    return work_as_rank(run_folder / LAUNCH_FOLDER, rank, work)


def _fit(job: Job, run_folder: Path) -> dict[str, float]:
    if job.config.deepspeed_stage is not None:
        prepare_deepspeed()
    import torch

    from models.families.registry import load_codec, load_policy
    from models.families.vision import pixel_loader
    from models.supervised.fitting import fit, training_arguments
    from models.supervised.sample_file import SampleFile
    from models.training.adapters import prepare_for_training

    timeout = timedelta(seconds=job.timeout_s)
    is_half = job.config.bf16 and job.config.deepspeed_stage is not None
    # At ZeRO-3 before the model is loaded, which then is in pieces at once; it cannot be put into another dtype afterwards.
    is_in_pieces = job.config.deepspeed_stage == 3 and (is_half or job.config.lora_base_dtype == "float32" or not job.config.lora_rank)
    arguments = training_arguments(job.config, run_folder, timeout) if is_in_pieces else None
    model: Any = load_policy(job.init, dtype="bfloat16" if is_half else "float32")
    prepare_for_training(model, job.config, seed=job.config.seed)
    images = run_folder / IMAGES_FOLDER
    metrics = fit(
        model,
        SampleFile(job.trained),
        job.config,
        run_folder,
        held_out=SampleFile(job.held_out),
        weights_folder=run_folder / WEIGHTS_FOLDER,
        timeout=timeout,
        arguments=arguments,
        pixels=pixel_loader(load_codec(job.init), lambda name: (images / name).read_bytes()),
    )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # the weights are written
        torch.distributed.destroy_process_group()
    return metrics


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
