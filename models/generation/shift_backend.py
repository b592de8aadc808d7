"""The fast backend for ShiftQwen3: what a tiny model on a CPU needs, as one frozen copy of the weights arranged for decoding.

A general forward pass spends most of a tiny model's time in bookkeeping. This one computes the same numbers (tests hold it to the model's
own forward pass) with fused projections, norm weights and rotary tables multiplied together beforehand, and the last layer's queries only
where an answer starts.

Shape suffixes: B rows, T tokens, S slots, H heads, K head size, D hidden size, P positions, L layers; C = B * H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.generation.arena import Arena, Target
from models.generation.backend import load_whole
from models.generation.linear import Weight
from models.generation.rows import Request, Row
from models.shift_qwen3 import ShiftQwen3ForCausalLM
from warehouse.errors import ModelError


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Weight
    output: Weight
    post_norm: Tensor
    gate_up: Weight
    down: Weight


def runs_fast(model: ShiftQwen3ForCausalLM) -> bool:
    """Whether this backend can run a model: as many key/value heads as query heads, no bias, no sliding window."""
    config: Any = model.config
    return (
        config.num_key_value_heads == config.num_attention_heads
        and not config.attention_bias
        and set(config.layer_types or ()) == {"full_attention"}
    )


class ShiftBackend:
    """See models/generation/backend.py. `model` is the engine's own: `load` writes into it."""

    def __init__(self, model: ShiftQwen3ForCausalLM, eos_token_ids: frozenset[int]) -> None:
        config: Any = model.config
        self._model = model
        self.never_token_ids: tuple[int, ...] = ()
        self.eos_token_ids, self.max_positions, self._pad = eos_token_ids, int(config.max_position_embeddings), int(config.pad_token_id)
        self._num_heads, self._head_size, self._width = config.num_attention_heads, config.head_dim, config.hidden_size
        self._epsilon = config.rms_norm_eps
        self._device = model.device
        self.arena = Arena(self._device, 2 * config.num_hidden_layers * self._num_heads * self._head_size * model.dtype.itemsize)
        self._arrange()

    def load(self, state: Mapping[str, Tensor]) -> None:
        load_whole(self._model, state)
        self._arrange()

    @torch.no_grad()
    def _arrange(self) -> None:
        inner = self._model.model
        self._embedding = inner.embed_tokens.weight.detach().clone()
        self._embedding[self._pad] = 0.0
        self._head = Weight(self._model.lm_head.weight.detach().clone())
        self._shift = [Weight(linear.weight.detach().clone()) for linear in inner.shift]
        self._final_norm = inner.norm.weight.detach().clone()
        self._layers = [self._copy_layer(layer) for layer in inner.layers]
        self._rotary_PL2QK = torch.stack([self._rotary(layer.self_attn) for layer in inner.layers], dim=1)

    @staticmethod
    def _copy_layer(layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            input_norm=layer.input_layernorm.weight.detach().clone(),
            qkv=Weight(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).detach()),
            output=Weight(attention.o_proj.weight.detach().clone()), post_norm=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=Weight(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()),
            down=Weight(mlp.down_proj.weight.detach().clone()),
        )  # fmt: skip

    def _rotary(self, attention: Any) -> Tensor:
        """Tables (P, 2, 2, K): cosine and sine, each for query and key, with the norm weights w and the query's scale in them:
        rotate(w x) = x (w cos) + swap(x) (swap(w) ±sin), where swap exchanges the halves of a head."""
        positions = torch.arange(self.max_positions, device=self._device).unsqueeze(0)
        cos_PK, sin_PK = (table[0].float() for table in self._model.model.rotary_emb(self._embedding.float(), positions))
        half = self._head_size // 2
        signed_PK = torch.cat([-sin_PK[:, :half], sin_PK[:, half:]], dim=-1)
        weight_2K = torch.stack([attention.q_norm.weight.float() * self._head_size**-0.5, attention.k_norm.weight.float()])
        tables = torch.stack([cos_PK.unsqueeze(1) * weight_2K, signed_PK.unsqueeze(1) * weight_2K.roll(half, dims=-1)], dim=1)
        return tables.to(self._embedding.dtype)

    def open(self, request: Request) -> Row:
        if request.vision:
            raise ModelError("a ShiftQwen3 model cannot see: its prompts carry no images")
        return Row.of(request)

    def read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        target = Target.of_pending(self.arena, rows, places)
        num_tokens, reach = target.num_tokens, len(self._shift)
        windows = [self._window(row.tokens, row.num_cached, reach, num_tokens) for row in rows]
        embedded = functional.embedding(torch.tensor(windows, device=self._device), self._embedding)
        x_BTD = embedded[:, reach:]
        for back, weight in enumerate(self._shift, start=1):
            x_BTD = x_BTD + weight(embedded[:, reach - back : reach - back + num_tokens])
        positions_BT = torch.tensor(target.starts, device=self._device).unsqueeze(1) + torch.arange(num_tokens, device=self._device)
        rotary = self._rotary_PL2QK[positions_BT.clamp(max=self.max_positions - 1)]
        last_B = torch.tensor([row.num_pending - 1 for row in rows], device=self._device)
        return self._read_layers(x_BTD, rotary, target, positions_BT, last_B)

    def _read_layers(self, x_BTD: Tensor, rotary: Tensor, target: Target, positions_BT: Tensor, last_B: Tensor) -> Tensor:
        """Fresh rows need no mask: padding stands on the right, where causal attention never looks."""
        slots_S = torch.arange(target.num_read, device=self._device)
        mask = None if target.is_fresh else (slots_S <= positions_BT.unsqueeze(-1)).unsqueeze(1)
        rows_B = torch.arange(len(last_B), device=self._device)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(x_BTD, layer, rotary[:, :, index])
            keys, values = target.exchange(index, key.transpose(1, 2), value.transpose(1, 2))
            if index == len(self._layers) - 1:
                query, x_BTD = query[rows_B, last_B].unsqueeze(1), x_BTD[rows_B, last_B].unsqueeze(1)
                mask = (slots_S <= positions_BT[rows_B, last_B].unsqueeze(1)).view(-1, 1, 1, target.num_read)
            attended = functional.scaled_dot_product_attention(
                query.transpose(1, 2), keys, values, attn_mask=mask, is_causal=mask is None, scale=1.0
            )
            x_BTD = self._finish(x_BTD, attended.transpose(1, 2).flatten(2), layer)
        return self._logits(x_BTD[:, 0])

    def step(self, rows: Sequence[Row]) -> Tensor:
        num_rows, reach = len(rows), len(self._shift)
        target = Target.of_pending(self.arena, rows, range(num_rows))
        recent = functional.embedding(
            torch.tensor([self._window(row.tokens, row.num_cached, reach, 1) for row in rows], device=self._device), self._embedding
        )
        x_BD = recent[:, reach]
        for back, weight in enumerate(self._shift, start=1):
            x_BD = x_BD + weight(recent[:, reach - back])
        starts_B = torch.tensor(target.starts, device=self._device)
        rotary = self._rotary_PL2QK[starts_B]
        hidden = torch.arange(target.num_read, device=self._device) > starts_B.unsqueeze(1)
        bias_BS = torch.zeros(hidden.shape, dtype=x_BD.dtype, device=self._device).masked_fill_(hidden, -torch.inf)
        bias_C1S = bias_BS.repeat_interleave(self._num_heads, dim=0).unsqueeze(1)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(x_BD, layer, rotary[:, index])
            keys, values = target.exchange(index, key.unsqueeze(2), value.unsqueeze(2))
            scores = torch.baddbmm(bias_C1S, query.reshape(-1, 1, self._head_size), keys.flatten(0, 1).transpose(1, 2))
            attended = torch.bmm(scores.softmax(dim=-1), values.flatten(0, 1))
            x_BD = self._finish(x_BD, attended.view(num_rows, -1), layer)
        return self._logits(x_BD)

    def _window(self, tokens: list[int], start: int, reach: int, num_tokens: int) -> list[int]:
        """Ids from `reach` before `start` to `num_tokens` after it, padding where there are none."""
        ids = tokens[max(0, start - reach) : start + num_tokens]
        before = max(0, reach - start)
        return [self._pad] * before + ids + [self._pad] * (reach + num_tokens - before - len(ids))

    def _project(self, x: Tensor, layer: _Layer, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed, rotated queries and keys, and values: each (…, H, K) for inputs (…, D); `rotary` is (…, 2, 2, K)."""
        normed = functional.rms_norm(x, (self._width,), layer.input_norm, self._epsilon)
        qkv = layer.qkv(normed).view(*x.shape[:-1], 3, self._num_heads, self._head_size)
        both = functional.rms_norm(qkv[..., :2, :, :], (self._head_size,), None, self._epsilon)
        cos, sin = rotary[..., 0, :, :].unsqueeze(-2), rotary[..., 1, :, :].unsqueeze(-2)
        rotated = torch.addcmul(both * cos, both.roll(self._head_size // 2, dims=-1), sin)
        return rotated[..., 0, :, :], rotated[..., 1, :, :], qkv[..., 2, :, :]

    def _finish(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        x = x + layer.output(attended)
        normed = functional.rms_norm(x, (self._width,), layer.post_norm, self._epsilon)
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return x + layer.down(functional.silu(gate) * up)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        return self._head(functional.rms_norm(hidden_BD, (self._width,), self._final_norm, self._epsilon))
