"""Packed sequences: samples one after the other in a single row, without padding, and attention that never crosses from one to the next.

All that works token by token sees the row as it is. Attention sees grids: the sequences of similar length side by side, padded on the
right, where causal attention never looks. So nothing is computed on padding but a little attention, and no mask is needed. Any Hugging
Face decoder that passes keyword arguments on to its attention function is served (`SEGMENTS_ATTENTION`); ShiftQwen3's cheaper forward
calls `attend` itself. Which samples make a row is models/training/batching.py.

Shapes: T tokens of the row, H heads, K head size, S sequences of a group, L tokens of its longest, N queries of the row, Q queries of the
sequence of a group that asks most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from warehouse.core.errors import ConfigError

SEGMENTS_ATTENTION = "segments"
"""Name of `attend` among the attention functions of transformers."""
SHORTEST_SHARE = 0.6
"""A group's shortest sequence is at least this share of its longest: more groups cost calls, wider ones padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences of similar length. `tokens` (S, L) are their places in the row, padded with the sequence's first; `is_real` (S, L)."""

    tokens: Tensor
    is_real: Tensor

    def grid(self, x_THK: Tensor) -> Tensor:
        """The rows of x at the places of the group, as attention reads them: (S, H, L, K)."""
        grid: Tensor = x_THK.index_select(0, self.tokens.flatten()).unflatten(0, self.tokens.shape)
        return grid.transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Where the sequences of a packed row lie. `position_ids` (1, T) begin at 0 in each; `back` (T) says at which place of all groups'
    grids, one after the other, a token of the row stands."""

    position_ids: Tensor
    groups: tuple[Group, ...]
    back: Tensor

    @property
    def num_tokens(self) -> int:
        return self.position_ids.shape[1]


def segments(lengths: Sequence[int], device: torch.device | str = "cpu") -> Segments:
    """The layout of a row that holds sequences of these lengths in this order."""
    sizes = torch.tensor(lengths)
    starts = sizes.cumsum(0) - sizes
    total = int(sizes.sum())
    positions = torch.arange(total) - starts.repeat_interleave(sizes)
    groups: list[Group] = []
    back, offset = torch.empty(total, dtype=torch.long), 0
    for members in _grouped(lengths):
        longest = lengths[members[0]]
        columns = torch.arange(longest)
        grid = starts[members].unsqueeze(1) + columns
        is_real = columns < sizes[members].unsqueeze(1)
        grid = torch.where(is_real, grid, starts[members].unsqueeze(1))
        back[grid[is_real]] = offset + is_real.flatten().nonzero().flatten()
        offset += grid.numel()
        groups.append(Group(tokens=grid.to(device), is_real=is_real.to(device)))
    return Segments(position_ids=positions.unsqueeze(0).to(device), groups=tuple(groups), back=back.to(device))


def _grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Sequence numbers by group, the longest first."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        if groups and lengths[number] >= SHORTEST_SHARE * lengths[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def attend(query_THK: Tensor, key_THK: Tensor, value_THK: Tensor, layout: Segments, scale: float | None) -> Tensor:
    """Causal attention (T, H, K) inside each sequence of a row. Keys and values may have fewer heads (grouped queries)."""
    is_grouped = query_THK.shape[1] != key_THK.shape[1]
    grids = []
    for group in layout.groups:
        query, key, value = group.grid(query_THK), group.grid(key_THK), group.grid(value_THK)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped)
        grids.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(grids).index_select(0, layout.back)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The queries of one group: `queries` (S, Q) among all N, and the `mask` (S, 1, Q, L) of what each may see."""

    queries: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Attention asked at some places only; keys and values are everywhere."""

    places: Tensor
    groups: tuple[_Asked, ...]
    back: Tensor


def questions(layout: Segments, places_N: Tensor) -> Questions:
    """Prepare asking at `places_N` of the row, one or more in rising order."""
    device = places_N.device
    number = torch.full((layout.num_tokens,), -1, device=device)
    number[places_N] = torch.arange(len(places_N), device=device)
    groups: list[_Asked] = []
    back, offset = torch.empty_like(places_N), 0
    for group in layout.groups:
        is_asked = group.is_real & (number[group.tokens] >= 0)
        # Asked places of each sequence first, in their order, filled up with others to the number of the one that has most.
        most = max(1, int(is_asked.sum(dim=1).max()))
        columns_SQ = is_asked.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        is_asked_SQ = is_asked.gather(1, columns_SQ)
        queries_SQ = number[group.tokens.gather(1, columns_SQ)].clamp(min=0)
        back[queries_SQ[is_asked_SQ]] = offset + is_asked_SQ.flatten().nonzero().flatten()
        offset += queries_SQ.numel()
        seen_SQL = torch.arange(group.tokens.shape[1], device=device) <= columns_SQ.unsqueeze(-1)
        groups.append(_Asked(queries=queries_SQ, mask=seen_SQL.unsqueeze(1)))
    return Questions(places=places_N, groups=tuple(groups), back=back)


def attend_from(query_NHK: Tensor, key_THK: Tensor, value_THK: Tensor, layout: Segments, asked: Questions, scale: float | None) -> Tensor:
    """As `attend`, for N queries: (N, H, K)."""
    grids = []
    for group, part in zip(layout.groups, asked.groups, strict=True):
        query = query_NHK.index_select(0, part.queries.flatten()).unflatten(0, part.queries.shape).transpose(1, 2)
        attended = scaled_dot_product_attention(query, group.grid(key_THK), group.grid(value_THK), attn_mask=part.mask, scale=scale)
        grids.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(grids).index_select(0, asked.back)


def _segments_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`attend` as transformers calls it: tensors (1, H, T, K), result (1, T, H, K)."""
    query_THK, key_THK, value_THK = (x[0].transpose(0, 1) for x in (query, key, value))
    return attend(query_THK, key_THK, value_THK, segments, scaling).unsqueeze(0), None


AttentionInterface.register(SEGMENTS_ATTENTION, _segments_attention)


def check_can_pack(model: PreTrainedModel) -> None:
    """Raises ConfigError for a model whose layers would carry something from one sample of a row to the next, or whose attention cannot
    be replaced."""
    config = model.config.get_text_config()
    every = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    kinds = set(getattr(config, "layer_types", None) or [every])
    if kinds != {"full_attention"} or not model._can_set_attn_implementation() or hasattr(model.config, "vision_config"):
        raise ConfigError(
            f"{type(model).__name__} cannot be trained on packed rows: its layers are {sorted(kinds)} and only full_attention can be "
            "packed, or it reads images, or its attention cannot be replaced; set packing: padded"
        )


@contextmanager
def segments_attention(model: PreTrainedModel) -> Iterator[None]:
    """While open, the model's own forward takes packed rows: model(input_ids (1, T), position_ids, segments=layout)."""
    before = model.config._attn_implementation
    model.set_attn_implementation(SEGMENTS_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
