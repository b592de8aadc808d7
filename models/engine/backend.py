"""What the scheduler needs of a kind of model: the Backend protocol, and what its implementations share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from models.engine.kv_cache import KVCache
from models.engine.rows import Request, Row
from warehouse.core.errors import ModelError

PREFILL_ROWS, PREFILL_TOKENS, PREFILL_LIKENESS = 8, 8192, 0.6
"""Rows that are read together: at most so many, at most so many tokens with padding (or one row), and none shorter than this share of the
longest, so that little of a group is padding."""


class Backend(Protocol):
    """A model and its kv_cache. All calls come from one thread; rows lie in the KV cache at the places they are given with."""

    kv_cache: KVCache
    max_positions: int
    vocabulary_size: int
    """Token ids that it can read are below it."""
    eos_token_ids: frozenset[int]
    never_token_ids: tuple[int, ...]
    """Tokens that no answer may contain: where one stood, a model would look for an image."""

    def open(self, request: Request) -> Row:
        """The row of a request, nothing of it read. Raises RequestRefused for what the model cannot read."""
        ...

    def read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        """Read all pending tokens of a group of rows; logits (B, V) of what follows each."""
        ...

    def step(self, rows: Sequence[Row]) -> Tensor:
        """Read the one pending token of each row, row i at place i; logits (B, V) of what follows."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take other weights, whole or not at all. Raises ModelError when they do not fit."""
        ...


def groups(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Indices of rows to be read together, longest first."""
    group: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: -rows[i].num_pending):
        pending = rows[index].num_pending
        longest = rows[group[0]].num_pending if group else pending
        if group and (
            len(group) == PREFILL_ROWS
            or longest * (len(group) + 1) > PREFILL_TOKENS
            or pending < PREFILL_LIKENESS * longest
            or bool(rows[index].num_cached) != bool(rows[group[0]].num_cached)
        ):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def copy_weight(name: str, own: Tensor, given: Tensor) -> None:
    own.copy_(given)


def load_whole(model: nn.Module, state: Mapping[str, Tensor], store: Callable[[str, Tensor, Tensor], None] = copy_weight) -> None:
    """`load_state_dict` that changes nothing where something does not fit. Tied weights may be given once. `store` puts one weight in its
    place, by its name, with the model's own tensor and the given one. Raises ModelError."""
    own = model.state_dict(keep_vars=True)
    given = {id(own[name]) for name in state if name in own}
    wrong = [f"{name} is unknown" for name in state if name not in own]
    wrong += [f"{name} is missing" for name, tensor in own.items() if name not in state and id(tensor) not in given]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        raise ModelError(f"{len(wrong)} of {len(own)} tensors do not match: {'; '.join(wrong[:3])}")
    with torch.no_grad():
        for name, tensor in state.items():
            store(name, own[name], tensor)
