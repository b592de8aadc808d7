"""ShiftQwen3: a Qwen3 decoder with a learned token shift at its input, and the initialisation that lets a tiny one copy from the start.

The input of position t is  e_t + W1 e_{t-1} + W2 e_{t-2} + W3 e_{t-3},  so each position already knows its last tokens and one attention
head can match a whole phrase. The shift never crosses a padded or packed boundary: source t-k counts only where position_ids[t] >= k.
Importing this module registers the class, so AutoConfig and AutoModelForCausalLM open its checkpoints. Training is models/supervised/run.py
and models/rl, fast generation models/engine/embedded.py.

Shapes: B batch, T tokens, D hidden size, S number of shifted tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3Model
from transformers.modeling_outputs import BaseModelOutputWithPast


class ShiftQwen3Config(Qwen3Config):
    """Qwen3's configuration plus the number of tokens the shift reaches back."""

    model_type = "shift_qwen3"
    num_shifted_tokens: int = 3


def tiny_config(vocab_size: int, *, pad_token_id: int, bos_token_id: int, eos_token_id: int, **changes: Any) -> ShiftQwen3Config:
    """The quickstart's 0.45 M-parameter model; `changes` override any field."""
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "intermediate_size": 256,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "pad_token_id": pad_token_id,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
    }
    return ShiftQwen3Config(**{**fields, **changes})


