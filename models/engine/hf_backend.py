"""The general backend: any Hugging Face decoder, text or vision-language, through its own forward pass on the KV cache.

The model is handed a transformers Cache whose layers write into the KV cache, positions of its own for every row, and a mask that says
which slots a row may attend to; so rows of any length share a pass, and nothing is copied or padded between steps.

Shape suffixes: B rows, T new tokens, S slots, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from models.engine.backend import load_whole
from models.engine.kv_cache import KVCache, Target
from models.engine.linear import pack_linears
from models.engine.quantised import QuantisedLinears
from models.engine.rows import Request, Row
from models.engine.settings import Quantisation
from models.engine.vision_units import GRID, Unit, joined, keys_of, placeholder_ids, units_of
from models.families.shift_qwen3 import ShiftQwen3Config
from warehouse.core.errors import ModelError, RequestRefused

FULL, SLIDING = "full_attention", "sliding_attention"


class _KVCacheLayer(CacheLayerMixin):
    """One layer of a transformers cache, whose tensors are the KV cache's. `target` says where this forward pass reads and writes."""

    is_croppable = False

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index
        self.target: Target | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.target is None:
            raise ModelError("a cache layer of the engine was used outside a forward pass of the engine")
        return self.target.exchange(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.target is None else self.target.num_read), 0

    def get_seq_length(self) -> int:
        return 0 if self.target is None else self.target.num_read - self.target.num_tokens

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class _Extra:
    """A row's images, its prompt's positions where they are not simply counted (3, T), and what is then added to count on."""

    units: tuple[Unit, ...] = ()
    positions: Tensor | None = None
    delta: int = 0


