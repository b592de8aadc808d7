"""The fast backend: Llama, Qwen2, Qwen3 and ShiftQwen3, as one frozen copy of the weights arranged for generation on a CPU.

A general forward pass spends most of a small model's time in bookkeeping: a step of few rows is hundreds of tiny operations. This one
computes the same numbers (tests hold it to the models' own forward pass) with fewer: projections of one input are one matrix, norm weights
are multiplied into what follows them, and the last layer's queries are asked only where an answer starts. Larger models are bound by their
matrices and stay with models/engine/hf_backend.py, as do all others.

Shape suffixes: B rows, T tokens, S slots, H query heads, J key heads, G = H / J, K head size, D hidden size, P positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from models.engine.backend import load_whole
from models.engine.kv_cache import KVCache, Target
from models.engine.linear import Weight
from models.engine.rows import Request, Row
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM
from warehouse.core.errors import RequestRefused

FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, ShiftQwen3ForCausalLM)
"""Exactly these classes: what is derived from them may compute something else."""
MOST_BYTES = 2**28
"""Of a model's weights, which are kept twice. From about here on the matrices take most of the time, with any library."""


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Weight
    head_norms: Tensor | None
    """Weights (H + J, K) of the norms of queries and keys, where there are such norms."""
    output: Weight
    gate_up: Weight
    down: Weight


def runs_fast(model: PreTrainedModel) -> bool:
    """Whether this backend can run a model, and gains by it."""
    config: Any = model.config
    if type(model) not in FAMILIES or set(getattr(config, "layer_types", None) or ()) - {"full_attention"} or config.hidden_act != "silu":
        return False
    if config.rope_parameters["rope_type"] in ("dynamic", "longrope"):  # frequencies that hang on a prompt's length
        return False
    matrices = [module for module in model.modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]
    if any(type(module) not in (nn.Linear, nn.Embedding) for module in matrices):  # adapters, quantised weights
        return False
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    is_small = model.device.type == "cpu" and model.dtype == torch.float32 and num_bytes <= MOST_BYTES
    return is_small or type(model) is ShiftQwen3ForCausalLM


