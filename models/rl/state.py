"""What a killed run resumes from: weights, optimizers and counters after a completed round, in safetensors and JSON.

Where processes share out what they train (models/rl/distributed/optimizers.py), each writes its own part, in a file `-0-of-2`, with its
part of the weights, and reads its own part of what any number of processes wrote. States are folders `round-0003`, written aside and
renamed, so one that exists is whole; the newest counts and older ones are removed. Random generators need no state: each round derives its
own from the run's seed (see trainer.py). Requests and episodes are kept by models/rl/rollouts/log.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from models.rl.distributed.optimizers import WEIGHT, Optimizer, Piece
from models.rl.value.learner import Gate
from models.training.adapters import trained_parameters
from warehouse.core.durable import sync
from warehouse.core.errors import CheckpointError

COUNTERS_FILE = "counters.json"


class Counters(BaseModel):
    """Everything small: `round_index` is the last completed round (one batch learned from), `version` how many of them changed the policy's
    weights; `metrics` and `policy_ids` hold one entry a round, `success_rates` one a task id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round_index: int = 0
    version: int = 0
    num_updates: int = 0
    gate: Gate = Gate()
    success_rates: dict[str, float] = {}
    metrics: tuple[dict[str, float], ...] = ()
    policy_ids: tuple[str, ...] = ()


def save_state(
    folder: Path,
    counters: Counters,
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    save_parts: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write the state of a completed round under `folder` and drop older ones. The weights of a module whose optimizer is shared out are
    written with it. `save_parts` has other processes write their parts (`save_optimizers`) into a folder, and returns when they have."""
    target = folder / f"round-{counters.round_index:04d}"
    aside = folder / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, module in modules.items():
        if name not in optimizers or optimizers[name].part is None:
            save_weights(module, aside / f"{name}.safetensors")
    save_optimizers(aside, optimizers)
    save_parts(aside)
    (aside / COUNTERS_FILE).write_text(counters.model_dump_json(), encoding="utf-8")
    for path in (*aside.iterdir(), aside):
        sync(path)
    if target.exists():  # a state of this round that was renamed but whose run died before it went on
        shutil.rmtree(target)
    aside.rename(target)
    sync(folder)
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def save_optimizers(folder: Path, optimizers: Mapping[str, Optimizer]) -> None:
    """Write this process's part of them."""
    for name, optimizer in optimizers.items():
        part = "" if optimizer.part is None else f"-{optimizer.part[0]}-of-{optimizer.part[1]}"
        save_file(optimizer.pieces(), str(folder / f"{name}.optimizer{part}.safetensors"))


def read_counters(folder: Path) -> Counters:
    """The counters of the newest state; fresh ones without a state. Raises CheckpointError on damaged ones."""
    newest = _newest(folder)
    if newest is None:
        return Counters()
    try:
        return Counters.model_validate_json((newest / COUNTERS_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(newest, error) from error


def load_state(folder: Path, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> Counters:
    """Fill modules, which are not shared out yet, and optimizers from the newest state; fresh counters without one. Raises
    CheckpointError on a damaged one."""
    counters, newest = read_counters(folder), _newest(folder)
    if newest is None:
        return counters
    try:
        for name, module in modules.items():
            if (whole := newest / f"{name}.safetensors").exists():
                load_weights(module, whole)
            else:
                _fill_weights(module, _pieces(_optimizer_files(newest, name)))
        for name, optimizer in optimizers.items():
            optimizer.fill(_pieces(_optimizer_files(newest, name)))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unreadable(newest, error) from error
    return counters


def load_optimizers(folder: Path, optimizers: Mapping[str, Optimizer]) -> None:
    """Fill optimizers from the newest state, where there is one, once its modules have their weights. Raises CheckpointError."""
    load_state(folder, {}, optimizers)


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("round-*"), default=None) if folder.is_dir() else None


def _unreadable(state: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"the training state {state} cannot be read ({error}): delete the run folder to start over")


def save_weights(module: nn.Module, path: Path) -> None:
    """All weights; of a module with frozen ones the others alone, since the frozen are the initial checkpoint's."""
    if _has_frozen(module):
        save_file({name: parameter.detach().contiguous() for name, parameter in _trained(module).items()}, path)
    else:
        save_model(module, str(path))


def load_weights(module: nn.Module, path: Path) -> None:
    if not _has_frozen(module):
        load_model(module, str(path))
        return
    tensors, trained = load_file(path), _trained(module)
    if tensors.keys() != trained.keys():
        raise ValueError(f"{path.name} does not match the trained weights: {sorted(tensors.keys() ^ trained.keys())[:5]}")
    module.load_state_dict(tensors, strict=False)


def _has_frozen(module: nn.Module) -> bool:
    return not all(parameter.requires_grad for parameter in module.parameters())


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _fill_weights(module: nn.Module, pieces: Iterator[Piece]) -> None:
    """Raises ValueError where weights are missing."""
    parameters = trained_parameters(module)
    missing = {index: parameter.numel() for index, parameter in enumerate(parameters)}
    for piece in pieces:
        if piece.key == WEIGHT:
            piece.put_into(parameters[piece.index].detach())
            missing[piece.index] -= piece.tensor.numel()
    if any(missing.values()):
        raise ValueError(f"weights are missing: {sum(missing.values())} elements")


def _optimizer_files(state: Path, name: str) -> list[Path]:
    """One, or those of all the parts. Raises ValueError where parts are missing."""
    files = sorted(state.glob(f"{name}.optimizer*.safetensors"))
    if not files or (len(files) > 1 and any(not file.stem.endswith(f"-of-{len(files)}") for file in files)):
        raise ValueError(f"parts of the optimizer are missing: {[file.name for file in files]}")
    return files


def _pieces(files: Sequence[Path]) -> Iterator[Piece]:
    """One after the other: no more than one is in memory."""
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  it is not a mapping
                yield Piece.named(name, tensors.get_tensor(name))
