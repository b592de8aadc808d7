"""Pictures of screens in Dagster's history: a materialization of a stage's episodes shows some of them. Those of a stage whose episodes are
forgotten are taken out of the events, which stay.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import bindparam, text
from sqlalchemy.exc import OperationalError

from assets.collection import SCREENS
from pipelines.orchestration.instance import is_known, open_known
from warehouse.core.errors import NotNow
from warehouse.core.home import Home
from warehouse.core.sqlite_files import compact_sqlite

if TYPE_CHECKING:
    from sqlalchemy import Connection

Place = tuple[str, str]
"""Iteration and stage."""
INSTEAD = "taken out: an episode that may have been shown here was forgotten"


def take_out_screens(home: Home, places: Collection[Place]) -> int:
    """Of how many events pictures were taken out. May be done twice. Raises ConfigError where the history is in a Postgres that is not
    named, NotNow where somebody else keeps it from being written."""
    if not places or not is_known(home):
        return 0
    num = 0
    with open_known(home) as instance:
        for connection in _connections(instance.event_log_storage):
            try:
                with connection as con:
                    num += _take_out(con, set(places))
                    con.commit()
                    if con.dialect.name == "sqlite":
                        compact_sqlite(cast(sqlite3.Connection, con.connection.driver_connection), "Dagster's history")
                    else:  # a row of Postgres that was rewritten keeps the old one, too; its storage commits each statement
                        con.execute(text("vacuum full event_logs, asset_keys"))
            except OperationalError as error:
                raise NotNow(
                    f"Dagster's history could not be written ({error.orig}), and may still hold pictures: stop Dagster's page and daemon, "
                    "and give the command again"
                ) from error
    return num


def _connections(storage: Any) -> Iterator[AbstractContextManager[Connection]]:
    """One of the index; SQLite has a file for each run, too, and one for what was reported outside of runs, which it does not list."""
    yield storage.index_connection()
    if storage.is_run_sharded:
        outside = [""] if Path(storage.path_for_shard("")).is_file() else []
        for run_id in [*storage.get_all_run_ids(), *outside]:
            yield storage.run_connection(run_id)


def _take_out(con: Connection, places: set[Place]) -> int:
    num = 0
    for iteration, stage in sorted(places):
        asked = {"asset": json.dumps([stage]), "partition": iteration}
        found = con.execute(text("select id, event from event_logs where asset_key = :asset and partition = :partition"), asked).all()
        changed = [{"b_id": id_, "event": said} for id_, event in found if (said := _without(event)) is not None]
        if changed:
            con.execute(text("update event_logs set event = :event where id = :b_id").bindparams(bindparam("event")), changed)
        num += len(changed)
        last = text("select last_materialization from asset_keys where asset_key = :asset and last_materialization is not null")
        for (event,) in con.execute(last, {"asset": asked["asset"]}).all():
            if (said := _without(event)) is not None:
                update = text("update asset_keys set last_materialization = :event where asset_key = :asset")
                con.execute(update, {"event": said, "asset": asked["asset"]})
    return num


def _without(event: str) -> str | None:
    """The event without its pictures of screens; None where it has none."""
    said = json.loads(event)
    changed = 0
    waiting: list[Any] = [said]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            shown = part.get("entry_data") if part.get("label") == SCREENS else None
            if isinstance(shown, dict) and shown.get("md_str") not in (None, INSTEAD):
                shown["md_str"] = INSTEAD
                changed += 1
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return json.dumps(said) if changed else None
