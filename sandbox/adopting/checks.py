"""Whether a check of an adopted task holds: of the page that is shown, of what was sent, of the answer, of the database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.adopting.records import (
    AnswerCheck,
    Check,
    Locator,
    RequestCheck,
    RowCheck,
    ShownCheck,
    StateCheck,
    UrlCheck,
    origin_of,
    page_key,
)
from sandbox.adopting.traffic import Sent
from sandbox.browser.page import call
from warehouse.core.errors import ConfigError, SandboxError

Evaluate = Callable[[str], Awaitable[Any]]
Rows = Mapping[str, Counter[tuple[tuple[str, str], ...]]]
"""Of a database: table → its rows, as columns and texts, and how often each is there."""
STILL_SHOWN = """((fields) => [...document.forms].some((form) => form.method !== "get" && Object.entries(fields).every(
  ([name, value]) => form.elements[name] && form.elements[name].value === value)))"""
MAX_ROWS = 20_000
"""Of a table; larger ones are not looked at."""


@cache
def look_script() -> str:
    return Path(__file__).with_name("look.js").read_text(encoding="utf-8").strip()


def normal(text: str) -> str:
    return " ".join(text.split()).casefold()


async def find(evaluate: Evaluate, at: Locator) -> Mapping[str, Any] | None:
    """Where a thing is now, and its state; None where it is not on the page."""
    found = await evaluate(call(look_script(), {"find": at.model_dump()}))
    return found if isinstance(found, dict) else None


async def holds(
    check: Check, *, origin: str, url: str, answer: str | None, sent: Sequence[Sent], evaluate: Evaluate, new_rows: Callable[[], Rows]
) -> bool:
    match check:
        case UrlCheck(key=key):
            return origin_of(url) == origin and page_key(url) == key
        case AnswerCheck(text=text):
            return answer is not None and normal(answer) == normal(text)
        case StateCheck(page=page) | ShownCheck(page=page) if page and (origin_of(url) != origin or page_key(url) != page):
            return False
        case StateCheck(at=at, state=state):
            found = await find(evaluate, at)
            return found is not None and normal(str(found["state"])) == normal(state)
        case ShownCheck(view=view):
            return await evaluate(call(look_script(), {"shown": view.model_dump()})) is True
        case RequestCheck(method=method, path=path, fields=fields):
            answers = [
                each.status
                for each in sent
                if (each.method, each.path) == (method, path)
                and all(normal(each.fields.get(name, "\0")) == normal(value) for name, value in fields.items())
            ]
            if method == "GET" or any(300 <= status < 400 for status in answers):
                return any(0 < status < 400 for status in answers)
            # a form that is refused is mostly shown again, with a status of 200
            return any(0 < status < 400 for status in answers) and not await evaluate(call(STILL_SHOWN, fields))
        case RowCheck(table=table, cells=cells):
            rows = new_rows().get(table, Counter())
            return any(all(normal(dict(row).get(name, "\0")) == normal(value) for name, value in cells.items()) for row in rows)


def read_rows(database: str | None) -> Rows:
    """Every row of every table that is not too large. Raises ConfigError for a file that is not a SQLite database, SandboxError for one
    that is in use."""
    if database is None:
        return {}
    path = Path(database)
    if not path.is_file():
        raise ConfigError(f"--database {path}: there is no such file. Name the SQLite file that the application writes to.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as con:
            names = [name for (name,) in con.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")]
            return {name: _rows(con, name) for name in names if _num_rows(con, name) <= MAX_ROWS}
    except sqlite3.OperationalError as error:
        raise SandboxError(f"--database {path} cannot be read now: {error}. Does the application hold a lock on it?") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"--database {path} cannot be read as SQLite: {error}. Leave it out for an application with another.") from error


def primary_keys(database: str | None) -> Mapping[str, frozenset[str]]:
    """Columns by table. Raises SandboxError."""
    if database is None:
        return {}
    try:
        with closing(sqlite3.connect(f"{Path(database).absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as con:
            found = con.execute("select m.name, c.name from sqlite_master m, pragma_table_info(m.name) c where m.type = 'table' and c.pk")
            keys: dict[str, set[str]] = {}
            for table, column in found:
                keys.setdefault(table, set()).add(column)
            return {table: frozenset(columns) for table, columns in keys.items()}
    except sqlite3.DatabaseError as error:
        raise SandboxError(f"--database {database} cannot be read now: {error}.") from error


def _num_rows(con: sqlite3.Connection, table: str) -> int:
    quoted = table.replace('"', '""')
    return int(con.execute(f'select count(*) from (select 1 from "{quoted}" limit {MAX_ROWS + 1})').fetchone()[0])


def _rows(con: sqlite3.Connection, table: str) -> Counter[tuple[tuple[str, str], ...]]:
    quoted = table.replace('"', '""')
    cursor = con.execute(f'select * from "{quoted}"')
    columns = [column[0] for column in cursor.description]
    return Counter(tuple(zip(columns, (str(value) for value in row), strict=True)) for row in cursor)


def added(before: Rows, after: Rows) -> Rows:
    return {table: rows - before.get(table, Counter()) for table, rows in after.items()}