class ShiftQwen3Model(Qwen3Model):
    """Qwen3's decoder on shifted embeddings. While decoding with a cache it needs the ids of the S tokens before the input
    (`previous_ids`, pad id where there is none); `generate` passes them by itself."""

    config_class = ShiftQwen3Config
    config: ShiftQwen3Config

    def __init__(self, config: ShiftQwen3Config) -> None:
        super().__init__(config)
        if config.pad_token_id is None:
            raise ValueError("pad_token_id is None: set it in the configuration, since the token shift has to know the padding embedding")
        self._pad = config.pad_token_id
        self.shift = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in range(config.num_shifted_tokens))
        self.post_init()

    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor, previous_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Shifted embeddings (B, T, D) of `input_ids` (B, T). `position_ids` (B or 1, T): tokens since their sequence began."""
        num_tokens, reach = input_ids.shape[1], len(self.shift)
        window = input_ids if previous_ids is None else torch.cat([previous_ids, input_ids], dim=1)
        is_real = torch.ne(window, self._pad)
        embedded = self.embed_tokens(window) * is_real.unsqueeze(-1)
        if previous_ids is None:
            embedded = nn.functional.pad(embedded, (0, 0, reach, 0))
        shifted: torch.Tensor = embedded[:, reach:]
        for back, linear in enumerate(self.shift, start=1):
            source = embedded[:, reach - back : reach - back + num_tokens]
            shifted = shifted + linear(source * (position_ids >= back).unsqueeze(-1))
        return shifted

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        previous_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """As Qwen3Model, but always from ids. Raises ValueError on embeddings, or on a filled cache without `previous_ids`."""
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("ShiftQwen3 needs input_ids: the token shift cannot be computed from inputs_embeds")
        num_past = past_key_values.get_seq_length() if past_key_values is not None else 0
        if num_past and previous_ids is None:
            raise ValueError(
                f"the cache has {num_past} tokens but previous_ids is missing: pass the {len(self.shift)} ids before input_ids"
            )
        if position_ids is None:
            position_ids = self._positions(input_ids, attention_mask, num_past)
        embeds = self.embed(input_ids, position_ids, previous_ids)
        outputs: BaseModelOutputWithPast = super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return outputs

    @staticmethod
    def _positions(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, num_past: int) -> torch.Tensor:
        num_tokens = input_ids.shape[1]
        if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -num_tokens:]
        return torch.arange(num_past, num_past + num_tokens, device=input_ids.device).unsqueeze(0)


class ShiftQwen3ForCausalLM(Qwen3ForCausalLM):
    """ShiftQwen3 with a language-model head (tied to the embeddings in the tiny configuration)."""

    config_class = ShiftQwen3Config
    config: ShiftQwen3Config

    def __init__(self, config: ShiftQwen3Config) -> None:
        super().__init__(config)
        self.model = ShiftQwen3Model(config)
        self.post_init()

    def prepare_inputs_for_generation(self, input_ids: torch.LongTensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Adds the ids before the tokens that are fed next, so that a cached step sees the same shift as a full pass."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)  # type: ignore[misc]
        num_before = input_ids.shape[1] - inputs["input_ids"].shape[1]
        if num_before:
            reach = self.config.num_shifted_tokens
            before = input_ids[:, max(0, num_before - reach) : num_before]
            inputs["previous_ids"] = nn.functional.pad(before, (reach - before.shape[1], 0), value=self.config.pad_token_id)
        return inputs


@torch.no_grad()
def initialise(model: ShiftQwen3ForCausalLM, seed: int, *, equivalents: list[tuple[int, int]] | None = None) -> None:
    """Fill a model with weights that already match and copy, from a generator of its own (the global one is left alone).

    Plain normal matrices (std D^-1/2, residual outputs smaller by (2L)^-1/2), orthogonal shift matrices with gain 1/k, and in every layer
    four kinds of heads in turn: induction (query reads e_t, key reads e_{t-1}), identity match (query = key), bigram induction, and free
    ones; the first three copy what they attend to (o_proj = v_projᵀ). Query and key norms start at 1.5, so that a match stands out.
    In the spirit of "mimetic initialization" (Trockman & Kolter 2023, arXiv 2305.09828). `equivalents` are pairs of token ids that mean
    the same (`a` and `‿a`): the second starts near the first.
    """
    config, inner = model.config, model.model
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    width, num_layers = config.hidden_size, config.num_hidden_layers
    for name, parameter in inner.named_parameters():
        if parameter.dim() == 2:
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.copy_(normal(*parameter.shape, std=width**-0.5 * ((2 * num_layers) ** -0.5 if is_output else 1.0)))
    inner.embed_tokens.weight.copy_(normal(*inner.embed_tokens.weight.shape, std=0.1))
    for first, second in equivalents or ():
        embedding = inner.embed_tokens.weight
        embedding[second] = 0.8 * embedding[first] + 0.6 * embedding[second]
    inner.embed_tokens.weight[config.pad_token_id] = 0.0
    rotations = [torch.linalg.qr(normal(width, width, std=1.0)).Q for _ in inner.shift]
    for back, (linear, rotation) in enumerate(zip(inner.shift, rotations, strict=True), start=1):
        linear.weight.copy_(rotation / back)
    for depth, layer in enumerate(inner.layers):
        attention = layer.self_attn
        attention.q_norm.weight.fill_(1.5)
        attention.k_norm.weight.fill_(1.5)
        for head in range(config.num_attention_heads):
            _initialise_head(attention, head, (head + depth) % 4, rotations, normal)


def _initialise_head(attention: Any, head: int, kind: int, rotations: list[torch.Tensor], normal: Any) -> None:
    """Kinds: 0 induction, 1 identity match, 2 bigram induction, 3 left random."""
    if kind == 3:
        return
    size, width = attention.head_dim, rotations[0].shape[0]
    rows = slice(head * size, (head + 1) * size)
    query, key, value = (projection.weight[rows] for projection in (attention.q_proj, attention.k_proj, attention.v_proj))
    now, before = normal(size, width, std=width**-0.5), normal(size, width, std=width**-0.5)
    one_back, two_back = rotations[0], rotations[1]
    query.copy_(now + before @ one_back.T if kind == 2 else now)
    key.copy_({0: now @ one_back.T, 1: now, 2: now @ one_back.T + before @ two_back.T}[kind])
    attention.o_proj.weight[:, rows] = value.T


AutoConfig.register(ShiftQwen3Config.model_type, ShiftQwen3Config, exist_ok=True)
AutoModelForCausalLM.register(ShiftQwen3Config, ShiftQwen3ForCausalLM, exist_ok=True)
