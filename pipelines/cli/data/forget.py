"""`flywheel forget`: erases a person, an episode or an import from the home for good. What it does is pipelines/forgetting's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import HomeOption, console, made_home, warehouse_of
from warehouse.core.errors import ConfigError, UnknownSubject

if TYPE_CHECKING:
    from pipelines.forgetting.journal import Journal
    from warehouse.storage.tables import Warehouse


def forget(
    person: Annotated[
        str | None, typer.Option(metavar="NAME", help="Everything that an account of the annotation server contributed, and the account.")
    ] = None,
    episode: Annotated[str | None, typer.Option(metavar="ID", help="One episode, by its id or a prefix of it.")] = None,
    import_: Annotated[
        str | None, typer.Option("--import", metavar="NAME", help="An import by its name: demonstrations, general data or manuals.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List everything that was made from it, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Erase without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print the complete list as JSON.")] = False,
    home: HomeOption = None,
) -> None:
    """Erase a person's work, an episode or an import, and all copies of its content; mark the checkpoints that learned from it.

    It lists what descends from it (rows, datasets, checkpoints, releases, runs, recordings, files) and asks. Then no dataset holds it any
    more; its content is erased in every version of the tables, in the annotation server's database and files, in logs, reports and exports;
    and the checkpoints that learned from it are shown as tainted. It says what has to be trained again. There is no way back. What was cut
    off goes on when `flywheel forget` is given again, with or without an option.
    """
    from pipelines.forgetting import journal
    from pipelines.forgetting.forgetting import alone, begin, check, find
    from pipelines.forgetting.listing import as_json as plain
    from pipelines.forgetting.listing import print_news, print_plan, retrain
    from pipelines.forgetting.subjects import subject_of

    if as_json and not dry_run:
        raise ConfigError("--json goes with --dry-run: it lists what would go")
    warehouse = warehouse_of(made_home(home))
    is_named = any(one is not None for one in (person, episode, import_))
    left = [] if dry_run else journal.unfinished(warehouse.home)
    for one in left:
        console.print(f"going on with {one.subject.kind} {one.subject.name}, begun {one.begun_at}", highlight=False, soft_wrap=True)
        with alone(warehouse.home, one.subject):
            _forget(warehouse, one)
    if left and not is_named:
        return
    try:
        subject = subject_of(warehouse, person=person, episode=episode, import_=import_)
    except UnknownSubject:
        if person is not None and any(one.is_of_person(person) for one in left):
            return  # a person who is forgotten by now has no name any more
        raise
    if dry_run:
        plan = find(warehouse, subject)
        if as_json:
            print(json.dumps(plain(plan), indent=2))
        else:
            print_plan(plan, console)
            _advise(retrain(plan))
        return
    with alone(warehouse.home, subject):
        plan = find(warehouse, subject)
        if plan.is_empty:
            console.print(f"there is nothing of {subject.kind} {subject.name} left to forget", highlight=False, soft_wrap=True)
            return
        check(warehouse.home, plan)
        print_plan(plan, console)
        if not yes:
            typer.confirm("Erase it for good?", abort=True)
        now, begun = begin(warehouse, plan)
        print_news(plan, now, console)
        _forget(warehouse, begun)
    _advise(retrain(now))


def _advise(lines: list[str]) -> None:
    for text in lines:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _forget(warehouse: Warehouse, found: Journal) -> Path:
    from pipelines.forgetting.forgetting import forget as carry_out
    from pipelines.orchestration.reported_changes import reported

    def say(text: str) -> None:
        console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)

    with reported(warehouse, f"flywheel forget ({found.subject.kind})", console):
        receipt = carry_out(warehouse, found, say)
    console.print(f"forgotten: {found.subject.kind} {found.subject.name}; the receipt is {receipt}", highlight=False, soft_wrap=True)
    return receipt
