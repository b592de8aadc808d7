"""Checkpoints on disk: ordinary `save_pretrained` folders with a `card.json` that says where they come from and what they contain.

A folder is written aside, flushed and renamed, so a reader sees a whole checkpoint or none. Its id is the hash of weights, configuration
and tokenizer: the same weights have the same id on every machine. Reading checks every file against the card. torch and transformers are
only imported by the functions that need them, so merging and reporting stay light.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from models.checkpoints.model_files import CARD_FILE, WEIGHT_SUFFIX, is_plain_name, links_out
from models.checkpoints.safetensors_stream import read_layout
from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.durable import make_folder, sync
from warehouse.core.errors import CheckpointError
from warehouse.core.identity import digests_id, file_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from models.families.chat import ChatCodec

Kind = Literal["model", "critic"]
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
READABLE = 0o644
"""The mode of a checkpoint's files, as of all files of a home, whose root decides who comes to them."""
VERSIONED_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


class Card(BaseModel):
    """What a checkpoint is and where it comes from. `files` maps every other file of the folder to the SHA-256 of its bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_id: Annotated[str, Field(description="hash of weights, configuration and tokenizer", pattern=r"^checkpoint-[0-9a-f]{16}$")]
    kind: Annotated[
        Kind, Field(description="model: one that answers; critic: one that estimates values", exclude_if=lambda kind: kind == "model")
    ] = "model"
    stage: Annotated[str, Field(description="what made it, e.g. sft_model")]
    iteration: Annotated[str, Field(description="0000 is the seed")]
    parents: Annotated[tuple[str, ...], Field(description="checkpoint ids it was made from")] = ()
    datasets: Annotated[tuple[str, ...], Field(description="dataset ids it learned from")] = ()
    config: Annotated[dict[str, Any], Field(description="configuration of the run")] = {}
    metrics: Annotated[dict[str, float], Field(description="closing metrics of the run")] = {}
    versions: Annotated[dict[str, str], Field(description="packages that wrote it")] = {}
    created_at: Annotated[datetime, Field(description="UTC; not part of the id")]
    files: Annotated[dict[str, str], Field(description="file name to SHA-256")]

    @field_validator("files")
    @classmethod
    def _files_lie_beside_it(cls, files: dict[str, str]) -> dict[str, str]:
        if climbing := [name for name in files if not is_plain_name(name)]:
            raise ValueError(f"file name {climbing[0][:80]!r}: a checkpoint's files lie beside its card, under plain names")
        return files


def write(
    folder: Path,
    fill: Callable[[Path], None],
    *,
    stage: str,
    iteration: str,
    parents: tuple[str, ...] = (),
    datasets: tuple[str, ...] = (),
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    kind: Kind = "model",
) -> Card:
    """Make a checkpoint of the files that `fill` writes into the folder it is handed; replaces what was at `folder`.

    Raises StorageFull when the disk is full; then `folder` is as it was before.
    """
    make_folder(folder.parent)
    aside = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        aside.mkdir()
        fill(aside)
        digests = {path.name: file_digest(path) for path in sorted(aside.iterdir()) if path.is_file()}
        card = Card(
            checkpoint_id=digests_id("checkpoint", digests.items()),
            kind=kind,
            stage=stage,
            iteration=iteration,
            parents=parents,
            datasets=datasets,
            config=dict(config or {}),
            metrics=dict(metrics or {}),
            created_at=datetime.now(UTC),
            versions={package: version(package) for package in VERSIONED_PACKAGES},
            files=digests,
        )
        (aside / CARD_FILE).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for path in aside.iterdir():
            # safetensors writes for the owner alone; whom the folder lets in may read it. What is linked is somebody else's.
            if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
                path.chmod(READABLE)
        for path in (*aside.iterdir(), aside):
            sync(path)
        move(aside, folder)
    except Exception as error:  # each library that writes here says it in an exception of its own
        if is_full_disk(error):
            raise storage_full(f"the checkpoint {folder}", folder.parent, error, then="run the stage again") from error
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return card


def save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast | ChatCodec,
    *,
    stage: str,
    iteration: str,
    parents: tuple[str, ...] = (),
    datasets: tuple[str, ...] = (),
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Card:
    """Write a model and its tokenizer (or the codec that has it) as a checkpoint: see `write`."""

    def fill(aside: Path) -> None:
        with quiet():
            model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)

    return write(folder, fill, stage=stage, iteration=iteration, parents=parents, datasets=datasets, config=config, metrics=metrics)


def move(source: Path, folder: Path) -> None:
    """Put a whole checkpoint where `folder` is, on the same file system. A folder cannot replace a filled one in one rename, so the old
    one steps aside first."""
    old = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.old"
    if folder.exists():
        folder.rename(old)
    source.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_card(folder: Path) -> Card:
    """The card of a checkpoint, unchecked against its files. Raises CheckpointError when it is missing or not a card."""
    path = folder / CARD_FILE
    try:
        return Card.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{path} is missing: {folder} is not a checkpoint, or was not written to the end. Run the stage that writes it again"
        ) from None
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a checkpoint card: {error}. Run the stage that writes it again") from error


def verify(folder: Path, *, weights: bool = True) -> Card:
    """The card of a checkpoint whose files are all there, in its folder and unchanged. Raises CheckpointError naming the first bad file.
    Without `weights` only the small files are read."""
    check_links(folder)
    card = read_card(folder)
    if not any(name.endswith(WEIGHT_SUFFIX) for name in card.files):
        raise CheckpointError(f"the card of {folder} lists no {WEIGHT_SUFFIX} file, so it has no weights: run stage {card.stage!r} again")
    for name, expected in card.files.items():
        if not weights and name.endswith(WEIGHT_SUFFIX):
            continue
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but the card of {card.checkpoint_id} lists it: run stage {card.stage!r} again")
        actual = file_digest(path)
        if actual != expected:
            raise CheckpointError(
                f"{path} ({path.stat().st_size} bytes) has SHA-256 {actual[:16]}…, but the card of {card.checkpoint_id} says "
                f"{expected[:16]}…: the file was truncated or changed. Run stage {card.stage!r} of iteration {card.iteration} again"
            )
    return card


def check_links(folder: Path) -> None:
    """Raises CheckpointError for a link that leads out of a model's folder."""
    if leading := links_out(folder):
        raise CheckpointError(f"{leading[0]} is a link to a file outside its folder: if the file is the model's, copy it into the folder")


def stored_dtype(folder: Path) -> str | None:
    """What a checkpoint's weights are stored in, as torch names it; None where they are of several types or of another one."""
    found = {tensor.dtype for tensor in read_layout(folder).tensors.values()}
    return _DTYPES.get(found.pop()) if len(found) == 1 else None


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The checked tokenizer of a checkpoint."""
    verify(folder)
    from transformers import AutoTokenizer

    import models.families.shift_qwen3  # noqa: F401  registers the model's kind, which AutoTokenizer looks up and would warn of

    return cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder))


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars for the few shards of a small model."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
