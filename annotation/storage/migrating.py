"""Bringing the tables of an annotation database to today's, by the versions in migrations/. One process at a time, all or nothing.

A new version, after a change of schema.py: `python -m annotation.storage.migrating "what changed"` writes its draft; read and correct it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from annotation.storage.database import Database, make_engine, unusable
from warehouse.core.errors import DatabaseUnusable
from warehouse.core.identity import stable_seed

FOLDER = Path(__file__).with_name("migrations")


def open_database(url: str) -> Database:
    """A database whose tables are today's; an empty one is given them. Raises ConfigError, DatabaseUnusable."""
    database = Database(url)
    try:
        if is_empty(database):
            migrate(database)
        check_current(database)
    except BaseException as error:
        database.close()
        if isinstance(error, SQLAlchemyError):
            raise unusable(database, error) from error
        raise
    return database


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring the tables to today's; the versions before and after. Raises DatabaseUnusable for tables of a later release."""
    engine = make_engine(database.url, foreign_keys=False).execution_options(flywheel_writes=True)
    try:
        with engine.begin() as connection:
            if not database.is_sqlite:
                connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": stable_seed("annotation", "migrations")})
            before = MigrationContext.configure(connection).get_current_revision()
            _check_known(database, before)
            command.upgrade(_config(connection), "head")
            if database.is_sqlite and (broken := connection.exec_driver_sql("pragma foreign_key_check").fetchall()):
                raise DatabaseUnusable(
                    f"migrating {database.name} would leave references to nothing, e.g. {broken[0]}: nothing was changed"
                )
            return before, head()
    except SQLAlchemyError as error:
        raise unusable(database, error) from error
    finally:
        engine.dispose()


def check_current(database: Database) -> None:
    """Raises DatabaseUnusable where the tables are of an earlier or a later release."""
    current = version_of(database)
    _check_known(database, current)
    if current != head():
        raise DatabaseUnusable(
            f"the tables of {database.name} are those of version {current or 'none'}, this release wants {head()}: stop the "
            "servers that use it, keep a copy, and run `flywheel annotate migrate`"
        )


def head() -> str:
    """Today's version."""
    return str(_scripts().get_current_head())


def version_of(database: Database) -> str | None:
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_empty(database: Database) -> bool:
    with database.engine.connect() as connection:
        return not inspect(connection).get_table_names()


def _check_known(database: Database, version: str | None) -> None:
    if version is not None and version not in {script.revision for script in _scripts().walk_revisions()}:
        raise DatabaseUnusable(
            f"the tables of {database.name} are of version {version}, which this release does not know: use the release that "
            "made them, or a later one"
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(FOLDER))


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def draft(message: str) -> None:
    """Write the version that takes the tables from the newest version to schema.py."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/draft.db")
        migrate(database)
        engine = make_engine(database.url)
        with engine.begin() as connection:
            number = f"{len(list(_scripts().walk_revisions())) + 1:04d}"
            command.revision(_config(connection), message, autogenerate=True, rev_id=number)
        engine.dispose()
        database.close()


if __name__ == "__main__":
    draft(sys.argv[1])
