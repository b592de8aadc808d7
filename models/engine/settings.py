"""How the embedded engine generates: rows, memory, and what a change of weights means for answers under way. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Quantisation = Literal["int8", "int4"]


class EngineSettings(BaseModel):
    """Settings of one embedded engine. Of a change of weights in the middle of an answer: AReaL interrupts the answer and recomputes its
    keys and values with the new weights (arXiv 2505.24298, section 4.1), PipelineRL goes on with the old ones (arXiv 2509.19128); either
    way each token is recorded with the version that sampled it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: Annotated[int, Field(ge=1, description="answers written at once; further requests wait for a free row")] = 64
    running_mib: Annotated[int, Field(ge=1, description="keys and values of answers under way: rows x the longest; one always fits")] = 4096
    conversations_mib: Annotated[
        int, Field(ge=0, description="keys and values kept between the turns of conversations, least recently used first out; 0 keeps none")
    ] = 512
    running_rows: Annotated[
        Literal["recompute", "continue", "finish"],
        Field(
            description="a half-written answer when weights change: its keys and values are computed again, or kept as they are; finish: "
            "what has begun ends with the weights that it began with, and what comes meanwhile waits for the new ones"
        ),
    ] = "recompute"
    max_context: Annotated[int | None, Field(ge=2, description="tokens of prompt and answer; none: the model's positions")] = None
    quantisation: Annotated[
        Quantisation | None,
        Field(
            exclude_if=lambda value: value is None,
            description="bits of the decoder's linear layers, with activations of 8 (models/engine/quantised.py); of policies, not of the "
            "outcome reward model; null: as they are",
        ),
    ] = None
    num_threads: Annotated[int, Field(ge=1, description="CPU threads of the tensor work; more than one makes a tiny model slower")] = 1
