"""Merging checkpoints, tensor by tensor from disk to disk: the entrance to models/merging. No torch, no model, no architecture table.

Parents must come from one checkpoint: the common ancestor is what keeps the path between them flat (UI-TARS-2, arXiv 2509.02544, section
on parameter interpolation). How well a mixture does is for the caller to measure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from models.checkpoints import checkpoint
from models.checkpoints.checkpoint import Card
from models.checkpoints.model_files import INDEX_FILE, companions
from models.merging.config import MethodConfig
from models.merging.io import TensorJob, run
from models.merging.methods import METHODS
from models.merging.plan import MergePlan, plan_merge
from warehouse.core.disk import storage_full

MAX_THREADS = 4


def merge(
    parents: Sequence[Path],
    weights: Sequence[float],
    output: Path,
    config: MethodConfig | None = None,
    *,
    base: Path | None = None,
    stage: str = "merged_policy",
    iteration: str | None = None,
    check_ancestry: bool = True,
    num_threads: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Card:
    """Write the merge of `parents` as the checkpoint `output` and return its card (`iteration`: by default the parents' newest).

    The first parent gives layout, dtypes, metadata, configuration and tokenizer. The arithmetic is in float32 (float64 for F64), rounded
    once at the end. At a corner of the simplex, and wherever all parents (and the base) agree, the bytes are the parents' own. The same
    call gives the same bytes on any number of threads. `output` appears whole or not at all. `base`, for the methods of task vectors, is
    the checkpoint that all parents were trained from. Without `check_ancestry` folders that have no card are taken too.
    Raises MergeError when the parents do not fit together, CheckpointError when one cannot be read, StorageFull.
    """
    plan = plan_merge(parents, weights, config or MethodConfig(), base, check_ancestry=check_ancestry)
    return carry_out(plan, output, stage=stage, iteration=iteration, num_threads=num_threads, advance=advance)


def carry_out(
    plan: MergePlan,
    output: Path,
    *,
    stage: str = "merged_policy",
    iteration: str | None = None,
    num_threads: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Card:
    """Carry out a plan; see `merge`. `advance` is called, from any thread, with the number of bytes of weights written."""
    check_disk_space(plan, output)
    method = METHODS[plan.config.method]

    def merge_tensor(job: TensorJob) -> None:
        method.merge_tensor(job, plan.used_weights, plan.config)

    def fill(staging: Path) -> None:
        first = plan.parents[0]
        index = first.folder / INDEX_FILE  # the merge has the first parent's layout
        for path in [*companions(first.folder, code=True), *([index] if index.is_file() else [])]:
            shutil.copyfile(path, staging / path.name)
        for file in first.layout.files:
            path = staging / file.name
            path.write_bytes(file.header)
            os.truncate(path, max([len(file.header), *(tensor.end for tensor in file.tensors)]))
        threads = num_threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        run(plan.tensors, staging, merge_tensor, num_threads=threads, advance=advance or (lambda num_bytes: None))

    shares = plan.shares
    settings = {name: getattr(plan.config, name) for name in method.parameters}
    based = {} if plan.base is None else {"base": plan.base.name}
    return checkpoint.write(
        output,
        fill,
        stage=stage,
        iteration=iteration or max((parent.card.iteration for parent in plan.parents if parent.card is not None), default="0000"),
        parents=tuple(dict.fromkeys([*shares, *based.values()])),
        config={"method": plan.config.method, "weights": shares, **based, **settings},
    )


def check_disk_space(plan: MergePlan, output: Path) -> None:
    """Raise StorageFull when the disk of `output` has no room for what is planned."""
    place = next(folder for folder in output.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    if free < plan.num_bytes:
        raise storage_full(f"the merge {output}", output, wanted_bytes=plan.num_bytes, then="merge again, or name a folder on another disk")
