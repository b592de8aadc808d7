"""Merging checkpoints by linear interpolation, tensor by tensor from disk to disk, and the choice among weightings. No torch.

theta_merge = sum_k alpha_k theta_k with alpha on the simplex, all theta_k trained from the same checkpoint (UI-TARS-2, arXiv 2509.02544,
section on parameter interpolation; the common ancestor is what keeps the path between them flat). How well a weighting does is for the
caller to measure.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from models import checkpoint
from models.checkpoint import Card
from models.safetensors_stream import FLOAT_TYPES, Layout, Reader, TensorInfo, from_float, read_layout, to_float
from warehouse.errors import MergeError

Weights = tuple[float, ...]
SIMPLEX_TOLERANCE = 1e-6
PIECE_BYTES = 1 << 19
"""Bytes of a tensor worked on at once: small enough that every intermediate result stays in a core's cache."""

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "chat_template.jinja")
_CONFIG_KEYS_IGNORED = {"_name_or_path", "transformers_version"}


def check_weights(weights: Sequence[float], num_parents: int) -> Weights:
    """The weights as floats if they are `num_parents` numbers on the simplex, else MergeError."""
    values = tuple(float(weight) for weight in weights)
    if len(values) != num_parents or num_parents < 1:
        raise MergeError(f"{len(values)} weights for {num_parents} parents: give one weight a parent, and at least one parent")
    if not all(math.isfinite(value) and value >= 0 for value in values) or abs(sum(values) - 1) > SIMPLEX_TOLERANCE:
        raise MergeError(f"weights {list(values)} are not on the simplex: each must be 0 or more and their sum 1 (it is {sum(values):.6g})")
    return values


def merge_linear(
    parents: Sequence[Path], weights: Sequence[float], output: Path, *, stage: str = "merged_policy", iteration: str | None = None
) -> Card:
    """Write sum_k weights[k] * parents[k] as the checkpoint `output` and return its card (`iteration`: by default the parents' newest).

    The first parent gives layout, dtypes, metadata, configuration and tokenizer; sums are in float32 (float64 for F64), rounded once at
    the end. At a corner of the simplex, and wherever all parents agree, the bytes are the parents' own. `output` appears whole or
    not at all.
    Raises MergeError when the parents do not fit together, CheckpointError when one cannot be read.
    """
    values = check_weights(weights, len(parents))
    cards = [checkpoint.read_card(parent) for parent in parents]
    layouts = [read_layout(parent) for parent in parents]
    _check_ancestry(parents, cards)
    _check_tokenizers(parents)
    _check_configs(parents)
    _check_tensors(layouts)
    shares: dict[str, float] = {}
    for card, value in zip(cards, values, strict=True):
        shares[card.checkpoint_id] = shares.get(card.checkpoint_id, 0.0) + value
    return checkpoint.write(
        output,
        lambda staging: _fill(staging, parents[0], layouts, values),
        stage=stage,
        iteration=iteration or max(card.iteration for card in cards),
        parents=tuple(shares),
        config={"method": "linear", "weights": shares},
    )


def _fill(staging: Path, first: Path, layouts: Sequence[Layout], weights: Weights) -> None:
    _copy_companions(first, staging, layouts[0])
    used = [k for k, weight in enumerate(weights) if weight > 0]
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(layouts[k], PIECE_BYTES)) for k in used]
        for file in layouts[0].files:
            with (staging / file.name).open("wb") as out:
                out.write(file.header)
                for tensor in file.tensors:
                    _merge_tensor(out, tensor, readers, [weights[k] for k in used])


def _merge_tensor(out: BinaryIO, tensor: TensorInfo, readers: Sequence[Reader], weights: Sequence[float]) -> None:
    for pieces in zip(*(reader.pieces(tensor.name) for reader in readers), strict=True):
        if all(piece == pieces[0] for piece in pieces[1:]):
            out.write(pieces[0])
        elif tensor.dtype not in FLOAT_TYPES:
            raise MergeError(
                f"tensor {tensor.name} of type {tensor.dtype} differs between the parents: only {sorted(FLOAT_TYPES)} can be averaged"
            )
        else:
            out.write(_weighted_sum(pieces, weights, tensor.dtype).data)


