"""The forward pass that training wants: final hidden states only where a token is learned, for ShiftQwen3 about a third cheaper than the
model's own; and the loss of supervised samples on it. The numbers and gradients are the model's (a test holds them to it); generation is
models/engine.

Most tokens of a policy's samples are context: of them the last layer needs keys and values only. Projections that read the same input
are fused. Any other Hugging Face decoder goes through its own forward.

Shapes: B rows, T tokens, D hidden size, H heads, K head size, Q learned tokens of the row that has most, N learned tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from models.families.shift_qwen3 import ShiftQwen3Model
from models.families.vision import vision_inputs
from models.training.adapters import has_adapters
from models.training.packing import Questions, Segments, attend, attend_from, questions, segments
from models.training.zero import is_shared_out


def hidden_where(
    model: PreTrainedModel,
    input_ids_BT: Tensor,
    wanted_BT: Tensor,
    layout: Segments | None = None,
    vision: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Final hidden states (N, D) at the positions where `wanted_BT` is True, in reading order. Rows are padded on the right, if at all:
    causal attention never looks there, so no mask is needed. With a `layout` B is 1 and the row is packed; any model but ShiftQwen3 then
    has to be inside models.training.packing.segments_attention. `vision` holds the tensors of the rows' images
    (models.families.vision.collate_vision)."""
    decoder = model.base_model
    if isinstance(decoder, ShiftQwen3Model) and _is_plain(decoder):
        return _shift_qwen3(decoder, input_ids_BT, wanted_BT) if layout is None else _packed(decoder, input_ids_BT, wanted_BT, layout)
    more: dict[str, Any] = {} if layout is None else {"position_ids": layout.position_ids, "segments": layout}
    more |= vision_inputs(model, input_ids_BT, vision or {})
    hidden_BTD: Tensor = decoder(input_ids=input_ids_BT, use_cache=False, **more).last_hidden_state
    return hidden_BTD[wanted_BT]


class LogitsWhere(nn.Module):
    """A model as a module that gives logits (N, V) at the wanted positions alone: DeepSpeed has to see the call of one module."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids_BT: Tensor, wanted_BT: Tensor, vision: Mapping[str, Tensor] | None = None) -> Tensor:
        hidden_ND = hidden_where(self.model, input_ids_BT, wanted_BT, vision=vision)
        return self.model.get_output_embeddings()(hidden_ND)  # type: ignore[no-any-return]


def weighted_loss(model: Any, batch: Mapping[str, Any], *, num_ranks: int = 1) -> Tensor:
    """Mean negative log-likelihood of the targets, weighted: sum(w·nll) / sum(w), of a batch as models.training.batching.tensors makes it.

    Logits are made only where a weight is positive. A process of several sees only its share of the batch and divides by the weight of
    all (`total_weight`), times their number, because gradients are averaged over processes.
    """
    weights = batch["loss_weights"]
    is_learned = weights > 0
    if not bool(is_learned.any()):
        is_learned[0, 0] = True  # weighs 0, but takes part in the backward pass that the other processes wait in
    losses = functional.cross_entropy(_learned_logits(model, batch, is_learned).float(), batch["targets"][is_learned], reduction="none")
    total_weight = batch["total_weight"] if "total_weight" in batch else weights.sum()
    total: Tensor = (losses * weights[is_learned]).sum() / total_weight * num_ranks
    return total


def _learned_logits(model: Any, batch: Mapping[str, Any], is_learned: Tensor) -> Tensor:
    """Logits (N, V) where a target is learned. What wraps a model (data parallelism, DeepSpeed) must see a call of the model itself."""
    input_ids = batch["input_ids"]
    layout = segments(batch["lengths"].tolist(), input_ids.device) if "lengths" in batch else None
    if isinstance(model, LogitsWhere) or isinstance(getattr(model, "module", None), LogitsWhere):
        wanted: Tensor = model(input_ids, is_learned, batch.get("vision"))
        return wanted
    if isinstance(model, PreTrainedModel):
        logits: Tensor = model.get_output_embeddings()(hidden_where(model, input_ids, is_learned, layout, batch.get("vision")))
        return logits
    columns = is_learned.any(dim=0).nonzero().flatten()
    more: dict[str, Any] = {} if layout is None else {"position_ids": layout.position_ids, "segments": layout}
    more |= vision_inputs(model, input_ids, batch.get("vision") or {})
    kept: Tensor = model(input_ids=input_ids, use_cache=False, logits_to_keep=columns, **more).logits
    return kept[is_learned[:, columns]]


def _is_plain(decoder: ShiftQwen3Model) -> bool:
    """Whether its layers are what the forward below takes them for: no grouped heads, no adapters, nothing to be computed twice, weights
    that are here without a call of their module."""
    config = decoder.config
    is_checkpointed = decoder.training and decoder.is_activation_checkpointing
    is_whole = not is_shared_out(decoder.norm.weight)
    return config.num_key_value_heads == config.num_attention_heads and is_whole and not is_checkpointed and not has_adapters(decoder)


def _shift_qwen3(model: ShiftQwen3Model, input_ids_BT: Tensor, wanted_BT: Tensor) -> Tensor:
    positions_1T = torch.arange(input_ids_BT.shape[1], device=input_ids_BT.device).unsqueeze(0)
    x_BTD = model.embed(input_ids_BT, positions_1T)
    cos_1TK, sin_1TK = model.rotary_emb(x_BTD, positions_1T)
    for layer in list(model.layers)[:-1]:
        x_BTD = _layer(layer, x_BTD, (cos_1TK, sin_1TK), _causal)
    # Learned positions of each row first, in their order, filled up with others to the length of the longest.
    num_wanted = int(wanted_BT.sum(dim=1).max())
    places_BQ = wanted_BT.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :num_wanted]
    asking_BQD = x_BTD.gather(1, places_BQ.unsqueeze(-1).expand(-1, -1, x_BTD.shape[-1]))
    seen_B1QT = (torch.arange(x_BTD.shape[1], device=x_BTD.device) <= places_BQ.unsqueeze(-1)).unsqueeze(1)
    asking = (asking_BQD, (cos_1TK[0][places_BQ], sin_1TK[0][places_BQ]))
    x_BQD = _layer(model.layers[-1], x_BTD, (cos_1TK, sin_1TK), partial(_masked, seen_B1QT), asking)
    normed_BQD = _norm(x_BQD, model.norm)
    return normed_BQD[wanted_BT.gather(1, places_BQ)]


def _packed(model: ShiftQwen3Model, input_ids_1T: Tensor, wanted_1T: Tensor, layout: Segments) -> Tensor:
    x_1TD = model.embed(input_ids_1T, layout.position_ids)
    cos_1TK, sin_1TK = model.rotary_emb(x_1TD, layout.position_ids)
    for layer in list(model.layers)[:-1]:
        x_1TD = _layer(layer, x_1TD, (cos_1TK, sin_1TK), partial(_in_segments, layout))
    places_N = wanted_1T[0].nonzero().flatten()
    asked = questions(layout, places_N)
    asking = (x_1TD.index_select(1, places_N), (cos_1TK[:, places_N], sin_1TK[:, places_N]))
    x_1ND = _layer(model.layers[-1], x_1TD, (cos_1TK, sin_1TK), partial(_from_questions, layout, asked), asking)
    return _norm(x_1ND, model.norm)[0]


_Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Query (B, Q, H, K), key and value (B, T, H, K), scale → attended (B, Q, H, K)."""


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, scale=scale
    ).transpose(1, 2)


