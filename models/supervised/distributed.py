"""A supervised run in several processes, on this machine or on several (models/training/launcher.py).

The processes run models/supervised/process.py. They read files (`JOB_FILE` in the run folder, the samples it names) and write files:
metrics.jsonl while they train, then the weights and a result or an error. With SupervisedConfig.deepspeed_stage they train by
DeepSpeed's ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), else by data parallelism."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file
from transformers import PreTrainedModel

from models.families.registry import load_policy
from models.families.vision import ReadImage, read_images
from models.supervised.checkpoints import last_complete, readable_by, step_of
from models.supervised.config import SupervisedConfig
from models.supervised.training_set import TrainingSet
from models.training.adapters import prepare_for_training
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.launcher import LAUNCH_FOLDER, Launch
from models.training.metrics import OnProgress, ignore_progress, keep_until, read_metrics
from warehouse.core.errors import ModelError, ProcessLost
from warehouse.core.home import atomic_write

JOB_FILE = "job.json"
RESULT_FILE = "result.json"
WEIGHTS_FOLDER = "weights"
IMAGES_FOLDER = "images"
POLL_S = 0.2


class Job(BaseModel):
    """All that the processes of one run need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    init: Annotated[Path, Field(description="checkpoint to continue from")]
    config: SupervisedConfig
    trained: Annotated[Path, Field(description="SampleFile of what is trained on")]
    held_out: Annotated[Path, Field(description="SampleFile of what is measured on")]
    timeout_s: Annotated[float, Field(gt=0, description="TrainingHosts.timeout_s")]


def fit_in_processes(
    init: Path,
    chosen: TrainingSet,
    config: SupervisedConfig,
    run_folder: Path,
    on_progress: OnProgress = ignore_progress,
    *,
    read_image: ReadImage | None = None,
    hosts: TrainingHosts = THIS_MACHINE,
) -> dict[str, float]:
    """As `fitting.fit` on the checkpoint `init`, in config.num_processes processes over the hosts: the closing metrics. The weights are in
    WEIGHTS_FOLDER of the run folder, as models/training/shards.py writes them.

    Raises what the processes raised where it is an error of this project, ProcessLost with their last words where they ended otherwise.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        init=init.resolve(),
        config=config,
        trained=chosen.trained.path.resolve(),
        held_out=chosen.held_out.path.resolve(),
        timeout_s=hosts.timeout_s,
    )
    for name in (*chosen.trained.screenshot_ids(), *chosen.held_out.screenshot_ids()):
        if not (run_folder / IMAGES_FOLDER / name).exists():
            atomic_write(run_folder / IMAGES_FOLDER / name, read_images([name], read_image)[name])
    atomic_write(run_folder / JOB_FILE, job.model_dump_json().encode())
    (run_folder / RESULT_FILE).unlink(missing_ok=True)
    last = last_complete(run_folder)
    if last is not None:
        readable_by(last, config.num_processes)
    num_seen = keep_until(run_folder, step_of(last) if last else 0)
    arguments = [str(run_folder.resolve())]
    launch = Launch("models.supervised.process", arguments, run_folder / LAUNCH_FOLDER, num_processes=config.num_processes, hosts=hosts)
    try:
        launch.start()
        _watch(launch, run_folder, num_seen, on_progress)
    except ProcessLost as lost:
        raise launch.error() or lost from None
    finally:
        launch.stop()
    metrics: dict[str, float] = json.loads((run_folder / RESULT_FILE).read_text())
    return metrics


def with_adapters(init: Path, config: SupervisedConfig, weights: Path) -> PreTrainedModel:
    """The model with the adapters that the processes left. Raises ModelError where they are not the model's."""
    model = load_policy(init)
    prepare_for_training(model, config, seed=config.seed)
    _fill_adapters(model, weights)
    return model


def _fill_adapters(model: PreTrainedModel, weights: Path) -> None:
    """What was learned, put where it belongs. Raises ModelError where a name fits nothing or an adapter is left as it was."""
    found, unknown = set[str](), list[str]()
    for file in sorted(weights.glob("*.safetensors")):
        tensors = load_file(file)
        unknown += model.load_state_dict(tensors, strict=False).unexpected_keys
        found |= tensors.keys()
    left = [name for name in model.state_dict() if "lora_" in name and name not in found]
    if left or unknown:
        raise ModelError(
            f"the weights in {weights} are not this model's adapters: {len(left)} of the model's are missing ({', '.join(left[:2])}), "
            f"{len(unknown)} names are unknown ({', '.join(unknown[:2])}); were they trained with another version of transformers or "
            "peft?"
        )


def _watch(launch: Launch, run_folder: Path, num_seen: int, on_progress: OnProgress) -> None:
    """Pass progress on until the processes end. The reports there are when they start are of the start that they resume."""
    is_over = False
    while not is_over:
        try:
            is_over = launch.is_over()
        finally:
            for progress in read_metrics(run_folder)[num_seen:]:
                on_progress(progress)
                num_seen += 1
        time.sleep(POLL_S)
