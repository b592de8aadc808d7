"""Which method merges checkpoints, and its parameters. What a method does is its own file's business; models/merging/methods.py lists them.

A merge is fixed by these settings, the weights and the parents: the same again gives the same bytes on any number of threads.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MethodName = Literal["linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties"]


class MethodConfig(BaseModel):
    """How parents are merged. A parameter that the method has no use for is ignored and stays out of the merged card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Annotated[MethodName, Field(description="see models/merging/methods.py")] = "linear"
    fused: Annotated[
        bool, Field(description="linear: add each product with one rounding, as mergekit does on a CPU, bit for bit; more work")
    ] = False
    density: Annotated[
        float, Field(gt=0, le=1, description="ties, dare: share of a task vector's elements that is kept (TIES' k/100, DARE's 1 − p)")
    ] = 0.5
    scale: Annotated[
        float, Field(gt=0, le=100, description="task vector methods: factor λ on the merged task vector before it is added to the base")
    ] = 1.0
    normalize: Annotated[
        bool | None,
        Field(description="task vector methods: divide by the sum of the weights that count; null: the method's own default (ties: yes)"),
    ] = None
    seed: Annotated[int, Field(ge=0, description="dare: of the random drop")] = 0
