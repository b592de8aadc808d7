"""What is checked before a byte is written: that the parents fit together, and where each tensor of the result comes from.

No architecture is known here. Tensors are matched by name; one that some parents hold and others leave out (tied weights, which
save_pretrained stores once and other programs twice) is recognised by its content, and goes where the first parent has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoints import checkpoint
from models.checkpoints.checkpoint import Card
from models.checkpoints.model_files import ADAPTER_FILES, CARD_FILE, CONFIG_FILE, TOKENIZER_FILES
from models.checkpoints.safetensors_stream import Layout, TensorInfo, read_layout
from models.merging.config import MethodConfig
from models.merging.dtype_codec import Bytes
from models.merging.io import Span, TensorPlan
from models.merging.methods import METHODS
from models.merging.weights import Weights, check_weights
from warehouse.core.errors import MergeError

_TOKENIZER_STATE = ("truncation", "padding")
"""What tokenizer.json remembers of its last use; it changes no token."""
_CONFIG_KEYS_IGNORED = {"_name_or_path", "transformers_version", "use_cache"}
_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A parent or the base: its folder, its name on the merged card, what it was made from (None: unknown), its weight files."""

    folder: Path
    name: str
    card: Card | None
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge that can be carried out. `tensors` are those of the first parent, in its layout; parents without a share are not read."""

    config: MethodConfig
    weights: Weights
    parents: tuple[Source, ...]
    base: Source | None
    used_weights: Weights
    tensors: tuple[TensorPlan, ...]

    @property
    def num_bytes(self) -> int:
        return sum(plan.tensor.end - plan.tensor.start for plan in self.tensors)

    @property
    def shares(self) -> dict[str, float]:
        """Weight by the parents' names; of one that is named twice, the sum."""
        found: dict[str, float] = {}
        for parent, weight in zip(self.parents, self.weights, strict=True):
            found[parent.name] = found.get(parent.name, 0.0) + weight
        return found


def plan_merge(
    parents: Sequence[Path], weights: Sequence[float], config: MethodConfig, base: Path | None, *, check_ancestry: bool
) -> MergePlan:
    """Check everything that can be known before. Raises MergeError when the parents do not fit together, CheckpointError when one cannot
    be read."""
    method = METHODS[config.method]
    values = check_weights(weights, len(parents), on_simplex=method.needs_simplex)
    if method.needs_base and base is None:
        raise MergeError(
            f"method {config.method} needs a base, the checkpoint that all parents were trained from: give it as the base, or use linear"
        )
    sources = [_open(parent, check_ancestry) for parent in parents]
    root = _open(base, check_ancestry) if base is not None and method.needs_base else None
    everyone = sources if root is None else [*sources, root]
    if check_ancestry:
        _check_ancestry(sources, root)
    _check_tokenizers([source.folder for source in everyone])
    _check_configs([source.folder for source in everyone])
    aliases = _aliases([source.layout for source in everyone])
    _check_tensors([source.layout for source in everyone], aliases)
    used = [k for k, value in enumerate(values) if value != 0]
    tensors = tuple(
        TensorPlan(
            tensor=tensor,
            parents=tuple(_place(sources[k].layout, tensor.name, aliases) for k in used),
            base=None if root is None else _place(root.layout, tensor.name, aliases),
        )
        for tensor in sources[0].layout.tensors.values()
    )
    return MergePlan(
        config=config, weights=values, parents=tuple(sources), base=root, used_weights=tuple(values[k] for k in used), tensors=tensors
    )


def _open(folder: Path, check_ancestry: bool) -> Source:
    if any((folder / name).is_file() for name in ADAPTER_FILES):
        raise MergeError(
            f"{folder} is a LoRA adapter, not a checkpoint, and averaging its two factors does not average their product: merge it into "
            "its base model first (peft: model.merge_and_unload().save_pretrained(FOLDER)) and give that folder"
        )
    card = checkpoint.read_card(folder) if check_ancestry or (folder / CARD_FILE).is_file() else None
    layout = read_layout(folder)
    small = next((tensor for tensor in layout.tensors.values() if tensor.dtype.startswith("F8") or tensor.dtype.startswith("F4")), None)
    if small is not None:
        raise MergeError(
            f"tensor {small.name} of {folder} is {small.dtype}, whose scale is stored elsewhere, so it cannot be averaged: merge the BF16 "
            "checkpoints and quantise the result"
        )
    return Source(folder=folder, name=card.checkpoint_id if card is not None else folder.resolve().name, card=card, layout=layout)


def _check_ancestry(sources: Sequence[Source], base: Source | None) -> None:
    """All parents come from one checkpoint: a direct parent of each, or one of them itself; and that is the base, if there is one."""
    lines = [{source.card.checkpoint_id, *source.card.parents} for source in sources if source.card is not None]
    known = "; ".join(
        f"{source.folder.name}: {source.card.checkpoint_id} from {list(source.card.parents) or 'nothing'}"
        for source in sources
        if source.card is not None
    )
    shared = set.intersection(*lines)
    if not shared:
        raise MergeError(f"the parents were not trained from one checkpoint ({known}): merge only specialists of the same SFT checkpoint")
    if base is not None and base.name not in shared:
        raise MergeError(
            f"the parents were not trained from the base {base.folder.name} ({base.name}; {known}): use {' or '.join(sorted(shared))}"
        )


