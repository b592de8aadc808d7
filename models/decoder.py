"""The decoding loop of the embedded engine: batched generation for ShiftQwen3 on a preallocated key/value cache. Tensors in, token ids and
log-probabilities out; chat messages, threads and policy ids are models/engine.py.

`generate` of transformers spends most of a tiny model's time in bookkeeping. This loop computes the same numbers (tests hold it to the
model's own forward pass) with what a CPU needs: fused projections, prompts prefilled in groups of like length, the last layer's
queries only where an answer starts, no concatenation per token, and finished rows dropped from the batch.

Shapes: B rows, T prompt tokens, S cache slots, H heads, K head size, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.shift_qwen3 import ShiftQwen3ForCausalLM
from warehouse.errors import ModelError

PREFILL_ROWS = 8
"""Rows of like length that are prefilled together: small enough that little of a group is padding."""
SHRINK_BELOW = 0.7
"""The batch is compacted when fewer than this share of its rows are still writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `seed` feeds a generator of this request alone; temperature 0 is greedy."""

    prompt: Sequence[int]
    temperature: float
    max_new_tokens: int
    seed: int


@dataclass(slots=True)
class Continuation:
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """A frozen copy of a model's weights, arranged for decoding. Later changes to the model do not reach it."""

    def __init__(self, model: ShiftQwen3ForCausalLM) -> None:
        config = model.config
        layer_types = sorted(set(config.layer_types or ()))
        if config.num_key_value_heads != config.num_attention_heads or config.attention_bias or layer_types != ["full_attention"]:
            raise ModelError(
                "the embedded decoder wants as many key/value heads as query heads, no attention bias and no sliding window, but the model "
                f"has {config.num_key_value_heads} and {config.num_attention_heads} heads, bias {config.attention_bias}, layers "
                f"{layer_types}: serve it through an HTTP engine"
            )
        self.num_heads, self.head_size, self.width = config.num_attention_heads, config.head_dim, config.hidden_size
        self.pad, self.eos, self.max_positions = _one_id(config.pad_token_id), _one_id(config.eos_token_id), config.max_position_embeddings
        self.epsilon, self.scale = config.rms_norm_eps, config.head_dim**-0.5
        inner = model.model
        with torch.no_grad():
            self.embedding = inner.embed_tokens.weight.detach().clone()
            self.embedding[self.pad] = 0.0
            self.head = model.lm_head.weight.detach().clone()
            self.shift = [linear.weight.detach().clone() for linear in inner.shift]
            self.final_norm = inner.norm.weight.detach().clone()
            self.layers = [self._copy_layer(layer) for layer in inner.layers]
            positions = torch.arange(self.max_positions).unsqueeze(0)
            cos, sin = inner.rotary_emb(self.embedding, positions)
            self.cos, self.sin = cos[0].clone(), sin[0].clone()

    @staticmethod
    def _copy_layer(layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            input_norm=layer.input_layernorm.weight.detach().clone(),
            qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).detach(),
            q_norm=attention.q_norm.weight.detach().clone(), k_norm=attention.k_norm.weight.detach().clone(),
            output=attention.o_proj.weight.detach().clone(),
            post_norm=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach(), down=mlp.down_proj.weight.detach().clone(),
        )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Continuation]:
        """Continue every prompt until `<eos>` (kept) or its token limit. Rows do not influence each other beyond float rounding."""
        if not requests:
            return []
        order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt))
        rows = _Rows([requests[row] for row in order], pad=self.pad, reach=len(self.shift))
        cache = _Cache.empty(len(self.layers), len(order), self.num_heads, rows.prompt_slots + rows.max_new, self.head_size)
        hidden = self._prefill(rows, cache)
        slot = rows.prompt_slots
        while True:
            rows.choose(functional.linear(hidden, self.head), self.eos)
            num_alive = rows.num_alive
            if not num_alive:
                break
            if num_alive < SHRINK_BELOW * rows.count:
                cache = cache.select(rows.compact())
            hidden = self._step(rows, cache, slot)
            slot += 1
        results: list[Continuation] = [Continuation([], [])] * len(order)
        for row, continuation in zip(order, rows.results(), strict=True):
            results[row] = continuation
        return results

    def _prefill(self, rows: _Rows, cache: _Cache) -> Tensor:
        """Fill the cache with all prompts, left-padded to one length; returns the last position's final hidden states (B, D)."""
        hidden = []
        for first in range(0, rows.count, PREFILL_ROWS):
            last = min(first + PREFILL_ROWS, rows.count)
            num_tokens = rows.lengths[last - 1]
            ids = rows.prompt_ids[first:last, rows.prompt_slots - num_tokens :]
            positions = torch.arange(num_tokens).unsqueeze(0) - (num_tokens - rows.length_tensor[first:last]).unsqueeze(1)
            slots = slice(rows.prompt_slots - num_tokens, rows.prompt_slots)
            hidden.append(self._prefill_group(ids, positions, cache, slice(first, last), slots))
        return torch.cat(hidden)

    def _prefill_group(self, ids: Tensor, positions: Tensor, cache: _Cache, rows: slice, slots: slice) -> Tensor:
        num_rows, num_tokens = ids.shape
        real = positions >= 0
        mask = (torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril() & real.unsqueeze(1)) | torch.eye(num_tokens, dtype=torch.bool)
        cos, sin = (table[positions.clamp(min=0)].unsqueeze(2) for table in (self.cos, self.sin))
        embedded = functional.embedding(ids, self.embedding)
        x = embedded
        for back, weight in enumerate(self.shift, start=1):
            x = x + functional.linear(functional.pad(embedded, (0, 0, back, 0))[:, :num_tokens], weight)
        for index, layer in enumerate(self.layers):
            is_last = index == len(self.layers) - 1
            query, key, value = self._project(x, layer, cos, sin)
            cache.keys[index][rows, :, slots] = key.transpose(1, 2)
            cache.values[index][rows, :, slots] = value.transpose(1, 2)
            if is_last:
                query, x, mask = query[:, -1:], x[:, -1:], mask[:, -1:]
            attended = functional.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask.unsqueeze(1), scale=self.scale
            )
            x = self._finish(x, attended.transpose(1, 2).reshape(num_rows, -1, self.num_heads * self.head_size), layer)
        return functional.rms_norm(x[:, -1], (self.width,), self.final_norm, self.epsilon)

    def _step(self, rows: _Rows, cache: _Cache, slot: int) -> Tensor:
        """Feed each row's newest token; returns final hidden states (B, D)."""
        cos, sin = (table[rows.positions].view(-1, 1, 1, self.head_size) for table in (self.cos, self.sin))
        recent = functional.embedding(rows.recent_ids, self.embedding)
        x = recent[:, -1]
        for back, weight in enumerate(self.shift, start=1):
            x = x + functional.linear(recent[:, -1 - back], weight)
        x = x.unsqueeze(1)
        bias = rows.bias[..., : slot + 1]
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(x, layer, cos, sin)
            cache.keys[index][:, :, slot] = key[:, 0]
            cache.values[index][:, :, slot] = value[:, 0]
            scores = query.transpose(1, 2) @ cache.keys[index][:, :, : slot + 1].transpose(2, 3) * self.scale + bias
            attended = scores.softmax(dim=-1) @ cache.values[index][:, :, : slot + 1]
            x = self._finish(x, attended.reshape(rows.count, 1, self.num_heads * self.head_size), layer)
        return functional.rms_norm(x[:, 0], (self.width,), self.final_norm, self.epsilon)

    def _project(self, x: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed, rotated queries and keys, and values: each (B, T, H, K). q and k share one norm call and one rotation."""
        normed = functional.rms_norm(x, (self.width,), layer.input_norm, self.epsilon)
        qkv = functional.linear(normed, layer.qkv).view(*x.shape[:2], 3, self.num_heads, self.head_size)
        query = functional.rms_norm(qkv[:, :, 0], (self.head_size,), layer.q_norm, self.epsilon)
        key = functional.rms_norm(qkv[:, :, 1], (self.head_size,), layer.k_norm, self.epsilon)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), qkv[:, :, 2]

    def _finish(self, x: Tensor, attended: Tensor, layer: _Layer) -> Tensor:
        x = x + functional.linear(attended, layer.output)
        normed = functional.rms_norm(x, (self.width,), layer.post_norm, self.epsilon)
        gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)


class _Cache:
    """Keys and values of all layers, each (B, H, S, K). Padding slots are read, with weight 0, so they must hold numbers."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self.keys, self.values = keys, values

    @classmethod
    def empty(cls, num_layers: int, *shape: int) -> _Cache:
        return cls([torch.zeros(shape) for _ in range(num_layers)], [torch.zeros(shape) for _ in range(num_layers)])

    def select(self, rows: Tensor) -> _Cache:
        return _Cache([key[rows] for key in self.keys], [value[rows] for value in self.values])


class _Rows:
    """The rows of one batch while they are written. `members` says which request each row still in the batch belongs to."""

    def __init__(self, requests: Sequence[Request], *, pad: int, reach: int) -> None:
        self.lengths = [len(request.prompt) for request in requests]
        self.length_tensor = torch.tensor(self.lengths)
        self.prompt_slots, self.max_new = max(self.lengths), max(request.max_new_tokens for request in requests)
        num_slots = self.prompt_slots + self.max_new
        self.prompt_ids = torch.tensor([[pad] * (self.prompt_slots - len(request.prompt)) + list(request.prompt) for request in requests])
        padded = functional.pad(self.prompt_ids, (reach, 0), value=pad)
        self.recent_ids = padded[:, padded.shape[1] - reach - 1 :]
        self.positions = self.length_tensor - 1
        is_padding = torch.arange(num_slots).unsqueeze(0) < (self.prompt_slots - self.length_tensor).unsqueeze(1)
        self.bias = torch.zeros(len(requests), num_slots).masked_fill(is_padding, -torch.inf).view(len(requests), 1, 1, num_slots)
        self.temperatures = torch.tensor([request.temperature or 1.0 for request in requests]).unsqueeze(1)
        self.is_greedy = torch.tensor([request.temperature == 0 for request in requests])
        self.limits = torch.tensor([request.max_new_tokens for request in requests])
        self.draws = torch.stack([self._draws(request) for request in requests])
        self.members = torch.arange(len(requests))
        self.alive = torch.ones(len(requests), dtype=torch.bool)
        self.written = torch.zeros(len(requests), dtype=torch.long)
        self.token_ids = torch.zeros(len(requests), self.max_new, dtype=torch.long)
        self.logprobs = torch.zeros(len(requests), self.max_new)
        self.num_chosen = 0

    def _draws(self, request: Request) -> Tensor:
        if request.temperature == 0:
            return torch.zeros(self.max_new)
        return torch.rand(self.max_new, generator=torch.Generator().manual_seed(request.seed))

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def num_alive(self) -> int:
        return int(self.alive.sum())

    def choose(self, logits: Tensor, eos: int) -> None:
        """Pick each row's next token from logits (B, V): the likeliest, or by inverse transform of the row's own uniform draw."""
        logprobs = functional.log_softmax(logits / self.temperatures, dim=-1)
        chosen = logprobs.argmax(dim=-1)
        if not bool(self.is_greedy.all()):
            cumulative = logprobs.exp().cumsum(dim=-1)
            threshold = self.draws[:, self.num_chosen].unsqueeze(1) * cumulative[:, -1:]
            sampled = (cumulative <= threshold).sum(dim=-1).clamp(max=logits.shape[1] - 1)
            chosen = torch.where(self.is_greedy, chosen, sampled)
        picked = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        writers = self.members[self.alive]
        self.token_ids[writers, self.num_chosen] = chosen[self.alive]
        self.logprobs[writers, self.num_chosen] = picked[self.alive]
        self.written[writers] += 1
        self.num_chosen += 1
        self.alive = self.alive & (chosen != eos) & (self.limits > self.num_chosen)
        self.recent_ids = torch.cat([self.recent_ids[:, 1:], chosen.unsqueeze(1)], dim=1)
        self.positions = self.positions + 1

    def compact(self) -> Tensor:
        """Drop finished rows; returns the indices of those that stay, for the cache."""
        keep = self.alive.nonzero().squeeze(1)
        for name in ("members", "alive", "recent_ids", "positions", "bias", "temperatures", "is_greedy", "limits", "draws"):
            setattr(self, name, getattr(self, name)[keep])
        return keep

    def results(self) -> list[Continuation]:
        lengths, token_ids, logprobs = self.written.tolist(), self.token_ids.tolist(), self.logprobs.tolist()
        return [Continuation(ids[:n], logs[:n]) for n, ids, logs in zip(lengths, token_ids, logprobs, strict=True)]


def _one_id(token_id: int | list[int] | None) -> int:
    if not isinstance(token_id, int):
        raise ModelError(f"the embedded decoder wants one pad and one end token in the model's configuration, not {token_id!r}")
    return token_id


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
