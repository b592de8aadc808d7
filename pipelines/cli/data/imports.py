"""`flywheel import …`: the commands that import your own data and tasks. What each does is pipelines/importing's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import HomeOption, console, home_of, made_home, warehouse_of

imports = typer.Typer(no_args_is_help=True, help="Import your own data and tasks (docs/importing.md).")


KeepPersonalData = Annotated[
    bool, typer.Option("--keep-personal-data", help="Store records with addresses, numbers or secrets too \\[default: withhold them].")
]
Scripts = Annotated[
    list[str] | None, typer.Option(help="Withhold what is not written in this script (Latin, Han, …); may be given several times.")
]

Licence = Annotated[
    str | None,
    typer.Option(
        "--licence",
        metavar="SPDX",
        help="Its licence, e.g. CC-BY-4.0; samples and dataset cards carry it \\[default: what the public collection says, else unknown].",
    ),
]


@imports.command("general")
def import_general(
    file: Annotated[Path, typer.Argument(help="JSON lines or Parquet of conversations.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the import; replaces an earlier one of that name \\[default: the file's].")
    ] = None,
    licence: Licence = None,
    keep_personal_data: KeepPersonalData = False,
    script: Scripts = None,
    home: HomeOption = None,
) -> None:
    """Import general chat and reasoning data, which is mixed into CT and SFT (docs/supervised.md).

    What is not a conversation, and what holds personal data, is named by file and line, kept aside under FLYWHEEL_HOME/imports, and
    counted.
    """
    from pipelines.importing.general import import_general_data
    from pipelines.importing.licences import checked
    from pipelines.importing.rows import ScreeningSettings, settings_of
    from pipelines.orchestration.reported_changes import reported

    settings = settings_of(ScreeningSettings, keep_personal_data=keep_personal_data, scripts=tuple(script or ()))
    warehouse = warehouse_of(home_of(home))
    with reported(warehouse, f"flywheel import general {file.name}", console):
        import_general_data(warehouse, file, name, console, settings, checked(licence))


@imports.command("manuals")
def import_manual_pages(
    paths: Annotated[list[Path], typer.Argument(help="Web pages and Markdown (.html, .md, gzipped too), or folders of them.")],
    licence: Annotated[
        str, typer.Option("--licence", metavar="SPDX", help="Their licence, e.g. GFDL-1.3; samples and dataset cards carry it.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the import; replaces an earlier one of that name \\[default: the first path's].")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="Leave out what is in another language (en, de, fr, …); may be given several times.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=32, help="Longest passage: longer sections are cut.")] = 400,
    keep_personal_data: KeepPersonalData = False,
    script: Scripts = None,
    home: HomeOption = None,
) -> None:
    """Import manuals and tutorials, web pages and Markdown, as texts that CT learns (docs/importing.md).

    Navigation and what stands on every page is left out. Passages that are too short, no running text, near-duplicates, or hold personal
    data are named by file, kept aside under FLYWHEEL_HOME/imports, and counted.
    """
    from pipelines.importing.licences import checked
    from pipelines.importing.manuals import ManualSettings, import_manuals
    from pipelines.importing.rows import settings_of
    from pipelines.orchestration.reported_changes import reported
    from warehouse.quality.texts import quality_for

    settings = settings_of(
        ManualSettings,
        keep_personal_data=keep_personal_data,
        scripts=tuple(script or ()),
        quality=quality_for(language or ()),
        max_tokens=max_tokens,
    )
    stated = checked(licence) or licence
    warehouse = warehouse_of(home_of(home))
    with reported(warehouse, f"flywheel import manuals {paths[0].name}", console):
        import_manuals(warehouse, paths, name, console, settings, licence=stated)


@imports.command("tasks")
def import_tasks(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="plain, osworld, android-world, mind2web or miniwob.")],
    files: Annotated[list[Path], typer.Argument(help="Files, or folders of files.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the set; replaces an earlier one of that name \\[default: the first file's].")
    ] = None,
    assets: Annotated[
        list[Path] | None, typer.Option(help="A folder of the files that tasks download or compare with; may be given several times.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Never train on any of it: for benchmarks \\[default: 80 % of the tasks are trained on].")
    ] = False,
    licence: Licence = None,
    check: Annotated[
        bool, typer.Option("--check", help="Set every task up once; one whose set-up fails, or that is solved already, does not run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be imported, and write nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every task that does not run, with its reasons.")] = False,
    home: HomeOption = None,
) -> None:
    """Import tasks as a set, which a profile names as `tasks.lists: ['imported:NAME']`.

    What can be mapped runs in the sandbox and has a verifier; the rest is kept and says why it does not run. Records are kept as they are.
    Importing the same again changes nothing.

    plain: tasks in our own schema, JSON lines or YAML. osworld: OSWorld's examples. android-world: task templates with parameters and
    checks. mind2web: lists of tasks on live sites. miniwob: names of environments.
    """
    from pipelines.importing.licences import checked
    from pipelines.importing.tasks import import_task_files

    import_task_files(
        home_of(home),
        format_,
        files,
        console,
        name=name,
        assets=assets or [],
        held_out=held_out,
        licence=checked(licence),
        check=check,
        dry_run=dry_run,
        verbose=verbose,
    )


@imports.command("sets")
def show_sets(
    name: Annotated[str | None, typer.Argument(help="Show the tasks of this set \\[default: list the sets].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """List imported task sets, or the tasks of one with what runs, what does not, and why."""
    from pipelines.importing.tasks import show_task_sets

    show_task_sets(made_home(home), name, console, as_json=as_json)


@imports.command("demonstrations")
def import_demonstrations(
    format_: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="agentnet, mind2web, sharegpt; logs of agents: openai-chat, anthropic-computer-use, openai-computer-use, browser-use, "
            "playwright-trace, otel-genai; or FILE.py:ATTRIBUTE of your own.",
        ),
    ],
    files: Annotated[list[Path], typer.Argument(help="JSON lines, JSON, Parquet, or a trace.zip.")],
    track: Annotated[
        str,
        typer.Option(
            help="expert: completed ones join SFT, and those that say nothing count as completed; novice: all of it is for CT; "
            "unreviewed: only what says that it was completed joins SFT."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the import \\[default: the first file's].")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="A folder of screenshots; may be given several times \\[default: beside each file].")
    ] = None,
    grammar: Annotated[str, typer.Option(help="How thoughts and actions are written for training: uitars2, uitars15, …")] = "uitars2",
    policy: Annotated[
        str | None, typer.Option(help="Who acted, e.g. an agent's name \\[default: human for agentnet and mind2web, else unknown].")
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="sharegpt: read the answers in this grammar and rebuild the trajectories \\[default: keep chats as they are]; logs of "
            "models: the same for answers that call no tool."
        ),
    ] = None,
    domain: Annotated[str, typer.Option(help="Which specialist learns from it.")] = "desktop",
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Who says whether it was carried out: field:PATH or field:PATH=VALUE of the record, thumbs:PATH or thumbs:FILE, "
            "orm:CHECKPOINT, judge:NAME, person \\[default: the record]."
        ),
    ] = None,
    mode: Annotated[str, typer.Option(help="Standing text of the prompt: computer, mobile or game.")] = "computer",
    licence: Licence = None,
    min_alignment: Annotated[int, typer.Option(min=0, max=10, help="agentnet: a lower alignment_score goes to CT.")] = 0,
    keep_personal_data: KeepPersonalData = False,
    script: Scripts = None,
    replace: Annotated[bool, typer.Option("--replace", help="Drop what was imported under this name first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be imported, and write nothing.")] = False,
    home: HomeOption = None,
) -> None:
    """Import demonstrations: episodes with their steps and screenshots, and samples for SFT (good steps of completed ones) or CT.

    A killed import goes on where it was: what is stored is not stored again. What is malformed, and what holds personal data, is named by
    file and line, kept aside under FLYWHEEL_HOME/imports, and counted.
    """
    from pipelines.importing.demonstrations import import_demonstration_files
    from pipelines.importing.licences import checked
    from pipelines.importing.report import check_any
    from pipelines.importing.rows import DemonstrationSettings, settings_of
    from pipelines.orchestration.reported_changes import reported

    settings = settings_of(
        DemonstrationSettings,
        track=track,
        grammar=grammar,
        answers=answers,
        domain=domain,
        mode=mode,
        min_alignment=min_alignment,
        outcome=outcome,
        policy=policy,
        keep_personal_data=keep_personal_data,
        scripts=tuple(script or ()),
    )
    place = home_of(home)
    with reported(warehouse_of(place), f"flywheel import demonstrations {format_}", console):
        report = import_demonstration_files(
            place,
            format_,
            files,
            settings,
            console,
            name=name,
            images=images or [],
            dry_run=dry_run,
            replace=replace,
            licence=checked(licence),
        )
    check_any(report, format_)
