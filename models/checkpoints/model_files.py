"""Which file of a model's folder is what: weights and their index, configuration, tokenizer, image processor, code, card. Names only, no
torch, and no content of the files.
"""

from __future__ import annotations

from pathlib import Path

CARD_FILE = "card.json"
"""Of our own: where a checkpoint is from (models/checkpoints/checkpoint.py)."""
CONFIG_FILE = "config.json"

WEIGHT_SUFFIX = ".safetensors"
SINGLE_FILE = f"model{WEIGHT_SUFFIX}"
INDEX_FILE = f"{SINGLE_FILE}.index.json"
"""Names the shards, where the weights are not in one file."""
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CONFIG_FILE, "adapter_model.safetensors", "adapter_model.bin")
"""Any of them makes a folder a LoRA adapter."""

FAST_TOKENIZER_FILE = "tokenizer.json"
TOKENIZERS = (FAST_TOKENIZER_FILE, "vocab.json", "tokenizer.model")
"""A folder without any of them has no tokenizer."""
TOKENIZER_FILES = (*TOKENIZERS, "merges.txt", "vocab.txt", "chat_template.jinja")
"""All that decide which ids a conversation becomes."""

IMAGE_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Where the bounds of a picture are; the second holds the first as a part."""
PROCESSOR_FILES = (*IMAGE_PROCESSOR_FILES, "video_preprocessor_config.json")

SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Of configurations, tokenizers and chat templates."""
CODE_SUFFIX = ".py"
TRAINER_STATE_FILE = "trainer_state.json"
_INDEX_ENDING = ".index.json"
HUB_PATTERNS = (f"*{WEIGHT_SUFFIX}", *(f"*{suffix}" for suffix in SMALL_SUFFIXES))
"""What is downloaded of a model: nothing that can run when it is opened, so no pickles and no code."""


def companions(folder: Path, *, code: bool) -> list[Path]:
    """The files to copy along when a model's weights are written again, by name: configuration, tokenizer, processors, chat template, and
    the model's `code` where that is wanted. Not weights in any format nor an index of them, which would be the old ones, nor a card or a
    trainer's state, which describe another run."""
    suffixes = (*SMALL_SUFFIXES, CODE_SUFFIX) if code else SMALL_SUFFIXES
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in suffixes
        and path.is_file()
        and path.name not in (CARD_FILE, TRAINER_STATE_FILE)
        and not path.name.endswith(_INDEX_ENDING)
    ]


def is_plain_name(name: str) -> bool:
    """Whether a name is one of a file in a folder, and not a way to another folder."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def links_out(folder: Path) -> list[Path]:
    """What of a model's folder is a link that leads out of it: to open it is to read a file that is not the model's. A snapshot of the
    hub's cache consists of links to the blobs beside it."""
    places = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        places.append(folder.resolve().parent.parent / "blobs")
    links = (path for path in sorted(folder.glob("*")) if path.is_symlink())
    return [path for path in links if not any(path.resolve().is_relative_to(place) for place in places)]


def is_tokenizer_there(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)