def _check_tokenizers(folders: Sequence[Path]) -> None:
    for name in TOKENIZER_FILES:
        contents = [(folder / name).read_bytes() if (folder / name).is_file() else None for folder in folders]
        for folder, content in zip(folders[1:], contents[1:], strict=True):
            if content != contents[0] and _without_state(content) != _without_state(contents[0]):
                raise MergeError(f"{name} of {folder} differs from that of {folders[0]}: merge only checkpoints with the same tokenizer")


def _without_state(content: bytes | None) -> Any:
    """A tokenizer file without what its last use left in it; other files as they are."""
    try:
        value = json.loads(content) if content is not None else None
    except ValueError:
        return content
    return {key: part for key, part in value.items() if key not in _TOKENIZER_STATE} if isinstance(value, dict) else content


def _check_configs(folders: Sequence[Path]) -> None:
    def read(folder: Path) -> dict[str, Any]:
        try:
            config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text())
        except (OSError, ValueError) as error:
            raise MergeError(f"{folder / CONFIG_FILE} cannot be read ({error}): give a folder written by save_pretrained") from error
        if "quantization_config" in config:
            raise MergeError(f"{folder} is quantised (config.json has a quantization_config): merge the checkpoints it was made from")
        kept: dict[str, Any] = _without_ignored(config)
        return kept

    first = read(folders[0])
    for folder in folders[1:]:
        other = read(folder)
        different = sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
        if different:
            shown = ", ".join(f"{key}: {first.get(key)!r} and {other.get(key)!r}" for key in different[:5])
            raise MergeError(f"config.json of {folder} differs from that of {folders[0]} ({shown}): merge only the same architecture")


def _without_ignored(value: Any) -> Any:
    """Configurations of parts (text, vision) lie inside each other."""
    if isinstance(value, dict):
        return {key: _without_ignored(part) for key, part in value.items() if key not in _CONFIG_KEYS_IGNORED}
    return value


def _aliases(layouts: Sequence[Layout]) -> dict[str, str]:
    """Tensors that some leave out, and for each the tensor that all have and that holds the same bytes wherever both exist. Raises
    MergeError for one that has no such duplicate."""
    names = [layout.tensors.keys() for layout in layouts]
    common = set.intersection(*(set(of) for of in names))
    aliases = {}
    for odd in sorted(set.union(*(set(of) for of in names)) - common):
        holders = [layout for layout in layouts if odd in layout.tensors]
        duplicate = next((name for name in sorted(common) if all(_hold_equal(layout, odd, name) for layout in holders)), None)
        if duplicate is None:
            without = next(layout for layout in layouts if odd not in layout.tensors)
            odds = sorted(holders[0].tensors.keys() ^ without.tensors.keys())
            raise MergeError(
                f"{holders[0].folder} and {without.folder} hold different tensors (only one has {odds[:5]}): use one architecture"
            )
        aliases[odd] = duplicate
    return aliases


def _hold_equal(layout: Layout, one: str, other: str) -> bool:
    first, second = layout.tensors[one], layout.tensors[other]
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    with (layout.folder / first.file).open("rb") as a, (layout.folder / second.file).open("rb") as b:
        spans = [Span(descriptor=file.fileno(), path=layout.folder, start=t.start) for file, t in ((a, first), (b, second))]
        num_bytes = first.end - first.start
        for offset in range(0, num_bytes, _COMPARED_BYTES):
            pair: list[Bytes] = [np.empty(min(_COMPARED_BYTES, num_bytes - offset), dtype=np.uint8) for _ in spans]
            for span, into in zip(spans, pair, strict=True):
                span.read(offset, into)
            if not np.array_equal(pair[0], pair[1]):
                return False
    return True


def _check_tensors(layouts: Sequence[Layout], aliases: dict[str, str]) -> None:
    for name, tensor in layouts[0].tensors.items():
        for layout in layouts[1:]:
            other = _resolve(layout, name, aliases)
            if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
                raise MergeError(
                    f"tensor {name} is {tensor.dtype}{list(tensor.shape)} in {layouts[0].folder} and "
                    f"{other.dtype}{list(other.shape)} in {layout.folder}: all parents need the same type and shape"
                )


def _resolve(layout: Layout, name: str, aliases: dict[str, str]) -> TensorInfo:
    return layout.tensors[name if name in layout.tensors else aliases[name]]


def _place(layout: Layout, name: str, aliases: dict[str, str]) -> tuple[Path, int]:
    tensor = _resolve(layout, name, aliases)
    return layout.folder / tensor.file, tensor.start
