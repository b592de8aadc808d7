"""What `flywheel merge` does: check everything, say what will be made, merge with a progress bar. Imports nothing heavy for folders."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from models.checkpoints.checkpoint import Card
from models.checkpoints.model_files import CARD_FILE
from models.merging.config import MethodConfig
from models.merging.merge import carry_out, check_disk_space
from models.merging.methods import METHODS
from models.merging.plan import MergePlan, plan_merge
from warehouse.core.errors import ConfigError, MergeError

FindCheckpoint = Callable[[str], Path]


def merge_config(**settings: object) -> MethodConfig:
    """The settings from flags. Raises ConfigError that says which flag is wrong."""
    try:
        return MethodConfig.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"--{problem['loc'][0]} {problem['input']!r}: {problem['msg']}") from error


def parse_weights(text: str | None, num_parents: int) -> list[float]:
    """Comma-separated weights; equal ones that sum to 1 where there are none. Raises ConfigError."""
    try:
        return [float(part) for part in text.split(",")] if text else [1 / num_parents] * num_parents
    except ValueError as error:
        raise ConfigError(f"--weights {text!r} is not a comma-separated list of numbers, e.g. 0.5,0.5") from error


def merge_checkpoints(
    find: FindCheckpoint,
    parents: list[str],
    output: Path,
    weights: str | None,
    config: MethodConfig,
    base: str | None,
    console: Console,
    *,
    check_ancestry: bool = True,
    num_threads: int | None = None,
    dry_run: bool = False,
) -> Card | None:
    """Merge and say what was made; None is a dry run. `find` gives the folder of a checkpoint that is not named by its folder.

    Raises MergeError, CheckpointError, StorageFull or ConfigError before anything is written.
    """
    shares = parse_weights(weights, len(parents))
    folders = [_folder(find, name) for name in parents]
    root = _folder(find, base) if base is not None else None
    plan = plan_merge(folders, shares, config, root, check_ancestry=check_ancestry)
    _check_output(output, [*folders, *([root] if root is not None else [])])
    check_disk_space(plan, output)
    _say(plan, console)
    if dry_run:
        console.print("everything fits; nothing was written (--dry-run)")
        return None
    columns = (TextColumn("merging"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _ended_in_order(), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("merging", total=plan.num_bytes)
        card = carry_out(plan, output, num_threads=num_threads, advance=lambda num_bytes: bar.advance(task, num_bytes))
    console.print(f"merged: {card.checkpoint_id} in {output}")
    return card


def _folder(find: FindCheckpoint, name: str) -> Path:
    folder = Path(name)
    return folder if folder.is_dir() and any(folder.iterdir()) else find(name)


def _check_output(output: Path, sources: list[Path]) -> None:
    """A merge replaces the checkpoint at its output, and must not replace anything else."""
    if any(output.resolve() == source.resolve() for source in sources):
        raise MergeError(f"--output {output} is one of the checkpoints to merge: name another folder")
    if output.exists() and not (output.is_dir() and ((output / CARD_FILE).is_file() or not any(output.iterdir()))):
        raise MergeError(f"--output {output} exists, is not a checkpoint and would be replaced: name a folder that is new or empty")


def _say(plan: MergePlan, console: Console) -> None:
    method = METHODS[plan.config.method]
    console.print(f"{plan.config.method}: {method.summary}", highlight=False)
    for parent, weight in zip(plan.parents, plan.weights, strict=True):
        console.print(f"  {weight:g} × {parent.name} ({parent.folder})", highlight=False, soft_wrap=True)
    if plan.base is not None:
        console.print(f"  base {plan.base.name} ({plan.base.folder})", highlight=False, soft_wrap=True)
    settings = ", ".join(f"{name} {getattr(plan.config, name)}" for name in method.parameters)
    num_files = len(plan.parents[0].layout.files)
    dtypes = "/".join(sorted({tensor.tensor.dtype for tensor in plan.tensors}))
    console.print(
        f"  {len(plan.tensors)} tensors, {dtypes}, {plan.num_bytes / 1e9:.3g} GB in {num_files} file{'s' * (num_files != 1)}"
        + (f"; {settings}" if settings else ""),
        highlight=False,
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends the merge as Ctrl-C does, so that what was half written is removed."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