class HuggingFaceBackend:
    """See models/engine/backend.py. `model` is the engine's own: `load` writes into it, and its attention runs as `sdpa`."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: frozenset[int], quantisation: Quantisation | None = None) -> None:
        """Raises ModelError for a model whose state is not keys and values of all tokens, that takes no positions, or that cannot be
        quantised."""
        config: Any = model.config.get_text_config()
        parameters = inspect.signature(model.forward).parameters
        self._layer_types = _layer_types(config)
        if not self._layer_types <= {FULL, SLIDING} or "position_ids" not in parameters or "past_key_values" not in parameters:
            raise ModelError(
                f"the embedded engine runs decoders with full or sliding attention that take position_ids, not {type(model).__name__} with "
                f"layers {sorted(self._layer_types)}: serve it by HTTP (engine kind http)"
            )
        if "flash" in str(config._attn_implementation):
            model.set_attn_implementation("sdpa")
        self._model, self.eos_token_ids = model, eos_token_ids
        self._config: Any = config
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self._keeps_logits = "logits_to_keep" in parameters
        self._image_token_id: int | None = getattr(model.config, "image_token_id", None)
        self.never_token_ids = placeholder_ids(model.config)
        self._merge_size = int(getattr(getattr(model.config, "vision_config", None), "spatial_merge_size", 1))
        self.vocabulary_size = int(cast("Any", model.get_input_embeddings()).weight.shape[0])
        self.max_positions = int(config.max_position_embeddings)
        num_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        head_size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.kv_cache = KVCache(model.device, 2 * config.num_hidden_layers * num_heads * head_size * model.dtype.itemsize)
        self._layers = [_KVCacheLayer(index) for index in range(config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))
        self._quantised = QuantisedLinears(model, quantisation) if quantisation is not None else None
        if self._quantised is None:
            pack_linears(model)

    def load(self, state: Mapping[str, Tensor]) -> None:
        if self._quantised is not None:
            self._quantised.load(state)
            return
        load_whole(self._model, state)
        pack_linears(self._model)

    def open(self, request: Request) -> Row:
        if not request.vision:
            if placeholder := next((token for token in request.prompt if token in self.never_token_ids), None):
                raise RequestRefused(f"token id {placeholder} stands for an image, but the prompt has no image", "prompt")
            return Row.of(request, extra=_Extra())
        if self._image_token_id is None:
            name = type(self._model).__name__
            raise RequestRefused(f"{name} has no image_token_id in its configuration, so it cannot read images", "messages")
        units = units_of(request.prompt, request.vision, self._image_token_id, self._merge_size)
        positions, delta = self._vision_positions(request.prompt, units, self._image_token_id)
        keys = keys_of(request.prompt, units, self._image_token_id)
        return Row.of(request, keys=keys, extra=_Extra(units, positions, delta))

    def _vision_positions(self, prompt: Sequence[int], units: Sequence[Unit], image_token_id: int) -> tuple[Tensor | None, int]:
        """Positions (3, T) in time, height and width where the model rotates by these (Qwen2-VL, arXiv 2409.12191, section 2.1)."""
        index_of = getattr(self._model.base_model, "get_rope_index", None)
        if index_of is None or not units:
            return None, 0
        ids_1T = torch.tensor([prompt])
        grids = joined(units).get("image_grid_thw")
        types_1T = torch.eq(ids_1T, image_token_id).int()
        positions_31T, deltas = index_of(input_ids=ids_1T, mm_token_type_ids=types_1T, image_grid_thw=grids)
        return positions_31T[:, 0], int(deltas.item())

    def read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        """Rows with images to look at are read apart from the others."""
        logits: list[Tensor] = [torch.empty(0)] * len(rows)
        for group in self._read_together(rows):
            for index, row_logits in zip(group, self._read([rows[i] for i in group], [places[i] for i in group]), strict=True):
                logits[index] = row_logits
        return torch.stack(logits)

    def _read_together(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of rows that share a pass: those without images to look at, and those whose images join to one row of patches. A row
        with other images (tiles) is alone."""
        unseen = [_unseen(row) for row in rows]
        blind = [index for index, units in enumerate(unseen) if not units]
        patches = [index for index, units in enumerate(unseen) if units and all(GRID in unit.inputs for unit in units)]
        tiles = [[index] for index in range(len(rows)) if index not in {*blind, *patches}]
        return [group for group in (blind, patches) if group] + tiles

    def _read(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        target = Target.of_pending(self.kv_cache, rows, places)
        pad = rows[0].tokens[-1]  # any token: what stands on the right of a row's last token is never attended to
        ids = [row.tokens[row.num_cached :] + [pad] * (target.num_tokens - row.num_pending) for row in rows]
        last = [row.num_pending - 1 for row in rows]
        images = joined([unit for row in rows for unit in _unseen(row)])
        logits_BTV, kept = self._forward(rows, target, ids, last, {name: part.to(self.kv_cache.device) for name, part in images.items()})
        return logits_BTV[torch.arange(len(rows)), torch.tensor([kept.index(position) for position in last])]

    def step(self, rows: Sequence[Row]) -> Tensor:
        target = Target.of_pending(self.kv_cache, rows, range(len(rows)))
        return self._forward(rows, target, [row.tokens[-1:] for row in rows], [0], {})[0][:, 0]

    def _forward(
        self, rows: Sequence[Row], target: Target, ids: list[list[int]], wanted: list[int], images: dict[str, Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Logits (B, W, V) at the positions of the chunk that are returned with them, `wanted` among them."""
        device = self.kv_cache.device
        slots_BT = torch.tensor(target.starts, device=device).unsqueeze(1) + torch.arange(target.num_tokens, device=device)
        kept = sorted(set(wanted))
        more: dict[str, Any] = dict(images)
        if self._keeps_logits:
            more["logits_to_keep"] = torch.tensor(kept, device=device)
        if isinstance(self._config, ShiftQwen3Config):
            more["previous_ids"] = self._previous_ids(rows)
        for layer in self._layers:
            layer.target = target
        logits = self._model(
            input_ids=torch.tensor(ids, device=device),
            position_ids=self._positions(rows, slots_BT),
            attention_mask=self._mask(target, slots_BT),
            past_key_values=self._cache,
            use_cache=True,
            **more,
        ).logits
        return (logits, kept) if self._keeps_logits else (logits[:, kept], kept)

    def _positions(self, rows: Sequence[Row], slots_BT: Tensor) -> Tensor:
        extras: list[_Extra] = [row.extra for row in rows]
        prompts = [
            None if extra.positions is None else extra.positions[:, row.num_cached :] for row, extra in zip(rows, extras, strict=True)
        ]
        deltas = [extra.delta for extra in extras]
        if not any(prompt is not None and prompt.shape[1] for prompt in prompts):
            return slots_BT + torch.tensor(deltas, device=slots_BT.device).unsqueeze(1) if any(deltas) else slots_BT
        counted = slots_BT.cpu() + torch.tensor(deltas).unsqueeze(1)
        return torch.stack(
            [
                counted_T.expand(3, -1) if prompt is None else torch.cat([prompt, counted_T[prompt.shape[1] :].expand(3, -1)], dim=1)
                for counted_T, prompt in zip(counted, prompts, strict=True)
            ],
            dim=1,
        ).to(slots_BT.device)

    def _mask(self, target: Target, slots_BT: Tensor) -> Any:
        """Additive masks (B, 1, T, S), one for each kind of layer; None for fresh rows: the model's own causal mask is right, for padding
        stands on the right."""
        if target.is_fresh:
            return None
        read_S = torch.arange(target.num_read, device=slots_BT.device)
        masks = {FULL: read_S > slots_BT.unsqueeze(-1)}
        if SLIDING in self._layer_types:
            masks[SLIDING] = masks[FULL] | (read_S <= slots_BT.unsqueeze(-1) - self._window)
        dtype = self._model.dtype
        additive = {
            kind: torch.zeros(hidden.shape, dtype=dtype, device=slots_BT.device).masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)
            for kind, hidden in masks.items()
            if kind in self._layer_types
        }
        return additive if len(additive) > 1 else next(iter(additive.values()))

    def _previous_ids(self, rows: Sequence[Row]) -> Tensor:
        """The tokens before the new ones, which the token shift of ShiftQwen3 reads."""
        reach, pad = self._config.num_shifted_tokens, int(self._config.pad_token_id)
        before = [row.tokens[max(0, row.num_cached - reach) : row.num_cached] for row in rows]
        return torch.tensor([[pad] * (reach - len(ids)) + ids for ids in before], device=self.kv_cache.device)


def _unseen(row: Row) -> tuple[Unit, ...]:
    """Images among the row's pending tokens."""
    extra: _Extra = row.extra
    return tuple(unit for unit in extra.units if unit.end > row.num_cached)


def _layer_types(config: Any) -> set[str]:
    named = getattr(config, "layer_types", None)
    if named:
        return set(named)
    return {SLIDING if getattr(config, "sliding_window", None) else FULL}
