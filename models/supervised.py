"""Continual training (CT) and supervised fine-tuning (SFT): weighted next-token prediction through the Hugging Face Trainer.

The two differ only in their data and in SupervisedConfig.prompt_loss_weight. A run is a pure function of its configuration, samples and
initial checkpoint: killed and started again, it resumes from its last complete trainer checkpoint and ends in the same weights. Which
samples there are is decided elsewhere (dataset snapshots); which are read at which step is models/batching.py.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from agent.policy import Message
from models.batching import EncodedSample, PlannedBatches, plan_batches
from models.checkpoint import Card, load_model, load_tokenizer, quiet, read_card, save
from models.configs import SupervisedConfig
from models.metrics import MetricLog, OnProgress, Progress, ignore_progress, read_metrics
from models.tokenizer import encode_chat
from models.training_forward import hidden_where
from warehouse.errors import ConfigError, TrainingDiverged
from warehouse.home import atomic_write
from warehouse.identity import content_id

RUN_ID_FILE = "run_id"
"""Says which run a run folder is of: the id of all that its weights depend on."""
COMPLETE_FILE = "complete"
"""Written last into a trainer checkpoint: a folder without it was cut off and is not resumed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One row of a dataset snapshot: a conversation, and how often to draw it relative to the others."""

    messages: tuple[Message, ...]
    weight: float = 1.0


def train_supervised(
    config: SupervisedConfig, samples: Sequence[TrainingSample], *, init: Path, output: Path, stage: str, iteration: str,
    run_folder: Path | None = None, datasets: tuple[str, ...] = (), on_progress: OnProgress = ignore_progress,
) -> Card:
    """Train the checkpoint `init` on `samples` and write the checkpoint `output`. What a killed run resumes from lies in `run_folder`
    (`<output>.run` unless given), with metrics.jsonl and TensorBoard's files; a run of other settings, samples or `init` starts it over.

    Raises TrainingDiverged when the loss is not a number, CheckpointError for a bad `init`, ConfigError when there is nothing to learn.
    """
    model, tokenizer = load_model(init), load_tokenizer(init)
    encoded = encode_samples(tokenizer, samples, config.prompt_loss_weight, max_tokens=model.config.max_position_embeddings)
    parent = read_card(init).checkpoint_id
    run_folder = run_folder or output.parent / f"{output.name}.run"
    run_id = content_id("run", [config.model_dump(mode="json"), parent, [asdict(sample) for sample in encoded]])
    _clear_unless_of(run_folder, run_id)
    metrics = fit(model, encoded, config, run_folder, on_progress)
    card = save(
        output, model, tokenizer, stage=stage, iteration=iteration, parents=(parent,), datasets=datasets,
        config=config.model_dump(mode="json"), metrics=metrics,
    )
    for folder in _trainer_checkpoints(run_folder):
        shutil.rmtree(folder)
    return card


def encode_samples(
    tokenizer: PreTrainedTokenizerFast, samples: Sequence[TrainingSample], prompt_loss_weight: float, *, max_tokens: int
) -> list[EncodedSample]:
    """Token ids and loss weights of each sample; one that is too long for the model is left out. Raises ConfigError when none is left."""
    encoded = []
    for sample in samples:
        token_ids, loss_weights = encode_chat(tokenizer, sample.messages, prompt_loss_weight=prompt_loss_weight)
        if len(token_ids) <= max_tokens and any(loss_weights[1:]):
            encoded.append(EncodedSample(token_ids=token_ids, loss_weights=loss_weights, weight=sample.weight))
    if not any(sample.weight > 0 for sample in encoded):
        raise ConfigError(
            f"none of the {len(samples)} samples can be learned from: each needs a weight above 0, a message with loss above 0 and at most "
            f"{max_tokens} tokens; look at the dataset snapshot"
        )
    return encoded


def fit(
    model: PreTrainedModel, samples: Sequence[EncodedSample], config: SupervisedConfig, run_folder: Path,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, float]:
    """Train `model` in place; returns the closing metrics. Resumes from what a killed run left in `run_folder`."""
    plan = plan_batches(
        [len(sample.token_ids) for sample in samples], [sample.weight for sample in samples],
        batch_tokens=config.batch_tokens, steps=config.steps, seed=config.seed,
    )
    last = _last_complete(run_folder)
    resume_step = int(last.name.rsplit("-", 1)[1]) if last else 0
    log = MetricLog(run_folder, on_progress, resume_step=resume_step)
    trainer = _WeightedTrainer(
        model=model, config=config, args=_arguments(config, run_folder), callbacks=[_Reporter(log, config), _CompletionMarker()],
        train_dataset=PlannedBatches(samples, plan, int(model.config.pad_token_id)), data_collator=lambda items: items[0],
    )
    started = time.process_time()
    trainer.remove_callback(PrinterCallback)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        log.close()
    model.eval()
    tail = [progress.metrics["loss"] for progress in read_metrics(run_folder)][-3:]
    num_tokens = sum(len(samples[row].token_ids) for rows in plan[resume_step:] for row in rows)
    return {
        "loss": sum(tail) / len(tail), "steps": float(config.steps), "samples": float(len(samples)), "tokens": float(num_tokens),
        "cpu_s": time.process_time() - started, "resumed_from_step": float(resume_step),
    }


def weighted_loss(model: Any, input_ids: Tensor, loss_weights: Tensor) -> Tensor:
    """Mean negative log-likelihood of the tokens, weighted: sum(w·nll) / sum(w). `input_ids`, `loss_weights`: (B, T), padded on the right.

    Logits are made only where a weight is positive.
    """
    weights = loss_weights[:, 1:]
    is_learned = weights > 0
    logits = model.get_output_embeddings()(hidden_where(model, input_ids[:, :-1], is_learned)).float()
    losses = nn.functional.cross_entropy(logits, input_ids[:, 1:][is_learned], reduction="none")
    learned = weights[is_learned]
    total: Tensor = (losses * learned).sum() / learned.sum()
    return total


class _WeightedTrainer(Trainer):
    """The Trainer with our loss, optimizer groups and schedule. One item of its dataset is one whole batch."""

    def __init__(self, *, config: SupervisedConfig, **kwargs: Any) -> None:
        self._config = config
        super().__init__(**kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        loss = weighted_loss(model, inputs["input_ids"], inputs["loss_weights"])
        if not bool(torch.isfinite(loss)):
            raise TrainingDiverged(
                f"the loss is {loss.item()} at step {self.state.global_step + 1} of {self._config.steps} with learning rate "
                f"{self._config.learning_rate}: lower learning_rate or max_grad_norm, or look at the samples of this step"
            )
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        trained: Any = model or self.model
        named = [(name, parameter) for name, parameter in trained.named_parameters() if parameter.requires_grad]
        matrices = [parameter for name, parameter in named if parameter.dim() == 2 and "embed" not in name]
        others = [parameter for name, parameter in named if parameter.dim() != 2 or "embed" in name]
        groups = [{"params": matrices, "weight_decay": self._config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = AdamW(groups, lr=self._config.learning_rate, betas=(0.9, self._config.adam_beta2), fused=True)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        warmup, steps = self._config.warmup_steps, self._config.steps

        def factor(step: int) -> float:
            return min(1.0, (step + 1) / max(1, warmup)) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler = LambdaLR(chosen, factor)
        return self.lr_scheduler

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """In the plan's order: the plan is already shuffled."""
        dataset: Any = self.train_dataset
        return torch.utils.data.DataLoader(dataset, batch_size=1, shuffle=False, collate_fn=self.data_collator)


