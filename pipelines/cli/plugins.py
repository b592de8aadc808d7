"""`flywheel init` and `flywheel check`: plug-ins of your own. What they do is pipelines/plugins'."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pipelines.cli.options import console


def init(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="task-source, judge, grammar, harness, importer or profile.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and _.")],
    folder: Annotated[Path, typer.Option(help="Where to write it.")] = Path(),
) -> None:
    """Write a small plug-in, or a profile, that works as it stands, with its test: something to start from (docs/plugins.md).

    flywheel init task-source shop

    flywheel init judge brief --folder judges
    """
    from pipelines.plugins.scaffold import NEXT, write

    for path in write(kind, name, folder):
        console.print(f"wrote {escape(str(path))}")
    console.print("next:" if folder == Path() else f"next, in {escape(str(folder))}:")
    for command in NEXT[kind]:
        console.print(f"  {command.format(name=name)}")


def check(
    reference: Annotated[str, typer.Argument(help="FILE.py:ATTRIBUTE, MODULE:ATTRIBUTE, a judge's address, or a registered name.")],
    files: Annotated[list[Path] | None, typer.Argument(help="For an importer: files of its format.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="For a task source: instances of each task that are played.")] = 2,
) -> None:
    """Check that a plug-in meets the contract of its kind. Exit status 1 where it does not.

    Of a task source a few tasks are played in live sessions: resets repeat, the oracle solves, doing nothing is not paid. A
    harness plays an episode with a model that knows nothing.
    """
    from pipelines.plugins.conformance import check as checks

    is_kept = True
    for each in checks(reference, Path.cwd(), files or (), num_seeds=seeds):
        is_kept = is_kept and not each.problem
        console.print(
            f"[red]no[/red]  {escape(each.promise)}: {escape(each.problem)}"
            if each.problem
            else f"[green]yes[/green] {escape(each.promise)}"
        )
    if not is_kept:
        raise typer.Exit(1)
