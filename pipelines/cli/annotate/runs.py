"""`flywheel annotate runs`: finished runs with their ids, as `flywheel annotate withdraw` wants them. The same list as a page: /runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from pipelines.cli.annotate.options import DatabaseOption, opened, server_of
from pipelines.cli.options import HomeOption, console, home_of
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from annotation.wire.finished import RunItem


def list_runs(
    campaign: Annotated[str | None, typer.Option(help="Of this campaign, by name or id.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this account.")] = None,
    status: Annotated[str | None, typer.Option(help="counts, waiting (for a review), rejected or withdrawn \\[default: all].")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The newest so many.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Finished runs, the newest first, by the id that `flywheel annotate withdraw` takes."""
    from annotation.service.review.finished_runs import list_of
    from annotation.storage import campaigns
    from annotation.wire.finished import RunStatus

    if status is not None and status not in get_args(RunStatus):
        raise ConfigError(f"--status {status[:40]!r} is unknown; known are {', '.join(get_args(RunStatus))}")
    place = home_of(home)
    with opened(place, database) as stored, stored.read() as session:
        campaign_id = campaigns.named(session, campaign).campaign_id if campaign is not None else None
        found = list_of(session, user=user, campaign_id=campaign_id, status=cast("RunStatus | None", status), limit=limit)
    if as_json:
        typer.echo(found.model_dump_json(indent=2, include={"runs", "num"}))
        return
    if not found.runs:
        console.print("no finished run is like that" if campaign or user or status else "nothing is finished yet")
        return
    table = RichTable("id", "task", "person", "status", "was it done", "finished, UTC", box=None, pad_edge=False)
    table.columns[0].no_wrap = table.columns[3].no_wrap = True
    for run in found.runs:
        when = time.strftime("%m-%d %H:%M", time.gmtime(run.finished_at_s))
        table.add_row(run.run_id, escape(run.task_name), escape(run.annotator), run.status, _verdict(run), when)
    console.print(table)
    shown = f"{len(found.runs)} of {found.num}" if found.num > len(found.runs) else str(found.num)
    server = server_of(place, database)
    where = f"; to look at one: {server.address}/runs?run=ID" if server is not None else ""
    console.print(f"{shown} finished {'run' if found.num == 1 else 'runs'}{where}", highlight=False, soft_wrap=True)


def _verdict(run: RunItem) -> str:
    """The person's, and the verifier's where it differs."""
    words = {None: "–", True: "yes", False: "no"}
    person, verifier = words[run.person_verdict], words[run.verifier_verdict]
    return person if run.verifier_verdict in (None, run.person_verdict) else f"{person}, verifier {verifier}"
