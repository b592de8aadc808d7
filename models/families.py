"""Which kind of model a checkpoint folder holds: its codec (messages to tokens and back) and its weights, opened by what the folder itself
says. The codecs lie beside their kinds: models/tokenizer.py, models/templates.py, models/vision.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.chat import ChatCodec
from models.checkpoint import load_tokenizer, quiet, verify
from models.tokenizer import WordCodec
from warehouse.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def load_codec(folder: Path) -> ChatCodec:
    """The codec of a checkpoint. Raises CheckpointError when the folder is not whole."""
    verify(folder, weights=False)
    return WordCodec(load_tokenizer(folder))


def load_policy(folder: Path, *, dtype: str = "float32", device: str | torch.device | None = None) -> PreTrainedModel:
    """The checked model of a checkpoint, text or vision-language, in eval mode. `dtype` is a torch name (float32, bfloat16); `device`
    None leaves it on the CPU."""
    verify(folder)
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    import models.shift_qwen3  # noqa: F401  registers the model class

    auto: Any = AutoModelForImageTextToText if is_vision(folder) else AutoModelForCausalLM
    with quiet():
        model: Any = auto.from_pretrained(folder, dtype=getattr(torch, dtype))
    if device is not None:
        model = model.to(device)
    opened: PreTrainedModel = model.eval()
    return opened


def is_vision(folder: Path) -> bool:
    """Whether a checkpoint reads images: its configuration has a vision part."""
    return "vision_config" in read_config(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json. Raises CheckpointError when it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): a checkpoint is a folder as save_pretrained writes it") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} names no model_type: a checkpoint is a folder as save_pretrained writes it")
    return config