def _masked(mask: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask, scale=scale
    ).transpose(1, 2)


def _in_segments(layout: Segments, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return attend(query[0], key[0], value[0], layout, scale).unsqueeze(0)


def _from_questions(layout: Segments, asked: Questions, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return attend_from(query[0], key[0], value[0], layout, asked, scale).unsqueeze(0)


def _layer(
    layer: Any,
    x_BTD: Tensor,
    rotary: tuple[Tensor, Tensor],
    attended_by: _Attend,
    asking: tuple[Tensor, tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """One decoder layer. Keys and values are everywhere; queries too, unless `asking` gives theirs (B, Q, D) with their rotary tables."""
    attention, mlp = layer.self_attn, layer.mlp
    heads = (attention.config.num_attention_heads, attention.head_dim)
    asking_BQD, query_rotary = asking or (x_BTD, rotary)
    if asking is None:
        weight = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        query, key, value = functional.linear(_norm(x_BTD, layer.input_layernorm), weight).unflatten(-1, (3, *heads)).unbind(2)
    else:
        weight = torch.cat([attention.k_proj.weight, attention.v_proj.weight])
        key, value = functional.linear(_norm(x_BTD, layer.input_layernorm), weight).unflatten(-1, (2, *heads)).unbind(2)
        query = functional.linear(_norm(asking_BQD, layer.input_layernorm), attention.q_proj.weight).unflatten(-1, heads)
    query, key = _rotate(_norm(query, attention.q_norm), query_rotary), _rotate(_norm(key, attention.k_norm), rotary)
    attended = attended_by(query, key, value, attention.scaling)
    x_BQD = asking_BQD + functional.linear(attended.flatten(2), attention.o_proj.weight)
    normed = _norm(x_BQD, layer.post_attention_layernorm)
    gate, up = functional.linear(normed, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])).chunk(2, dim=-1)
    return x_BQD + functional.linear(functional.silu(gate) * up, mlp.down_proj.weight)


def _norm(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), norm.weight.to(x.dtype), norm.variance_epsilon)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding of x (B, T, H, K) by tables (B or 1, T, K)."""
    cos, sin = (table.unsqueeze(2) for table in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