class _Reporter(TrainerCallback):
    """Passes the Trainer's logs on, in the units of MetricLog; sees to it that the last step is logged, which the Trainer leaves out
    unless it is a multiple of log_every."""

    def __init__(self, log: MetricLog, config: SupervisedConfig) -> None:
        self._log, self._config = log, config

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= self._config.steps:
            control.should_log = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            metrics: dict[str, float] = {name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs}
            self._log.write(Progress(step=state.global_step, num_steps=self._config.steps, metrics=metrics))


class _CompletionMarker(TrainerCallback):
    """Marks a trainer checkpoint as whole, after all its files."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        (Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / COMPLETE_FILE).touch()


def _arguments(config: SupervisedConfig, run_folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(run_folder), max_steps=config.steps, per_device_train_batch_size=1, max_grad_norm=config.max_grad_norm,
        logging_strategy="steps", logging_steps=config.log_every, save_strategy="steps", save_steps=config.save_every, save_total_limit=2,
        report_to=[], disable_tqdm=True, log_level="error", use_cpu=not torch.cuda.is_available(), seed=config.seed,
        dataloader_pin_memory=False, remove_unused_columns=False,
    )


def _clear_unless_of(run_folder: Path, run_id: str) -> None:
    """Leave what a killed start of this very run wrote; what another run left in its place goes, lest its weights are taken for ours."""
    owner = run_folder / RUN_ID_FILE
    if owner.exists() and owner.read_text() == run_id:
        return
    if run_folder.exists():
        shutil.rmtree(run_folder)
    atomic_write(owner, run_id.encode())


def _trainer_checkpoints(run_folder: Path) -> list[Path]:
    return sorted(run_folder.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))


def _last_complete(run_folder: Path) -> Path | None:
    """The newest whole trainer checkpoint; those that were cut off are removed."""
    complete = []
    for folder in _trainer_checkpoints(run_folder):
        if (folder / COMPLETE_FILE).exists():
            complete.append(folder)
        else:
            shutil.rmtree(folder)
    return complete[-1] if complete else None
