"""An existing model, imported as a checkpoint: its files copied or linked, its card written, its weights unchanged.

What a folder must hold to be taken: config.json, safetensors weights, a tokenizer. Nothing here trains or asks a model. Pickled weights
(`pytorch_model.bin`) are refused: they can run code when they are opened.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from models.checkpoints.checkpoint import Card, check_links, quiet, write
from models.checkpoints.model_files import (
    CARD_FILE,
    HUB_PATTERNS,
    IMAGE_PROCESSOR_FILES,
    INDEX_FILE,
    TOKENIZERS,
    companions,
    is_tokenizer_there,
)
from models.checkpoints.safetensors_stream import read_layout
from models.families.registry import end_token_ids, is_vision, load_policy, max_positions, read_config
from warehouse.core.errors import CheckpointError

QWEN_MIN_PIXELS = 56 * 56
"""Qwen2VLImageProcessor's own lower bound, where a configuration does not say."""


def fetch(model: str, revision: str | None) -> Path:
    """The folder of a model of the hub, downloaded where this machine has not got it yet (HF_HOME, HF_TOKEN and HF_HUB_OFFLINE count).
    Raises CheckpointError with the hub's own words."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(HUB_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"cannot download {model!r}{f' at {revision!r}' if revision else ''} from the hub: {error}. Check the name, the network and "
            "HF_TOKEN; or copy the folder to this machine and set policy.source=checkpoint"
        ) from error


def import_checkpoint(
    source: Path,
    output: Path,
    *,
    stage: str,
    iteration: str,
    dtype: str = "as stored",
    link: bool = False,
    max_image_pixels: int | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Card:
    """Write the checkpoint `output` from the model in the folder `source`. `origin` goes onto the card as its configuration.

    With `dtype` as stored the weights are the same bytes, copied or hard-linked; another one loads the whole model and saves it again.
    `max_image_pixels` is written into the image processor's configuration. Raises CheckpointError when the folder is not a complete model.
    """
    check_importable(source)
    must_load = dtype not in ("as stored", *stored_dtypes(source))
    made_from = dict(origin or {})

    def fill(aside: Path) -> None:
        _copy_small_files(source, aside)
        for file in read_layout(source).files:
            _place((source / file.name).resolve(), aside / file.name, link=link or must_load)
        if (source / INDEX_FILE).is_file():
            shutil.copyfile(source / INDEX_FILE, aside / INDEX_FILE)
        if max_image_pixels is not None:
            _limit_images(aside, max_image_pixels)

    card = write(output, fill, stage=stage, iteration=iteration, config=made_from)
    if not must_load:
        return card
    model = load_policy(output, dtype=dtype)

    def fill_converted(aside: Path) -> None:
        _copy_small_files(output, aside)
        with quiet():
            model.save_pretrained(aside)

    return write(output, fill_converted, stage=stage, iteration=iteration, config=made_from)


@contextmanager
def with_card(folder: Path) -> Iterator[Path]:
    """A model's folder as a checkpoint, for as long as the block lasts: itself where it has a card; else a temporary folder beside it with
    its small files, its weights as hard links (copied where there can be none), and a card. Raises CheckpointError when the folder is not a
    whole model."""
    if (folder / CARD_FILE).is_file():
        yield folder
        return
    check_importable(folder)

    def fill(aside: Path) -> None:
        _copy_small_files(folder, aside)
        for file in read_layout(folder).files:
            _place((folder / file.name).resolve(), aside / file.name, link=True)
        if (folder / INDEX_FILE).is_file():
            shutil.copyfile(folder / INDEX_FILE, aside / INDEX_FILE)

    beside = folder.resolve().parent
    with TemporaryDirectory(prefix=".flywheel-policy-", dir=beside if os.access(beside, os.W_OK) else None) as temporary:
        whole = Path(temporary) / (folder.resolve().name or "model")
        write(whole, fill, stage="given", iteration="0000", config={"source": str(folder.absolute())})
        yield whole


def assumed(whole: Path, folder: Path) -> str:
    """What was made of a folder without a card, in a sentence. `whole` is what `with_card` gave for it."""
    config = read_config(whole)
    kind = "a vision-language model" if is_vision(whole) else "a language model of text"
    ends = ", ".join(map(str, end_token_ids(whole))) or "the tokenizer's own"
    return (
        f"{folder} has no {CARD_FILE}: taken as {kind} ({config['model_type']}) with its own tokenizer and chat template, "
        f"{max_positions(whole)} positions, and end tokens {ends}; where it is from is not known"
    )


def check_importable(folder: Path) -> None:
    """Raises CheckpointError that says what a folder lacks to be imported."""
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}: set policy.model to a folder written by save_pretrained")
    check_links(folder)
    read_config(folder)
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"the weights of {folder} are {pickled[0]}, a pickle, which can run code when it is loaded: save the model again with "
            "save_pretrained, which writes safetensors"
        )
    read_layout(folder)
    if not is_tokenizer_there(folder):
        raise CheckpointError(f"{folder} has no tokenizer ({', '.join(TOKENIZERS)}): save the model's tokenizer into it")


def num_parameters(folder: Path) -> int:
    """Parameters of the weight files, counted from their headers."""
    return sum(math.prod(tensor.shape) for tensor in read_layout(folder).tensors.values())


def stored_dtypes(folder: Path) -> tuple[str, ...]:
    """The one floating type of the weight files, by its torch name; empty where there are several."""
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    found = {names.get(tensor.dtype, "") for tensor in read_layout(folder).tensors.values()} - {""}
    return tuple(found) if len(found) == 1 else ()


def _copy_small_files(source: Path, aside: Path) -> None:
    """All but code: what is taken in must not bring a program along."""
    for path in companions(source, code=False):
        shutil.copyfile(path, aside / path.name)


def _place(source: Path, target: Path, *, link: bool) -> None:
    """A weight file: linked where that is asked for and the file system can, else copied."""
    if link:
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    shutil.copyfile(source, target)


def _limit_images(folder: Path, max_pixels: int) -> None:
    """Write the largest area of a picture into the configuration of a Qwen2-VL image processor, which calls it `longest_edge`."""
    for name in IMAGE_PROCESSOR_FILES:
        path = folder / name
        if not path.is_file():
            continue
        whole = json.loads(path.read_text(encoding="utf-8"))
        processor = whole.get("image_processor", whole)
        if not str(processor.get("image_processor_type", "")).startswith("Qwen2VL"):
            continue
        size = processor.get("size") or {}
        smallest = size.get("shortest_edge", processor.get("min_pixels", QWEN_MIN_PIXELS))
        processor["size"] = {"shortest_edge": min(smallest, max_pixels), "longest_edge": max_pixels}
        processor.pop("min_pixels", None)
        processor.pop("max_pixels", None)
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        return
    raise CheckpointError(
        f"agent.max_image_pixels is {max_pixels}, but {folder.name} has no image processor of the Qwen2-VL type: leave it null"
    )
