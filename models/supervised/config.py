"""Settings of supervised training, as a frozen flat model that crosses processes. Importing this file imports no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from models.training.adapter_config import AdapterConfig


class SupervisedConfig(AdapterConfig):
    """One run of continual training or of supervised fine-tuning. The number of steps is fixed, so the cosine ends exactly at zero."""

    steps: Annotated[int, Field(ge=1, description="optimizer steps")] = 1000
    learning_rate: Annotated[float, Field(gt=0, le=1, description="peak; falls to zero by a half cosine")] = 3e-3
    warmup_steps: Annotated[int, Field(ge=0, description="optimizer steps of linear warm-up")] = 30
    batch_tokens: Annotated[int, Field(ge=16, description="tokens of one batch over all processes, padding included")] = 1024
    packing: Annotated[
        Literal["padded", "packed"],
        Field(description="padded: samples of similar length side by side; packed: samples as they are drawn, in one row"),
    ] = "padded"
    prompt_loss_weight: Annotated[
        float, Field(ge=0, le=1, description="scales the loss of what the policy did not write itself; 0 learns answers only")
    ] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1, description="AdamW, on matrices only, not on embeddings")] = 0.05
    adam_beta2: Annotated[float, Field(gt=0, lt=1, description="decay of AdamW's mean of squared gradients")] = 0.98
    max_grad_norm: Annotated[float, Field(gt=0, description="longer gradients are scaled down to this")] = 1.0
    save_every: Annotated[int, Field(ge=1, description="steps between the checkpoints that a killed run resumes from")] = 200
    log_every: Annotated[int, Field(ge=1, description="steps between metrics")] = 25
    seed: Annotated[int, Field(ge=0, description="order of the samples")] = 0
    eval_fraction: Annotated[float, Field(ge=0, le=0.5, description="share of the samples held out, chosen by their content")] = 0.0
    eval_every: Annotated[int, Field(ge=1, description="steps between losses on the held-out samples")] = 100
    early_stop_patience: Annotated[
        int | None, Field(ge=1, description="stop after so many held-out losses without a new best, and keep the best weights; null: never")
    ] = None
    bf16: Annotated[bool, Field(description="compute in bfloat16; under DeepSpeed weights too, with a float32 master copy")] = False
    num_processes: Annotated[int, Field(ge=1, le=1024, description="processes, over all of training.hosts, that share each batch")] = 1
    deepspeed_stage: Annotated[
        int | None, Field(ge=0, le=3, description="ZeRO: 1 shares out optimizer state, 2 gradients too, 3 weights too; null: plain torch")
    ] = None

    @property
    def is_distributed(self) -> bool:
        """Whether the run needs processes of its own, started by torchrun."""
        return self.num_processes > 1 or self.deepspeed_stage is not None

    def rate_factor(self, step: int) -> float:
        """Share of learning_rate that the step, counted from 0, is taken with: a linear warm-up, then a half cosine to zero."""
        return min(1.0, (step + 1) / max(1, self.warmup_steps)) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))

    @model_validator(mode="after")
    def _settings_that_go_together(self) -> SupervisedConfig:
        if self.early_stop_patience is not None and self.eval_fraction == 0:
            raise ValueError("early_stop_patience needs held-out samples: set eval_fraction, e.g. to 0.05")
        if self.bf16 and self.deepspeed_stage == 0:
            raise ValueError("bf16 with deepspeed_stage 0 has no float32 master weights and drifts: use stage 1 or higher, or null")
        return self
