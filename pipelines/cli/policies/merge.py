"""`flywheel merge`: its options. What it does is pipelines/stages/merge_checkpoints.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import HomeOption, console, home_of, warehouse_of


def merge(
    parents: Annotated[list[str], typer.Argument(help="Checkpoint ids, ITERATION/STAGE, `released`, or folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write: new, empty, or a checkpoint to replace.")],
    method: Annotated[
        str, typer.Option(help="linear, slerp, task_arithmetic, ties, dare_linear or dare_ties (docs/merging.md).")
    ] = "linear",
    weights: Annotated[
        str | None, typer.Option(help="One for each parent, comma-separated; they sum to 1 for linear and slerp \\[default: equal, sum 1].")
    ] = None,
    base: Annotated[str | None, typer.Option(help="What the parents were trained from: task_arithmetic, ties and dare need it.")] = None,
    density: Annotated[float, typer.Option(help="ties, dare: share of each parent's changes that is kept.")] = 0.5,
    scale: Annotated[float, typer.Option(help="With a base: factor on the merged changes.")] = 1.0,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="With a base: divide by the weights \\[default: ties yes, others no].")
    ] = None,
    seed: Annotated[int, typer.Option(help="dare: seed of the random drop.")] = 0,
    fused: Annotated[bool, typer.Option("--fused", help="linear: round as mergekit does on a CPU, bit for bit.")] = False,
    any_ancestry: Annotated[
        bool, typer.Option("--any-ancestry", help="Take checkpoints of unknown origin: folders without a card.json of ours.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads \\[default: one per core, up to 4].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and write nothing.")] = False,
    home: HomeOption = None,
) -> None:
    """Merge checkpoints into one, out of core: safetensors of any model, a few MB of memory, no GPU.

    flywheel merge A B -o OUT --weights 0.3,0.7

    flywheel merge A B C --method ties --density 0.5 --base SFT -o OUT
    """
    from pipelines.stages.merge_checkpoints import merge_checkpoints, merge_config

    config = merge_config(method=method, density=density, scale=scale, normalize=normalize, seed=seed, fused=fused)

    def find(name: str) -> Path:
        from pipelines.cli.data.queries import checkpoint_folder

        return checkpoint_folder(warehouse_of(home_of(home)), name)

    card = merge_checkpoints(
        find, parents, output, weights, config, base, console, check_ancestry=not any_ancestry, num_threads=threads, dry_run=dry_run
    )
    if card is not None:
        from pipelines.orchestration.reported_changes import report_merge

        report_merge(home_of(home), card, output, console)
