"""Continual training (CT) and supervised fine-tuning (SFT): a checkpoint, samples and a configuration in, a checkpoint out.

The two differ only in their data and in SupervisedConfig.prompt_loss_weight. A run is a pure function of its configuration, samples and
initial checkpoint: killed and restarted, it resumes from its last complete trainer checkpoint and ends in the same weights. Which
samples there are is decided elsewhere (dataset snapshots); what of them is trained on is models/supervised/training_set.py; which are read
at which step models/training/batching.py; the loop is models/supervised/fitting.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from models.checkpoints.checkpoint import Card, quiet, read_card, verify, write
from models.families.chat import ChatCodec
from models.families.registry import load_codec, load_policy, max_positions
from models.families.vision import ReadImage, pixel_loader
from models.supervised.checkpoints import clear_unless_of, trainer_checkpoints
from models.supervised.config import SupervisedConfig
from models.supervised.distributed import IMAGES_FOLDER, WEIGHTS_FOLDER, fit_in_processes, with_adapters
from models.supervised.fitting import BEST_FOLDER, fit
from models.supervised.training_set import SAMPLES_FOLDER, TrainingSample, training_set
from models.training.adapters import ADAPTER_FOLDER, has_adapters, merge_adapters, prepare_for_training, save_adapter
from models.training.hosts import THIS_MACHINE, TrainingHosts
from models.training.metrics import OnProgress, ignore_progress
from warehouse.core.identity import content_id


def train_supervised(
    config: SupervisedConfig,
    samples: Iterable[TrainingSample],
    *,
    init: Path,
    output: Path,
    stage: str,
    iteration: str,
    run_folder: Path | None = None,
    datasets: tuple[str, ...] = (),
    on_progress: OnProgress = ignore_progress,
    read_image: ReadImage | None = None,
    hosts: TrainingHosts = THIS_MACHINE,
) -> Card:
    """Train the checkpoint `init` on `samples` and write the checkpoint `output`. What a killed run resumes from lies in `run_folder`
    (`<output>.run` unless given), with metrics.jsonl and TensorBoard's files; a run of other settings, samples or `init` starts it over.
    Encoded samples lie there too while it runs: eight bytes a token of disk, not of memory.
    Several processes run on `hosts`. `read_image` gives the screenshots that messages name to a model that sees. Weights come out whole:
    what adapters learned is added in, and kept alone in the checkpoint's folder `adapter`.

    Raises TrainingDiverged when the loss is not a number, CheckpointError for a bad `init`, ConfigError when there is nothing to learn,
    StorageFull when the disk is full.
    """
    verify(init)
    codec = load_codec(init)
    parent = read_card(init).checkpoint_id
    run_folder = run_folder or output.parent / f"{output.name}.run"
    chosen = training_set(
        run_folder / SAMPLES_FOLDER,
        codec,
        samples,
        prompt_loss_weight=config.prompt_loss_weight,
        eval_fraction=config.eval_fraction,
        max_tokens=max_positions(init),
        read_image=read_image,
    )
    what = config.model_dump(mode="json", exclude={"num_processes"})  # who computes: a killed run may go on in others
    clear_unless_of(run_folder, content_id("run", [what, parent, chosen.digest]), keep=SAMPLES_FOLDER)
    if config.is_distributed:
        metrics = fit_in_processes(init, chosen, config, run_folder, on_progress, read_image=read_image, hosts=hosts)
        model = with_adapters(init, config, run_folder / WEIGHTS_FOLDER) if config.lora_rank else None
    else:
        model = load_policy(init)
        prepare_for_training(model, config, seed=config.seed)
        metrics = fit(
            model, chosen.trained, config, run_folder, on_progress, held_out=chosen.held_out, pixels=pixel_loader(codec, read_image)
        )
    card = write(
        output,
        partial(_fill, model or run_folder / WEIGHTS_FOLDER, codec, config),
        stage=stage,
        iteration=iteration,
        parents=(parent,),
        datasets=datasets,
        config=config.model_dump(mode="json"),
        metrics={**metrics, **chosen.left_out.metrics()},
    )
    of_use_meanwhile = (run_folder / name for name in (SAMPLES_FOLDER, BEST_FOLDER, WEIGHTS_FOLDER, IMAGES_FOLDER))
    for folder in (*trainer_checkpoints(run_folder), *of_use_meanwhile):
        shutil.rmtree(folder, ignore_errors=True)
    return card


def _fill(trained: PreTrainedModel | Path, codec: ChatCodec, config: SupervisedConfig, aside: Path) -> None:
    """With a model, or with the files that processes left of one in a folder."""
    if isinstance(trained, Path):
        for file in sorted(trained.iterdir()):
            shutil.move(file, aside / file.name)
    else:
        if has_adapters(trained):
            save_adapter(trained.state_dict(), aside / ADAPTER_FOLDER, config)
            merge_adapters(trained)
        with quiet():
            trained.save_pretrained(aside)
    codec.save_pretrained(aside)
