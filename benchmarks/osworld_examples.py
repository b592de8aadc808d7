"""How many of OSWorld's public examples run here, and why the others do not: the table of docs/importing.md.

    python -m benchmarks.osworld_examples FOLDER        evaluation_examples/examples of a checkout of OSWorld

Each example is counted once, in the first row that holds of it. Nothing is set up or played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sandbox.tasks.imported.collecting import collect
from sandbox.tasks.imported.spec import GivesUp, ImportedTask

ROWS: Mapping[str, tuple[str, ...]] = {
    "want Chrome": ("chrome", "starts socat"),
    "want VS Code": ("starts code", "program code"),
    "want Thunderbird": ("thunderbird",),
    "want GIMP": ("gimp",),
    "want VLC": ("vlc", "default_video_player"),
    "want LibreOffice Writer or Impress": (
        ".pptx",
        ".docx",
        ".odt",
        "libreoffice impress",
        "libreoffice writer",
        "compare_docx",
        "compare_references",
    ),
    "want a reader of PDF": ("of kind .pdf",),
    "want the rights of root": ("rights of root",),
    "want the network": ("network", "googledrive", "login"),
    "want a program, settings or a kind of file that is not here": (
        "systemd",
        "is_utc_0",
        "the settings",
        "needs the program",
        "opens a file",
    ),
    "have an evaluator that is not here": ("evaluator", "compares", "get a value"),
}
"""A row, and parts of the reasons that put an example into it."""
HERE = frozenset(("os", "libreoffice_calc", "libreoffice calc", "calc", "excel", "terminal", "ubuntu_media_player"))
"""What OSWorld calls the applications (`related_apps`) that a desktop here has."""


def row_of(task: ImportedTask) -> str:
    if task.is_runnable:
        return "run here"
    rest = [reason.lower() for reason in task.not_runnable if reason not in task.lacks]
    if not rest:
        return f"would run with their {' and '.join(sorted(set(task.lacks.values())))}"
    return next((row for row, parts in ROWS.items() if any(part in reason for part in parts for reason in rest)), "; ".join(rest))


def aside(tasks: Sequence[ImportedTask], related_apps: Mapping[str, Sequence[str]]) -> str:
    """What is to be known of the examples of a row beside their number: how many are meant to be impossible, and how many of the others
    belong, by OSWorld's own word, to an application that is not here too."""
    impossible = [task for task in tasks if any(isinstance(goal, GivesUp) for goal in task.spec.goals)]
    others = [[app for app in related_apps[task.record] if app not in HERE] for task in tasks if task not in impossible]
    named = ", ".join(sorted({app for apps in others for app in apps}))
    said = [f"{len(impossible)} meant to be impossible"] if impossible else []
    if named:
        said.append(f"{sum(map(bool, others))} related to applications that are not here: {named}")
    return f" ({'; '.join(said)})" if said else ""


def main(folder: Annotated[Path | None, typer.Argument(exists=True, file_okay=False)] = None) -> None:
    """Count the examples of a folder by what becomes of them; without one there is nothing to count."""
    if folder is None:
        typer.echo("no examples here: give the folder evaluation_examples/examples of a checkout of OSWorld")
        return
    found = collect("osworld", [folder])
    related_apps = {record.digest: record.data.get("related_apps", ()) for record in found.records if isinstance(record.data, Mapping)}
    rows: dict[str, list[ImportedTask]] = {}
    for task in found.tasks:
        rows.setdefault(row_of(task), []).append(task)
    for row, tasks in sorted(rows.items(), key=lambda item: -len(item[1])):
        typer.echo(f"{len(tasks):4d} {row}{aside(tasks, related_apps) if row.startswith(('run', 'would')) else ''}")
    impossible = [task for task in found.tasks if any(isinstance(goal, GivesUp) for goal in task.spec.goals)]
    typer.echo(f"{len(found.tasks):4d} examples, {len(impossible)} of them meant to be impossible, {len(found.malformed)} malformed")
    others = Counter(reason for task in rows.get("have an evaluator that is not here", ()) for reason in task.not_runnable)
    for reason, num in others.most_common():
        typer.echo(f"     {num:4d} {reason}")


if __name__ == "__main__":
    typer.run(main)
