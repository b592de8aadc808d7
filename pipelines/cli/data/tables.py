"""`flywheel sql`, `lineage`, `export`, `replay`, `withdraw`, `restore`: what reads the tables of a home or changes them. What each does
is queries.py's and replay/'s. What brings data in is imports.py's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsOfOption, HomeOption, console, made_home, warehouse_of


def sql(
    query: Annotated[str, typer.Argument(help='SQL over the tables, e.g. "from episodes limit 5".')],
    as_of: AsOfOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    home: HomeOption = None,
) -> None:
    """Query every table with DuckDB, now or as of an iteration."""
    from pipelines.cli.data.queries import run_query

    run_query(warehouse_of(made_home(home)), query, as_of, as_json, console)


def lineage(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A checkpoint, episode, sample, dataset, task or screenshot id, ITERATION/STAGE, `released`, or a task's name.",
        ),
    ],
    direction: Annotated[str, typer.Option(help="up: what it was made from; down: what was made from it; both.")] = "up",
    depth: Annotated[int | None, typer.Option(min=1, help="How many generations \\[default: all].")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Follow everything \\[default: the first three of many alike].")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write a drawing.")] = None,
    mermaid: Annotated[Path | None, typer.Option(help="Write Mermaid text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nodes and edges as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """From a checkpoint to each sample, episode, step and task behind it, or forward again."""
    from pipelines.cli.data.queries import show_lineage

    warehouse = warehouse_of(made_home(home))
    show_lineage(warehouse, identity, direction, depth, svg, mermaid, console, show_all=show_all, as_json=as_json)


def export(
    output: Annotated[Path, typer.Argument(help="Folder or file to write.")],
    format_: Annotated[str, typer.Option("--format", help="trl, llama-factory, sharegpt, parquet or duckdb.")] = "trl",
    dataset: Annotated[str, typer.Option(help="sft, ct, or a dataset id; for parquet also all: every table.")] = "sft",
    as_of: AsOfOption = None,
    home: HomeOption = None,
) -> None:
    """Write samples for TRL, LLaMA-Factory or ShareGPT readers or as Parquet, or every table as one DuckDB file."""
    from pipelines.cli.data.queries import export_data

    export_data(warehouse_of(made_home(home)), output, format_, dataset, as_of, console)


def replay(
    episode: Annotated[str, typer.Argument(help="An episode's id, or an unambiguous prefix of it.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with thoughts, actions and screens.")] = None,
    webp: Annotated[Path | None, typer.Option(help="Write an animated WebP.")] = None,
    mp4: Annotated[Path | None, typer.Option(help="Write an MP4, where ffmpeg is installed.")] = None,
    run_: Annotated[bool, typer.Option("--run/--no-run", help="Replay the episode, or only write what was stored.")] = True,
    url: Annotated[
        str | None, typer.Option(help="Replay on a session of this sandbox server \\[default: a session of this process].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Repeat a stored episode's actions on a live session and verify its reward; write it as a page or a film.

    Exit status: 0 when reward and pixels are as recorded (or no screens were kept), 3 when pixels differ, 4 when the reward does.
    """
    from pipelines.replay.command import replay_episode

    warehouse = warehouse_of(made_home(home))
    sys.exit(replay_episode(warehouse, episode, console, live=run_, html=html, webp=webp, mp4=mp4, url=url, as_json=as_json))


def withdraw(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Samples or annotations, by id or an unambiguous prefix of it.")
    ] = None,
    iteration: Annotated[
        str | None, typer.Option(help="The first iteration that --as-of shows without them \\[default: the newest].")
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Then erase everything ever withdrawn from the disk, in every version of its table.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Purge without asking.")] = False,
    home: HomeOption = None,
) -> None:
    """Withdraw samples or annotations: no later dataset holds them, nor the steps that an annotation had corrected.

    What they were stays in the older versions of the tables until it is purged. A purge also empties recordings of people's own work that
    `flywheel annotate withdraw`, or a page, took back. Checkpoints that have learned from them stay as they are:
    `flywheel lineage ID --direction down` names them. Neither can be undone.
    """
    from pipelines.cli.data.queries import withdraw_rows
    from pipelines.orchestration.reported_changes import reported

    def ask(num_rows: int, num_recordings: int) -> None:
        held = f"; withdrawn recordings on the annotation server: {num_recordings}" if num_recordings else ""
        if not yes:
            typer.confirm(f"Withdrawn rows to erase for good: {num_rows}{held}. Go on?", abort=True)

    warehouse = warehouse_of(made_home(home))
    with reported(warehouse, "flywheel withdraw", console):
        withdraw_rows(warehouse, ids or [], iteration, console, ask_to_purge=ask if purge else None)


def restore(
    table: Annotated[str, typer.Argument(help="A table, e.g. sft_samples.")],
    version: Annotated[int | None, typer.Argument(help="Its version to go back to \\[default: list the versions].")] = None,
    home: HomeOption = None,
) -> None:
    """Restore a table to an older version, stored as a new version: for rows that something else has damaged."""
    from pipelines.cli.data.queries import restore_table
    from pipelines.orchestration.reported_changes import reported

    warehouse = warehouse_of(made_home(home))
    with reported(warehouse, f"flywheel restore {table}", console):
        restore_table(warehouse, table, version, console)
