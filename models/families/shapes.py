"""The numbers of a model that memory and time follow from, read from its config.json: widths, depths, and parameters counted by part.

Pure arithmetic on plain data; no torch, no transformers. A count equals the model's own for every architecture that is named here (the
tests build them); an unknown one is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warehouse.core.errors import CheckpointError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """A vision tower that cuts a picture into square patches and merges `merge`² of them into one token of the language model."""

    patch_px: int
    merge: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_parameters: int

    @property
    def token_px(self) -> int:
        """Side of the square of a picture that becomes one token."""
        return self.patch_px * self.merge

    def image_tokens(self, width_px: int, height_px: int, max_pixels: int | None = None) -> int:
        """Tokens of a picture, which is shrunk to `max_pixels` first; the resize rounds sides to whole tokens."""
        area = width_px * height_px
        return max(1, round((min(area, max_pixels) if max_pixels else area) / self.token_px**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated MLP, with a vision tower or without."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    is_tied: bool
    max_positions: int
    layer_parameters: int
    other_parameters: int
    """final norm, and what stands before the layers beside the embeddings."""
    vision: VisionShape | None = None

    @property
    def embedding_parameters(self) -> int:
        """Input embeddings, and the output head where it is not the same matrix."""
        return self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)

    @property
    def text_parameters(self) -> int:
        return self.embedding_parameters + self.num_layers * self.layer_parameters + self.other_parameters

    @property
    def num_parameters(self) -> int:
        return self.text_parameters + (self.vision.num_parameters if self.vision else 0)

    @property
    def matmul_parameters(self) -> int:
        """Parameters that each token of text is multiplied with: all but the input embeddings, which are looked up."""
        return self.num_layers * self.layer_parameters + self.vocab_size * self.hidden_size

    @property
    def kv_size(self) -> int:
        """Numbers that one token leaves in the key/value cache: keys and values of every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


KNOWN_CONFIGS: dict[str, Config] = {
    "Qwen/Qwen2-VL-2B-Instruct": {
        "model_type": "qwen2_vl",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
        "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 1536, "patch_size": 14, "spatial_merge_size": 2},
    },
    "ByteDance-Seed/UI-TARS-1.5-7B": {
        "model_type": "qwen2_5_vl",
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 128_000,
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
    },
}
"""What the configurations of the models in our full-size profiles say, so that a plan can be made before anything is downloaded. UI-TARS
1.5 is a Qwen2.5-VL-7B by shape."""

_ATTENTION = {
    "qwen2": "bias",
    "qwen2_vl": "bias",
    "qwen2_5_vl": "bias",
    "qwen2_vl_text": "bias",
    "qwen2_5_vl_text": "bias",
    "qwen3": "norm",
    "qwen3_vl": "norm",
    "qwen3_vl_text": "norm",
    "shift_qwen3": "norm",
    "llama": "plain",
    "mistral": "plain",
}
"""What a kind's attention has beside its four matrices: biases on queries, keys and values; norms on queries and keys; nothing."""


def shape_of(config: Config) -> ModelShape:
    """The shape that a config.json describes, in the hub's older flat form or with a `text_config`. Raises CheckpointError for a kind of
    model that is not known here, or a configuration that lacks a number."""
    text: Config = config.get("text_config") or config
    kind = str(config.get("model_type"))
    if kind not in _ATTENTION:
        raise CheckpointError(
            f"the shape of a {kind!r} model is unknown; known are {', '.join(sorted(_ATTENTION))} (models/families/shapes.py)"
        )
    try:
        return _decoder(kind, config, text)
    except KeyError as error:
        raise CheckpointError(f"the configuration of this {kind} model has no {error}: use one written by save_pretrained") from error


def _decoder(kind: str, config: Config, text: Config) -> ModelShape:
    hidden, heads, inner = int(text["hidden_size"]), int(text["num_attention_heads"]), int(text["intermediate_size"])
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    queries, keys = heads * head, kv_heads * head
    attention = 2 * hidden * queries + 2 * hidden * keys
    extra = {"bias": queries + 2 * keys, "norm": 2 * head, "plain": 0}[_ATTENTION[kind]]
    vision: Config | None = config.get("vision_config")
    return ModelShape(
        model_type=kind,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=int(text["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head,
        vocab_size=int(text["vocab_size"]),
        is_tied=_is_tied(config, text),
        max_positions=int(text.get("max_position_embeddings") or 0),
        layer_parameters=attention + extra + 3 * hidden * inner + 2 * hidden,
        other_parameters=hidden + int(text.get("num_shifted_tokens") or 0) * hidden * hidden,
        vision=_tower(kind, vision) if vision is not None else None,
    )


def _is_tied(config: Config, text: Config) -> bool:
    """Flat configurations that do not say are tied or not by their class: Qwen2-VL's and Qwen2.5-VL's are not."""
    return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))


_TOWER_DEFAULTS: dict[str, tuple[int, int, int, int]] = {
    "qwen2_vl": (32, 1280, 0, 14),
    "qwen2_5_vl": (32, 3584, 3420, 14),
    "qwen3_vl": (27, 1152, 4304, 16),
}
"""Layers, width, inner width and patch that a tower's class has where its configuration says nothing."""


def _tower(kind: str, vision: Config) -> VisionShape:
    """The vision tower of Qwen2-VL and Qwen3-VL (layer norms, two-matrix MLP) or Qwen2.5-VL (root-mean-square norms, gated MLP), and its
    merger. Qwen3-VL's has learned positions, and a merger more for each layer of the decoder that hears it (deepstack)."""
    layers, width, inner, patch = _TOWER_DEFAULTS[kind]
    layers, patch = int(vision.get("depth", layers)), int(vision.get("patch_size", patch))
    width = int(vision.get("embed_dim" if kind == "qwen2_vl" else "hidden_size", width))
    inner = int(width * vision.get("mlp_ratio", 4)) if kind == "qwen2_vl" else int(vision.get("intermediate_size", inner))
    out = int(vision.get("hidden_size" if kind == "qwen2_vl" else "out_hidden_size", 3584))
    merge, frames = int(vision.get("spatial_merge_size", 2)), int(vision.get("temporal_patch_size", 2))
    channels = int(vision.get("in_channels", vision.get("in_chans", 3)))
    is_gated = kind == "qwen2_5_vl"
    attention = 4 * width * width + 4 * width
    mlp = 3 * width * inner + 2 * inner + width if is_gated else 2 * width * inner + inner + width
    norm = width if is_gated else 2 * width
    merged = width * merge**2
    merger = merged * merged + merged + merged * out + out
    other = channels * frames * patch**2 * width + norm + merger
    if kind == "qwen3_vl":
        positions, heard = int(vision.get("num_position_embeddings", 2304)), len(vision.get("deepstack_visual_indexes", (8, 16, 24)))
        other += width + positions * width + heard * (2 * merged + merger)
    return VisionShape(
        patch_px=patch,
        merge=merge,
        hidden_size=width,
        intermediate_size=inner,
        num_layers=layers,
        num_parameters=layers * (attention + mlp + 2 * norm) + other,
    )
