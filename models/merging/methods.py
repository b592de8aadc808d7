"""The methods there are, by name. Each is a file of this folder, its mathematics in pure functions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.merging import dare, linear, slerp, task_arithmetic, ties
from models.merging.config import MethodConfig, MethodName
from models.merging.io import TensorJob

MergeTensor = Callable[[TensorJob, Sequence[float], MethodConfig], None]
"""Reads a tensor's pieces, as often as it needs to, and writes each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to merge. `parameters` are the settings that it reads."""

    merge_tensor: MergeTensor
    needs_base: bool
    parameters: tuple[str, ...]
    summary: str

    @property
    def needs_simplex(self) -> bool:
        """Without a base the weights are shares, and sum to 1; task vectors may be added with any."""
        return not self.needs_base


METHODS: dict[MethodName, Method] = {
    "linear": Method(merge_tensor=linear.merge_tensor, needs_base=False, parameters=("fused",), summary="weighted mean of the parents"),
    "slerp": Method(
        merge_tensor=slerp.merge_tensor, needs_base=False, parameters=(), summary="weighted mean on the sphere, tensor by tensor"
    ),
    "task_arithmetic": Method(
        merge_tensor=task_arithmetic.merge_tensor,
        needs_base=True,
        parameters=("scale", "normalize"),
        summary="base plus the weighted sum of what each parent learned",
    ),
    "ties": Method(
        merge_tensor=ties.merge_tensor,
        needs_base=True,
        parameters=("density", "scale", "normalize"),
        summary="keep the largest changes, elect a sign for each element, average those that agree",
    ),
    "dare_linear": Method(
        merge_tensor=dare.merge_linear,
        needs_base=True,
        parameters=("density", "scale", "normalize", "seed"),
        summary="drop changes at random, scale the rest up, add them",
    ),
    "dare_ties": Method(
        merge_tensor=dare.merge_ties,
        needs_base=True,
        parameters=("density", "scale", "normalize", "seed"),
        summary="drop changes at random, scale the rest up, then elect signs as TIES does",
    ),
}
