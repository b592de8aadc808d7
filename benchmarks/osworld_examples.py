"""How many of OSWorld's public examples run here, and why the others do not: the table of docs/importing.md.

    python -m benchmarks.osworld_examples FOLDER        evaluation_examples/examples of a checkout of OSWorld

Each example is counted once, in the first row that holds of it. Nothing is set up or played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sandbox.tasks.imported.collecting import collect
from sandbox.tasks.imported.mapping import NEEDS_FILE, NEEDS_PACKAGES
from sandbox.tasks.imported.spec import ImportedTask

ROWS: Mapping[str, tuple[str, ...]] = {
    "want Chrome": ("chrome", "starts socat"),
    "want VS Code": ("starts code", "program code"),
    "want Thunderbird": ("thunderbird",),
    "want GIMP": ("gimp",),
    "want VLC": ("vlc",),
    "want LibreOffice Writer or Impress": (".pptx", ".docx", ".odt"),
    "want a reader of PDF": ("of kind .pdf",),
    "want the rights of root": ("rights of root",),
    "want the network": ("network", "googledrive", "login"),
    "want a program, settings or a kind of file that is not here": ("systemd", "the settings", "needs the program", "opens a file"),
    "have an evaluator that is not here": ("evaluator", "compares", "get a value"),
}
"""A row, and parts of the reasons that put an example into it."""


def row_of(task: ImportedTask) -> str:
    if task.is_runnable:
        return "run here"
    rest = [reason.lower() for reason in task.not_runnable if not reason.startswith((NEEDS_FILE, NEEDS_PACKAGES))]
    if not rest:
        lacking = [
            what
            for start, what in ((NEEDS_FILE, "files"), (NEEDS_PACKAGES, "packages"))
            if any(reason.startswith(start) for reason in task.not_runnable)
        ]
        return f"would run with their {' and '.join(lacking)}"
    return next((row for row, parts in ROWS.items() if any(part in reason for part in parts for reason in rest)), "; ".join(rest))


def main(folder: Annotated[Path | None, typer.Argument(exists=True, file_okay=False)] = None) -> None:
    """Count the examples of a folder by what becomes of them; without one there is nothing to count."""
    if folder is None:
        typer.echo("no examples here: give the folder evaluation_examples/examples of a checkout of OSWorld")
        return
    found = collect("osworld", [folder])
    counts = Counter(row_of(task) for task in found.tasks)
    for row, num in counts.most_common():
        typer.echo(f"{num:4d} {row}")
    typer.echo(f"{len(found.tasks):4d} examples, {len(found.malformed)} malformed")
    others = Counter(reason for task in found.tasks if row_of(task).startswith("have an evaluator") for reason in task.not_runnable)
    for reason, num in others.most_common():
        typer.echo(f"     {num:4d} {reason}")


if __name__ == "__main__":
    typer.run(main)
