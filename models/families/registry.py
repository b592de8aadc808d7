"""Which kind of model a checkpoint folder holds: its codec (messages to tokens and back) and its weights, opened by what the folder itself
says. The codecs lie beside their kinds: models/families/tokenizer.py, models/families/templates.py, models/families/vision.py.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoints.checkpoint import load_tokenizer, quiet, verify
from models.checkpoints.model_files import CONFIG_FILE
from models.families.chat import ChatCodec
from models.families.templates import TemplateCodec
from models.families.tokenizer import WordCodec
from warehouse.core.errors import CheckpointError, ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

QUICKSTART_MODEL_TYPE = "shift_qwen3"


def load_codec(folder: Path) -> ChatCodec:
    """The codec of a checkpoint: the quickstart's, or the chat template's of its tokenizer, with a reader of images where its
    configuration has a vision part. Raises CheckpointError when the folder is not whole, ModelError for a model that no codec knows."""
    _verify_model(folder, weights=False)
    model_type = str(read_config(folder)["model_type"])
    if model_type == QUICKSTART_MODEL_TYPE:
        return WordCodec(load_tokenizer(folder))
    ends = end_token_ids(folder)
    if is_vision(folder):
        from models.families.vision import load_vision_codec

        return load_vision_codec(folder, model_type, ends)
    return TemplateCodec(load_tokenizer(folder), ends)


def load_policy(folder: Path, *, dtype: str = "float32", device: str | torch.device | None = None) -> PreTrainedModel:
    """The checked model of a checkpoint, text or vision-language, in eval mode. `dtype` is a torch name (float32, bfloat16); `device`
    None leaves it on the CPU."""
    _verify_model(folder)
    import torch

    try:
        with quiet():
            model: Any = model_class(folder).from_pretrained(folder, dtype=getattr(torch, dtype))
    except (ValueError, ImportError) as error:
        raise ModelError(f"transformers cannot open the model in {folder}: {error}") from error
    if device is not None:
        model = model.to(device)
    opened: PreTrainedModel = model.eval()
    return opened


def policy_without_weights(folder: Path, *, device: str | torch.device | None = None) -> PreTrainedModel:
    """The same model in float32, but that its parameters, on torch's `meta` device, have no values and take no memory: another process
    gives them theirs (models/training/zero.py). Buffers are on `device`."""
    _verify_model(folder, weights=False)
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig

    try:
        with quiet(), init_empty_weights(include_buffers=False):
            opens = model_class(folder)
            model: Any = opens.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    except (ValueError, ImportError) as error:
        raise ModelError(f"transformers cannot open the model in {folder}: {error}") from error
    model.tie_weights()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    opened: PreTrainedModel = model.eval()
    return opened


def _verify_model(folder: Path, *, weights: bool = True) -> None:
    card = verify(folder, weights=weights)
    if card.kind != "model":
        raise CheckpointError(f"{card.checkpoint_id} in {folder} is a {card.kind}, which answers nothing: name a policy's checkpoint")


def device_named(name: str) -> str:
    """What torch calls a device: of `auto`, the GPU where there is one, else the CPU. Raises ModelError for a GPU that is not there."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if num_gpus else "cpu"
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= num_gpus:
        raise ModelError(f"there is no device {name!r}: torch sees {num_gpus} GPUs; cpu and auto are always allowed")
    return name


def model_class(folder: Path) -> Any:
    """The class whose `from_pretrained` opens a folder's weights."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    import models.families.shift_qwen3  # noqa: F401  registers the model class

    return AutoModelForImageTextToText if is_vision(folder) else AutoModelForCausalLM


def is_vision(folder: Path) -> bool:
    """Whether a checkpoint reads images: its configuration has a vision part."""
    return "vision_config" in read_config(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json. Raises CheckpointError when it is missing or no JSON object."""
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): a checkpoint is a folder written by save_pretrained") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} has no model_type: a checkpoint is a folder written by save_pretrained")
    return config


def max_positions(folder: Path) -> int:
    """Positions that a checkpoint's decoder has. Raises CheckpointError for a configuration that does not say."""
    config = read_config(folder)
    found = (config.get("text_config") or {}).get("max_position_embeddings", config.get("max_position_embeddings"))
    if not isinstance(found, int):
        raise CheckpointError(f"{folder / CONFIG_FILE} has no max_position_embeddings: add it, as the longest sequence in tokens")
    return found


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """Tokens that end an answer, as generation_config.json and config.json name them; the tokenizer may know one more."""
    described = [read_config(folder)]
    described.append(described[0].get("text_config") or {})
    with suppress(FileNotFoundError):
        described.insert(0, json.loads((folder / "generation_config.json").read_bytes()))
    found = [part.get("eos_token_id") for part in described]
    flat = [token for ids in found for token in (ids if isinstance(ids, list) else [ids])]
    return tuple(dict.fromkeys(int(token) for token in flat if token is not None))
