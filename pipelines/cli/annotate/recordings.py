"""`flywheel annotate recordings`: recordings of people's own work that were uploaded, with their ids, as `flywheel annotate withdraw` wants
them. The same list as a page: /recordings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from pipelines.cli.annotate.options import DatabaseOption, opened, server_of
from pipelines.cli.options import HomeOption, console, home_of
from pipelines.cli.terminal import counted, print_rows
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from annotation.wire.review import RecordingItem


def list_recordings(
    user: Annotated[str | None, typer.Option(help="Of this account.")] = None,
    state: Annotated[
        str | None, typer.Option(help="uploading, pending (waits for a review), approved, rejected or withdrawn \\[default: all].")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The newest so many.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    database: DatabaseOption = None,
    home: HomeOption = None,
) -> None:
    """Recordings of people's own work, the newest first, by the id that `flywheel annotate withdraw` takes."""
    from annotation.service.recordings.recording_lists import list_of
    from annotation.wire.review import RecordingState

    if state is not None and state not in get_args(RecordingState):
        raise ConfigError(f"--state {state[:40]!r} is unknown; known are {', '.join(get_args(RecordingState))}")
    place = home_of(home)
    with opened(place, database) as stored, stored.read() as session:
        found = list_of(session, user=user, state=cast("RecordingState | None", state), limit=limit)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    if not found.recordings:
        console.print("no recording is like that" if user or state else "no recording yet: `flywheel record` makes and uploads them")
        return
    print_rows([_row(one) for one in found.recordings], console)
    shown = f"{len(found.recordings):,} of {counted(found.num, 'recording')}"
    shown = shown if found.num > len(found.recordings) else counted(found.num, "recording")
    server = server_of(place, database)
    where = f"; to look at one: {server.address}/recordings?recording=ID" if server is not None else ""
    console.print(f"{shown}{where}", highlight=False, soft_wrap=True)


def _row(one: RecordingItem) -> dict[str, str]:
    is_complete = one.track is not None
    return {
        "id": one.recording_id,
        "query": one.query,
        "person": one.person,
        "state": one.state,
        "actions": str(one.num_actions) if is_complete else "–",
        "minutes": f"{one.length_s / 60:.1f}" if is_complete else "–",
        "replayed": {None: "–", True: "yes", False: "no"}[one.is_executable],
        "uploaded, UTC": time.strftime("%m-%d %H:%M", time.gmtime(one.created_at_s)),
    }