def _weighted_sum(pieces: Sequence[memoryview], weights: Sequence[float], dtype: str) -> NDArray[Any]:
    accumulate = np.float64 if dtype == "F64" else np.float32
    total = to_float(pieces[0], dtype) * accumulate(weights[0])
    scratch = np.empty_like(total)
    for piece, weight in zip(pieces[1:], weights[1:], strict=True):
        total += np.multiply(to_float(piece, dtype), accumulate(weight), out=scratch)
    return from_float(total, dtype)


def _check_ancestry(parents: Sequence[Path], cards: Sequence[Card]) -> None:
    """All parents come from one checkpoint: a direct parent of each, or one of them itself."""
    lines = [{card.checkpoint_id, *card.parents} for card in cards]
    if not set.intersection(*lines):
        known = "; ".join(
            f"{path.name}: {card.checkpoint_id} from {list(card.parents) or 'nothing'}" for path, card in zip(parents, cards, strict=True)
        )
        raise MergeError(
            f"the parents share no checkpoint they were trained from ({known}): merge only specialists of the same SFT checkpoint"
        )


def _check_tokenizers(parents: Sequence[Path]) -> None:
    for name in _TOKENIZER_FILES:
        contents = [(parent / name).read_bytes() if (parent / name).is_file() else None for parent in parents]
        for parent, content in zip(parents[1:], contents[1:], strict=True):
            if content != contents[0]:
                raise MergeError(
                    f"{name} of {parent} is not that of {parents[0]}: token ids would change their meaning; merge only one tokenizer"
                )


def _check_configs(parents: Sequence[Path]) -> None:
    def read(parent: Path) -> dict[str, Any]:
        try:
            config: dict[str, Any] = json.loads((parent / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise MergeError(f"{parent / 'config.json'} cannot be read ({error}): give a folder written by save_pretrained") from error
        return {key: value for key, value in config.items() if key not in _CONFIG_KEYS_IGNORED}

    first = read(parents[0])
    for parent in parents[1:]:
        other = read(parent)
        different = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
        if different:
            shown = ", ".join(f"{key}: {first.get(key)!r} and {other.get(key)!r}" for key in different[:5])
            raise MergeError(f"config.json of {parent} differs from that of {parents[0]} ({shown}): merge only one architecture")


def _check_tensors(layouts: Sequence[Layout]) -> None:
    first = layouts[0].tensors
    for layout in layouts[1:]:
        other = layout.tensors
        if first.keys() != other.keys():
            odd = sorted(first.keys() ^ other.keys())
            raise MergeError(f"{layout.folder} and {layouts[0].folder} do not hold the same tensors; only one of them has {odd[:5]}")
        for name, tensor in first.items():
            if (tensor.dtype, tensor.shape) != (other[name].dtype, other[name].shape):
                raise MergeError(
                    f"tensor {name} is {tensor.dtype}{list(tensor.shape)} in {layouts[0].folder} and "
                    f"{other[name].dtype}{list(other[name].shape)} in {layout.folder}: all parents need one type and shape"
                )


def _copy_companions(parent: Path, staging: Path, layout: Layout) -> None:
    """Everything beside the weights: config, tokenizer, index. Not the card, which is new, and no folder."""
    weights = {file.name for file in layout.files}
    for path in sorted(parent.iterdir()):
        if path.is_file() and path.name not in weights and path.name != "card.json" and (path.suffix != ".safetensors"):
            shutil.copyfile(path, staging / path.name)


def simplex_grid(k: int, steps: int) -> Iterator[Weights]:
    """Every weighting of k parents in units of 1/steps: C(steps + k - 1, k - 1) of them, each summing to 1."""
    if k < 1 or steps < 1:
        raise MergeError(f"a grid over {k} parents in {steps} steps does not exist: both must be 1 or more")

    def compositions(parts: int, total: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (total,)
            return
        for first in range(total + 1):
            for rest in compositions(parts - 1, total - first):
                yield (first, *rest)

    for counts in compositions(k, steps):
        yield tuple(count / steps for count in counts)


def best_weights(scores: Mapping[Weights, float]) -> Weights:
    """The weighting with the highest score; among equals the most even one, which leans least on one specialist."""
    return max(scores, key=lambda weights: (scores[weights], -max(weights)))
