"""Settings of every training stage, as frozen flat models that cross processes. Importing this file imports no torch.

Supervised training's are here; reinforcement learning's are in models/ppo/config.py and named here too, for those who compose a profile.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from models.ppo.config import PpoConfig

__all__ = ["PpoConfig", "SupervisedConfig"]


class SupervisedConfig(BaseModel):
    """One run of continual training or of supervised fine-tuning. The number of steps is fixed, so the cosine ends exactly at zero."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Annotated[int, Field(ge=1, description="optimizer steps")] = 1000
    learning_rate: Annotated[float, Field(gt=0, le=1, description="peak; falls to zero by a half cosine")] = 3e-3
    warmup_steps: Annotated[int, Field(ge=0, description="linear warm-up")] = 30
    batch_tokens: Annotated[int, Field(ge=16, description="tokens of one batch, padding included")] = 1024
    prompt_loss_weight: Annotated[
        float, Field(ge=0, le=1, description="scales the loss of what the policy did not write itself; 0 learns answers only")
    ] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1, description="AdamW, on matrices only, not on embeddings")] = 0.05
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.98
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    save_every: Annotated[int, Field(ge=1, description="steps between the checkpoints that a killed run resumes from")] = 200
    log_every: Annotated[int, Field(ge=1, description="steps between metrics")] = 25
    seed: Annotated[int, Field(ge=0, description="order of the samples")] = 0
