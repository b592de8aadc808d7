"""The training loop of CT and SFT: the Hugging Face Trainer with our loss, optimizer groups, schedule, held-out loss and early stop.

The same in one process and in several (plain torch or DeepSpeed): every process runs `fit` on its share of each batch. Who starts them is
models/supervised/distributed.py; what is trained on and what becomes of the weights is models/supervised/run.py.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from models.checkpoints.checkpoint import quiet
from models.families.vision import PixelLoader
from models.supervised.checkpoints import is_universal, last_complete, mark_complete, step_of
from models.supervised.config import SupervisedConfig
from models.supervised.early_stop import HeldOutCurve, load_curve
from models.supervised.sample_file import sizes
from models.training.batching import NAMED_SAMPLES, EncodedSample, PlannedBatches, cut_padded, plan_batches, tensors
from models.training.forward import weighted_loss
from models.training.hosts import TIMEOUT
from models.training.metrics import MetricLog, OnProgress, Progress, ignore_progress, read_metrics
from models.training.packing import check_can_pack, segments_attention
from models.training.shards import save_in_shards
from models.training.zero import num_dims, use_timeout
from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.errors import TrainingDiverged
from warehouse.core.machine import FULL_DISK_BYTES

BEST_FOLDER = "best"
"""In the run folder: the weights with the lowest held-out loss so far."""


def fit(
    model: PreTrainedModel,
    samples: Sequence[EncodedSample],
    config: SupervisedConfig,
    run_folder: Path,
    on_progress: OnProgress = ignore_progress,
    *,
    held_out: Sequence[EncodedSample] = (),
    weights_folder: Path | None = None,
    pixels: PixelLoader | None = None,
    plan: Sequence[Sequence[int]] | None = None,
    timeout: timedelta = TIMEOUT,
    arguments: TrainingArguments | None = None,
) -> dict[str, float]:
    """Train `model` in place and return the closing metrics; resumes from what a killed run left in `run_folder`. In processes of a run's
    own the weights are written into `weights_folder` instead (models/training/shards.py): none may hold them all. `pixels` loads the
    images that samples show. What of the model is trained is settled before (models/training/adapters.py). `plan`: which samples to read at
    each step, where that is not for models.training.batching.plan_batches to say. `timeout`: how long a process waits for the others.
    `arguments`: what `training_arguments` gave, where that was asked for before the model was loaded.

    Raises TrainingDiverged when the loss is not a number, StorageFull when the disk is full, ConfigError for a model that cannot be packed.
    """
    if config.packing == "packed":
        check_can_pack(model)
    rank, num_ranks = _rank_and_number(config)
    lengths, weights = sizes(samples)
    plan = plan or plan_batches(
        lengths, weights, batch_tokens=config.batch_tokens, steps=config.steps, seed=config.seed, packing=config.packing
    )
    last = last_complete(run_folder)
    resume_step = step_of(last) if last else 0
    log = MetricLog(run_folder, on_progress, resume_step=resume_step) if rank == 0 else None
    pad = _pad_id(model)
    batches = PlannedBatches(samples, plan, pad, packing=config.packing, rank=rank, num_ranks=num_ranks, pixels=pixels)
    trainer = _WeightedTrainer(
        model=model,
        config=config,
        args=arguments or training_arguments(config, run_folder, timeout),
        callbacks=[_Reporter(log, config)],
        train_dataset=batches,
        data_collator=lambda items: items[0],
    )
    curve = load_curve(last)
    if held_out:
        trainer.add_callback(_HeldOut(trainer, held_out, pad, curve, log, pixels))
    trainer.add_callback(_CompletionMarker())
    if config.is_distributed:
        trainer.add_callback(_Timeout(timeout))
    if config.deepspeed_stage == 3 and last is not None and is_universal(last):
        trainer.add_callback(_AsItWasInEachGroup(trainer))
    trainer.remove_callback(PrinterCallback)
    started = time.process_time()
    try:
        with quiet(), segments_attention(model) if config.packing == "packed" else nullcontext():
            if not curve.is_over(config.early_stop_patience):
                trainer.train(resume_from_checkpoint=str(last) if last else None)
            _settle_weights(trainer, run_folder / BEST_FOLDER, curve, weights_folder)
    except Exception as error:  # each library says it in an exception of its own
        if is_full_disk(error) or shutil.disk_usage(run_folder).free < FULL_DISK_BYTES:
            raise storage_full("a trainer checkpoint", run_folder, error, then="run the stage again") from error
        raise
    finally:
        if log is not None:
            log.close()
    model.eval()
    step = max(trainer.state.global_step, resume_step)
    tail = [progress.metrics["loss"] for progress in read_metrics(run_folder) if "loss" in progress.metrics][-3:]
    num_tokens = sum(int(lengths[row]) for rows in plan[resume_step:step] for row in rows)
    return {
        "loss": sum(tail) / max(1, len(tail)),
        "steps": float(step),
        "samples": float(len(samples)),
        "tokens": float(num_tokens),
        "cpu_s": time.process_time() - started,
        "resumed_from_step": float(resume_step),
        **curve.metrics(len(held_out)),
    }


class _WeightedTrainer(Trainer):
    """The Trainer with our loss, optimizer groups and schedule. One item of its dataset is one whole batch."""

    def __init__(self, *, config: SupervisedConfig, **kwargs: Any) -> None:
        self._config = config
        self._num_ranks = _rank_and_number(config)[1]
        super().__init__(**kwargs)

    def loss_of(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        is_mixed = self._config.bf16 and self._config.deepspeed_stage is None
        with torch.autocast(self.args.device.type, dtype=torch.bfloat16, enabled=is_mixed):
            return weighted_loss(model, batch, num_ranks=self._num_ranks)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        loss = self.loss_of(model, inputs)
        if not bool(torch.isfinite(loss)):
            raise TrainingDiverged(
                f"the loss is {loss.item()} at step {self.state.global_step + 1} of {self._config.steps} with learning rate "
                f"{self._get_learning_rate():.3g} (peak {self._config.learning_rate:.3g}); {self._blame(model)}"
            )
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """The Trainer's would scale a gradient that is not finite, and take the step."""
        norm = super()._clip_grad_norm(model)
        if norm is not None and not math.isfinite(norm):
            raise TrainingDiverged(
                f"the gradient norm is {float(norm)} at step {self.state.global_step + 1} of {self._config.steps}, though the loss is "
                "finite: lower learning_rate, or check the samples and the checkpoint that this run started from"
            )
        return norm

    @torch.no_grad()
    def _blame(self, model: nn.Module) -> str:
        """Which samples of the step have such a loss by themselves, and what to do."""
        batches: Any = self.train_dataset
        read: list[EncodedSample] = batches.samples_at(self.state.global_step)
        if self._config.is_distributed:  # the others wait elsewhere: nothing more can be computed with them
            return f"this process read {_named(read)}: lower learning_rate or max_grad_norm, or look at these samples"
        pad = _pad_id(self.model)
        learned = [sample for sample in read if any(sample.loss_weights[1:])]
        alone = [self.loss_of(model, self._prepare_inputs(tensors([sample], pad, batches.packing, batches.pixels))) for sample in learned]
        bad = [sample for sample, loss in zip(learned, alone, strict=True) if not bool(torch.isfinite(loss))]
        if len(bad) == len(learned):
            return (
                f"so is that of each of its {len(bad)} samples, {_named(bad)}: the weights diverged, lower learning_rate or max_grad_norm"
            )
        if not bad:
            return f"none of its samples ({_named(read)}) has such a loss alone: lower learning_rate or max_grad_norm"
        return f"{len(bad)} of its {len(read)} samples have such a loss alone ({_named(bad)}): check them in the dataset"

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        trained: Any = model or self.model
        named = [(name, parameter) for name, parameter in trained.named_parameters() if parameter.requires_grad]
        matrices = [parameter for name, parameter in named if num_dims(parameter) == 2 and "embed" not in name]
        others = [parameter for name, parameter in named if num_dims(parameter) != 2 or "embed" in name]
        groups = [{"params": matrices, "weight_decay": self._config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = AdamW(groups, lr=self._config.learning_rate, betas=(0.9, self._config.adam_beta2), fused=True)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler = LambdaLR(chosen, self._config.rate_factor)
        return self.lr_scheduler

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Nothing in a trainer checkpoint of DeepSpeed's: each process's own pieces, which a run resumes from, have the weights."""
        if not (_internal_call and self.is_deepspeed_enabled):
            super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Weights under the names that they have in the model: the Trainer resumes by them, and leaves out in silence what is stored under
        the older names that save_pretrained gives back to some families (Qwen2-VL). No pickled arguments beside them."""
        if self.args.should_save:
            model: Any = self.accelerator.unwrap_model(self.model)
            model.save_pretrained(output_dir or self.args.output_dir, state_dict=state_dict, save_original_format=False)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """In the plan's order: the plan is already shuffled, and each process makes its own share."""
        dataset: Any = self.train_dataset
        return torch.utils.data.DataLoader(dataset, batch_size=1, shuffle=False, collate_fn=self.data_collator)


class _Reporter(TrainerCallback):
    """Passes the Trainer's logs on, in the units of MetricLog; sees to it that the last step is logged, which the Trainer leaves out
    unless it is a multiple of log_every."""

    def __init__(self, log: MetricLog | None, config: SupervisedConfig) -> None:
        self._log, self._config = log, config

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= self._config.steps:
            control.should_log = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs and self._log is not None:
            metrics: dict[str, float] = {name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs}
            self._log.write(Progress(step=state.global_step, num_steps=self._config.steps, metrics=metrics))


class _HeldOut(TrainerCallback):
    """Measures the loss on held-out samples every eval_every steps, keeps the best weights, and stops when patience has run out. Every
    process measures all of them, so that all decide alike."""

    def __init__(
        self,
        trainer: _WeightedTrainer,
        samples: Sequence[EncodedSample],
        pad: int,
        curve: HeldOutCurve,
        log: MetricLog | None,
        pixels: PixelLoader | None,
    ) -> None:
        self._trainer, self._config, self._curve, self._log = trainer, trainer._config, curve, log
        self._samples = samples
        self._batches = cut_padded(range(len(samples)), sizes(samples)[0], self._config.batch_tokens)
        self._tensors = partial(tensors, pad_token_id=pad, packing=self._config.packing, pixels=pixels)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self._config.eval_every and state.global_step < self._config.steps:
            return
        loss = self._loss()
        if self._curve.add(state.global_step, loss):
            _save_weights(self._trainer, Path(str(args.output_dir)) / BEST_FOLDER)
        if self._log is not None:
            self._log.write(Progress(step=state.global_step, num_steps=self._config.steps, metrics={"eval_loss": loss}))
        if self._curve.is_over(self._config.early_stop_patience):
            control.should_training_stop = control.should_log = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._curve.save(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")

    @torch.no_grad()
    def _loss(self) -> float:
        model: Any = self._trainer.model_wrapped
        model.eval()
        total, loss = 0.0, 0.0
        for rows in self._batches:
            batch = self._tensors([_scaled(self._samples[row]) for row in rows])
            weight = float(batch["loss_weights"].sum())
            total += weight
            loss += weight * float(self._trainer.loss_of(model, self._trainer._prepare_inputs(batch)))
        model.train()
        loss = loss / total / self._trainer._num_ranks
        if not math.isfinite(loss):
            step = self._trainer.state.global_step
            raise TrainingDiverged(f"the held-out loss is {loss} at step {step}: lower learning_rate or max_grad_norm")
        return loss


class _AsItWasInEachGroup(TrainerCallback):
    """DeepSpeed reads a universal checkpoint at stage 3 as if the optimizer had one group: all get the first one's weight decay, and one
    tensor counts the steps of all, several at a time (`load_hp_checkpoint_state_from_checkpoint_dir_stage3`, 0.19.8)."""

    def __init__(self, trainer: _WeightedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        engine: Any = self._trainer.model_wrapped
        optimizer = engine.optimizer.optimizer
        for group, weight_decay in zip(optimizer.param_groups, (self._trainer._config.weight_decay, 0.0), strict=True):
            group["weight_decay"] = weight_decay
        for slots in optimizer.state.values():
            slots["step"] = slots["step"].clone()


class _Timeout(TrainerCallback):
    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        use_timeout(self._timeout)


class _CompletionMarker(TrainerCallback):
    """Marks a trainer checkpoint as whole, after all its files and those of every process. The last of the callbacks."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            mark_complete(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")


def _pad_id(model: Any) -> int:
    return int(model.config.get_text_config().pad_token_id or 0)


def _rank_and_number(config: SupervisedConfig) -> tuple[int, int]:
    return (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if config.is_distributed else (0, 1)


def training_arguments(config: SupervisedConfig, run_folder: Path, timeout: timedelta = TIMEOUT) -> TrainingArguments:
    """The Trainer's, for a run that goes on from what is in `run_folder`. Of several processes each joins the others. At ZeRO-3, as long as
    they exist, what `from_pretrained` loads is in pieces from the first on: the first process reads one tensor after the other, and each
    keeps its part."""
    has_gpu, last = torch.cuda.is_available(), last_complete(run_folder)
    return TrainingArguments(
        output_dir=str(run_folder),
        max_steps=config.steps,
        per_device_train_batch_size=1,
        max_grad_norm=config.max_grad_norm,
        logging_strategy="steps",
        logging_steps=config.log_every,
        save_strategy="steps",
        save_steps=config.save_every,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        use_cpu=not has_gpu,
        seed=config.seed,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        ddp_timeout=math.ceil(timeout.total_seconds()),
        **_distributed_arguments(config, has_gpu, last),
    )


def _distributed_arguments(config: SupervisedConfig, has_gpu: bool, last: Path | None) -> dict[str, Any]:
    if not config.is_distributed:
        return {}
    if config.deepspeed_stage is None:
        return {"ddp_find_unused_parameters": False, **({} if has_gpu else {"ddp_backend": "gloo"})}
    return {
        "bf16": config.bf16,
        "deepspeed": {
            "zero_optimization": {"stage": config.deepspeed_stage},
            "bf16": {"enabled": config.bf16},
            "checkpoint": {"load_universal": last is not None and is_universal(last)},
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.max_grad_norm,
            # Our AdamW is torch's own: DeepSpeed's would be compiled first.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    }


def _scaled(sample: EncodedSample) -> EncodedSample:
    """A sample that counts in the loss as often as it would be drawn."""
    return replace(sample, loss_weights=[float(weight) * sample.weight for weight in sample.loss_weights])


def _named(samples: Sequence[EncodedSample]) -> str:
    names = list(dict.fromkeys(sample.sample_id or f"one of {len(sample.token_ids)} tokens" for sample in samples))
    return ", ".join(names[:NAMED_SAMPLES]) + (f" and {len(names) - NAMED_SAMPLES} more" if len(names) > NAMED_SAMPLES else "")


def _settle_weights(trainer: _WeightedTrainer, best: Path, curve: HeldOutCurve, weights_folder: Path | None) -> None:
    """The best weights where a run stops early, else the last, in the model or in `weights_folder`."""
    is_best_kept = trainer._config.early_stop_patience is not None and curve.best_step not in (None, trainer.state.global_step)
    if weights_folder is None:
        if is_best_kept:
            trainer._load_from_checkpoint(str(best))
    elif is_best_kept:
        if trainer.is_world_process_zero():
            shutil.rmtree(weights_folder, ignore_errors=True)
            shutil.copytree(best, weights_folder)
    else:
        _save_weights(trainer, weights_folder)


def _save_weights(trainer: _WeightedTrainer, folder: Path) -> None:
    """Aside first: a kill leaves the weights of before."""
    aside, is_leader = folder.with_name(f"{folder.name}.partial"), trainer.is_world_process_zero()
    if is_leader:
        shutil.rmtree(aside, ignore_errors=True)
    if trainer._config.is_distributed:
        model: Any = trainer.model
        save_in_shards(model, aside, is_leader=is_leader)
    else:
        trainer.save_model(str(aside))
    if is_leader:
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
