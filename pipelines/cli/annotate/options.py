"""What the commands of `flywheel annotate` share: the database that they mean, and a way to ask it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pipelines.cli.options import profile_of
from warehouse.core.home import Home

if TYPE_CHECKING:
    from annotation.service.access.accounts import Accounts
    from annotation.storage.database import Database
    from pipelines.annotation_server.address import Served

T = TypeVar("T")
VARIABLE = "FLYWHEEL_ANNOTATION_DATABASE"
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar=VARIABLE,
        show_envvar=True,
        help="sqlite:////path/file or postgresql+psycopg://user@host/name \\[default: the profile's people.database, or the home's own].",
    ),
]


def url_of(home: Home, given: str | None) -> str:
    """The address of the annotation database: what is given, else what the home's profile says, else the file in the home."""
    from annotation.storage.database import default_url

    if given is not None:
        return given
    from pipelines import profiles

    name, overrides = profile_of(home, None, None)
    return profiles.load(name, overrides).people.database or default_url(home)


@contextmanager
def opened(home: Home, given: str | None) -> Iterator[Database]:
    """The database for as long as the block lasts. Raises ConfigError, DatabaseUnusable."""
    from annotation.storage.migrating import open_database

    database = open_database(url_of(home, given))
    try:
        yield database
    finally:
        database.close()


@contextmanager
def opened_if_there(home: Home) -> Iterator[Database | None]:
    """The same for commands that are about other things too: None where nobody has annotated or recorded anything for the home."""
    from annotation.storage.database import default_url, has_default

    url = url_of(home, os.environ.get(VARIABLE))
    if url == default_url(home) and not has_default(home):
        yield None
        return
    with opened(home, url) as database:
        yield database


def server_of(home: Home, given: str | None) -> Served | None:
    """The server that lives on this home and the database that is meant."""
    from annotation.storage.database import Database
    from pipelines.annotation_server.address import living

    database = Database(url_of(home, given))
    try:
        return living(home, database.name)
    finally:
        database.close()


def with_accounts(home: Home, given: str | None, work: Callable[[Accounts], Awaitable[T]]) -> T:
    """What `work` gives, asked of the accounts in the database."""
    from annotation.service.access.accounts import Accounts

    async def run(database: Database) -> T:
        accounts = Accounts(database)
        try:
            return await work(accounts)
        finally:
            accounts.passwords.close()

    with opened(home, given) as database:
        return asyncio.run(run(database))
