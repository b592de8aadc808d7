"""Which weights of a model are trained and what that costs in memory: settings shared by every kind of training. No torch here; what they
do to a model is models/training/adapters.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class AdapterConfig(BaseModel):
    """Full weights by default. With `lora_rank` only low-rank updates W + (alpha / rank) B A of the named layers are learned (LoRA, Hu et
    al. 2021, arXiv 2106.09685, section 4.1); a finished checkpoint holds their sum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lora_rank: Annotated[int, Field(ge=0, le=1024, description="rank of the learned updates; 0 trains the weights themselves")] = 0
    lora_alpha: Annotated[float, Field(gt=0, le=4096, description="updates are scaled by lora_alpha / lora_rank")] = 32.0
    lora_dropout: Annotated[float, Field(ge=0, lt=1, description="of what goes into an update; 0 keeps runs exact")] = 0.0
    lora_targets: Annotated[
        tuple[str, ...], Field(min_length=1, description="last parts of the names of the linear layers that get an update")
    ] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    lora_base_dtype: Annotated[
        Literal["float32", "bfloat16"], Field(description="what the frozen weights are kept in under LoRA; updates are float32")
    ] = "float32"
    train_vision: Annotated[bool, Field(description="false freezes the vision tower of a vision-language model")] = True
    gradient_checkpointing: Annotated[
        bool, Field(description="keep one activation a layer and compute the others again: less memory, about a third more work")
    ] = False