class DecoderBackend:
    """See models/engine/backend.py. `model` is the engine's own: `load` writes into it."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: frozenset[int]) -> None:
        config: Any = model.config
        self._model: Any = model
        self.never_token_ids: tuple[int, ...] = ()
        self.eos_token_ids, self.max_positions = eos_token_ids, int(config.max_position_embeddings)
        self._num_queries, self._num_keys = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.vocabulary_size = int(self._model.model.embed_tokens.weight.shape[0])
        self._head_size, self._width = int(self._model.model.layers[0].self_attn.head_dim), int(config.hidden_size)
        self._reach = int(getattr(config, "num_shifted_tokens", 0))
        self._pad = int(config.pad_token_id) if self._reach else 0
        self._epsilon = config.rms_norm_eps
        self._device = model.device
        self.kv_cache = KVCache(self._device, 2 * config.num_hidden_layers * self._num_keys * self._head_size * model.dtype.itemsize)
        self._arrange()

    def load(self, state: Mapping[str, Tensor]) -> None:
        load_whole(self._model, state)
        self._arrange()

    @torch.no_grad()
    def _arrange(self) -> None:
        inner = self._model.model
        self._embedding = inner.embed_tokens.weight.detach()
        if self._reach:  # what stands before a prompt's first token adds nothing to it
            self._embedding = self._embedding.clone()
            self._embedding[self._pad] = 0.0
        self._shift = [_weight(linear) for linear in inner.shift] if self._reach else []
        self._layers = [self._arranged(layer) for layer in inner.layers]
        self._head = _weight(self._model.lm_head, norm=inner.norm)
        self._rotary_P2K = self._rotary(inner.rotary_emb)

    def _arranged(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        head_norms = None
        if hasattr(attention, "q_norm"):
            norms = [attention.q_norm.weight] * self._num_queries + [attention.k_norm.weight] * self._num_keys
            head_norms = torch.stack(norms).detach()
        return _Layer(
            qkv=_weight(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm),
            head_norms=head_norms,
            output=_weight(attention.o_proj),
            gate_up=_weight(mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm),
            down=_weight(mlp.down_proj),
        )

    def _rotary(self, embedding: Any) -> Tensor:
        """Cosine and signed sine (P, 2, K) of the model's rotary embedding: rotate(x) = x cos + swap(x) (±sin), where swap exchanges the
        halves of a head."""
        positions = torch.arange(self.max_positions, device=self._device).unsqueeze(0)
        cos_PK, sin_PK = (table[0] for table in embedding(self._embedding[:1].float(), positions))
        half = self._head_size // 2
        signed_PK = torch.cat([-sin_PK[:, :half], sin_PK[:, half:]], dim=-1)
        return torch.stack([cos_PK, signed_PK], dim=1).to(self._embedding.dtype)

    def open(self, request: Request) -> Row:
        if request.vision:
            raise RequestRefused(f"a {type(self._model).__name__} has no vision: send prompts without images", "messages")
        return Row.of(request)

    def read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        target = Target.of_pending(self.kv_cache, rows, places)
        positions_BT = torch.tensor(target.starts, device=self._device).unsqueeze(1) + torch.arange(target.num_tokens, device=self._device)
        last_B = torch.tensor([row.num_pending - 1 for row in rows], device=self._device)
        rows_B = torch.arange(len(rows), device=self._device)
        x_BTD = self._embed(rows, target.num_tokens)
        rotary_BT2K = self._rotary_P2K[positions_BT.clamp(max=self.max_positions - 1)]
        mask = None if target.is_fresh else self._bias(positions_BT, target.num_read).unsqueeze(1)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(x_BTD, layer, rotary_BT2K)
            keys, values = target.exchange(index, key.transpose(1, 2), value.transpose(1, 2))
            if index == len(self._layers) - 1:
                query, x_BTD = query[rows_B, last_B].unsqueeze(1), x_BTD[rows_B, last_B].unsqueeze(1)
                mask = self._bias(positions_BT[rows_B, last_B].unsqueeze(1), target.num_read).unsqueeze(1)
            x_BTD = self._finish(x_BTD, self._attend(query.transpose(1, 2), keys, values, mask), layer)
        return self._logits(x_BTD[:, 0])

    def step(self, rows: Sequence[Row]) -> Tensor:
        target = Target.of_pending(self.kv_cache, rows, range(len(rows)))
        starts_B = torch.tensor(target.starts, device=self._device)
        x_BD, rotary_B2K = self._embed(rows, 1)[:, 0], self._rotary_P2K[starts_B]
        mask_B11S = self._bias(starts_B, target.num_read)[:, None, None]
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(x_BD, layer, rotary_B2K)
            keys, values = target.exchange(index, key.unsqueeze(2), value.unsqueeze(2))
            query_BJGK = query.unflatten(1, (self._num_keys, -1))  # who shares keys stands where tokens would: nothing is repeated
            attended = functional.scaled_dot_product_attention(query_BJGK, keys, values, attn_mask=mask_B11S)
            x_BD = self._finish(x_BD, attended.flatten(1), layer)
        return self._logits(x_BD)

    def _embed(self, rows: Sequence[Row], num_tokens: int) -> Tensor:
        """Inputs (B, T, D) of the next tokens; ShiftQwen3's with its token shift."""
        reach = self._reach
        windows = [self._window(row.tokens, row.num_cached, num_tokens) for row in rows]
        embedded = functional.embedding(torch.tensor(windows, device=self._device), self._embedding)
        x_BTD = embedded[:, reach:]
        for back, weight in enumerate(self._shift, start=1):
            x_BTD = x_BTD + weight(embedded[:, reach - back : reach - back + num_tokens])
        return x_BTD

    def _window(self, tokens: list[int], start: int, num_tokens: int) -> list[int]:
        """Ids from `_reach` before `start` to `num_tokens` after it, padding where there are none."""
        ids = tokens[max(0, start - self._reach) : start + num_tokens]
        before = max(0, self._reach - start)
        return [self._pad] * before + ids + [self._pad] * (self._reach + num_tokens - before - len(ids))

    def _bias(self, positions: Tensor, num_read: int) -> Tensor:
        """What is added to the scores (…, S) of queries at positions (…): slots beyond a query's own are hidden."""
        hidden = torch.arange(num_read, device=self._device) > positions.unsqueeze(-1)
        return torch.zeros(hidden.shape, dtype=self._embedding.dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _project(self, x: Tensor, layer: _Layer, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (…, H, K) and keys (…, J, K), and values (…, J, K), of inputs (…, D); `rotary` is (…, 2, K)."""
        heads = layer.qkv(self._normed(x)).unflatten(-1, (-1, self._head_size))
        rotated, value = heads[..., : -self._num_keys, :], heads[..., -self._num_keys :, :]
        if layer.head_norms is not None:
            rotated = functional.rms_norm(rotated, (self._head_size,), None, self._epsilon) * layer.head_norms
        cos, sin = rotary.unsqueeze(-2).unbind(-3)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_size // 2, dims=-1), sin)
        return rotated[..., : self._num_queries, :], rotated[..., self._num_queries :, :], value

    def _attend(self, query_BHTK: Tensor, keys_BJSK: Tensor, values_BJSK: Tensor, mask: Tensor | None) -> Tensor:
        """What the heads attend to (B, T, H * K). Without a mask causal: fresh rows have their padding on the right, where nobody looks."""
        attended = functional.scaled_dot_product_attention(
            query_BHTK, keys_BJSK, values_BJSK, attn_mask=mask, is_causal=mask is None, enable_gqa=self._num_queries != self._num_keys
        )
        return attended.transpose(1, 2).flatten(2)

    def _finish(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        x = x + layer.output(attended)
        gate, up = layer.gate_up(self._normed(x)).chunk(2, dim=-1)
        return x + layer.down(functional.silu(gate) * up)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        return self._head(self._normed(hidden_BD))

    def _normed(self, x: Tensor) -> Tensor:
        """Root mean square 1; the norm's weights are in the matrix that follows."""
        return functional.rms_norm(x, (self._width,), None, self._epsilon)


def _weight(*linears: Any, norm: Any = None) -> Weight:
    """Layers of one input as one matrix, with the weights of the norm before them multiplied in."""
    matrix = torch.cat([linear.weight for linear in linears]).detach() if len(linears) > 1 else linears[0].weight.detach()
    if norm is not None:
        matrix = matrix * norm.weight.detach()
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return Weight(matrix, torch.cat(biases).detach() if biases else None)
