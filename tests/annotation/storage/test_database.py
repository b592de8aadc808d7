"""The annotation database: transactions, writers that exclude one another, tables that are today's."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text, update

from annotation.storage import migrating
from annotation.storage.database import Database, default_url, lock, make_engine
from annotation.storage.migrating import check_current, migrate, open_database
from annotation.storage.schema import Base, Campaign, Change, Draft
from warehouse.core.errors import ConfigError, DatabaseUnusable
from warehouse.core.home import Home


@pytest.fixture
def database(empty_url: str):
    opened = open_database(empty_url)
    yield opened
    opened.close()


def test_the_migrated_tables_are_those_of_the_schema(database: Database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "target_metadata": Base.metadata})
        assert compare_metadata(context, Base.metadata) == []
        checks = {(table, check["name"]) for table in Base.metadata.tables for check in inspect(connection).get_check_constraints(table)}
    described = {
        (table.name, check.name) for table in Base.metadata.tables.values() for check in table.constraints if "is_known" in str(check.name)
    }
    assert {(table, name) for table, name in checks if "is_known" in str(name)} == described


def test_migrating_again_changes_nothing(database: Database):
    assert migrate(database) == (migrating.head(), migrating.head())


def test_tables_of_the_first_version_become_todays(empty_url: str):
    """A version that was released stays as it was: what was made by it would never get what is added to it."""
    database = Database(empty_url)
    engine = make_engine(database.url, foreign_keys=False).execution_options(flywheel_writes=True)
    with engine.begin() as connection:
        command.upgrade(migrating._config(connection), "0001")
        assert {column["name"] for column in inspect(connection).get_columns("drafts")} == {
            "run_id",
            "step_index",
            "number",
            "thought",
            "action",
            "saved_at_s",
        }
        connection.execute(text("insert into landings (kind, subject_id, at_s) values ('run', 'from before', 1.0)"))
        columns = "campaign_id, name, guidelines, mode, tasks, policy, num_candidates, temperature, target_count, double_share, lease_s"
        values = "'c', 'forms', '', 'relabel', '[]', 'newest', 1, 1.0, 7, 0.25, 60.0, 'paused', 1.0"
        connection.execute(text(f"insert into campaigns ({columns}, state, created_at_s) values ({values})"))
    engine.dispose()
    with pytest.raises(DatabaseUnusable, match="flywheel annotate migrate"):
        check_current(database)
    assert migrate(database) == ("0001", migrating.head())
    check_current(database)
    with database.read() as session:
        assert session.scalars(select(Draft)).all() == []
        assert [row.subject_id for row in session.scalars(select(Change))] == ["from before"]
        (campaign,) = session.scalars(select(Campaign))
        assert (campaign.name, campaign.double_share, campaign.state, campaign.priority) == ("forms", 0.25, "paused", 0)
    database.close()


def test_tables_of_another_release_are_refused_with_what_to_do(database: Database, empty_url: str):
    for version, reported in (("9999", "does not know"), ("", "flywheel annotate migrate")):
        with database.write() as session:
            session.execute(text("delete from alembic_version"))
            if version:
                session.execute(text("insert into alembic_version values (:version)"), {"version": version})
        with pytest.raises(DatabaseUnusable, match=reported):
            open_database(empty_url)
    with pytest.raises(DatabaseUnusable):
        check_current(database)


def change(session, subject: str) -> int:
    row = Change(kind="run", subject_id=subject, at_s=1.0)
    session.add(row)
    session.flush()
    return row.change_id


def test_a_block_that_raises_leaves_nothing(database: Database):
    with pytest.raises(ZeroDivisionError), database.write() as session:
        change(session, "lost")
        raise ZeroDivisionError
    with database.read() as session:
        assert session.scalars(select(Change)).all() == []


def test_what_is_read_cannot_be_changed(database: Database):
    with database.read() as session, pytest.raises(Exception, match=r"read-only|uncommitted"):
        change(session, "not written")
        if database.is_sqlite:
            raise RuntimeError("uncommitted")
    with database.read() as session:
        assert session.scalars(select(Change)).all() == []


def test_readers_go_on_while_somebody_writes(database: Database):
    with database.write() as writing, database.read() as reading:
        change(writing, "under way")
        assert reading.scalars(select(Change)).all() == []
    with database.read() as session:
        assert [row.subject_id for row in session.scalars(select(Change))] == ["under way"]


def test_a_reader_sees_one_state(database: Database):
    with database.read() as reading:
        assert reading.scalars(select(Change)).all() == []
        with database.write() as writing:
            change(writing, "meanwhile")
        assert reading.scalars(select(Change)).all() == [] and reading.scalars(select(Change.subject_id)).all() == []
    with database.read() as reading, database.write() as writing:
        assert reading.scalars(select(Change.subject_id)).all() == ["meanwhile"]
        if not database.is_sqlite:
            assert writing.scalar(text("show transaction_isolation")) == "read committed", "who writes waits for rows, and sees them again"


def test_holders_of_a_name_follow_one_another(database: Database):
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with database.write() as session:
            lock(session, Change.__tablename__)
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with database.write() as session:
        lock(session, Change.__tablename__)
        inside.set()
        thread.join(timeout=0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_many_coroutines_add_up(database: Database):
    def count_up(session) -> None:
        row = session.scalars(select(Campaign).with_for_update()).one()
        session.execute(update(Campaign).values(target_count=row.target_count + 1))

    async def run() -> None:
        await database.writing(make_campaign)
        await asyncio.gather(*(database.writing(count_up) for _ in range(60)))

    asyncio.run(run())
    with database.read() as session:
        assert session.scalars(select(Campaign)).one().target_count == 60


def make_campaign(session) -> None:
    session.add(
        Campaign(
            campaign_id="c",
            name="c",
            guidelines="",
            mode="intervene",
            tasks=[],
            policy="newest",
            num_candidates=1,
            temperature=1.0,
            target_count=0,
            double_share=0.0,
            lease_s=60.0,
            state="active",
            created_at_s=0.0,
        )
    )


@pytest.mark.parametrize(
    "url", ["mysql://host/name", "sqlite://", "no address", "sqlite:////nowhere/at/all.db", "postgresql+asyncpg://h/n"]
)
def test_an_address_that_cannot_be_is_refused(url: str):
    with pytest.raises(ConfigError):
        Database(url)


def test_a_server_that_is_not_there_is_reported_without_its_password():
    with pytest.raises(DatabaseUnusable) as reported:
        open_database("postgresql+psycopg://somebody:s3cret@127.0.0.1:1/none")
    assert "s3cret" not in str(reported.value) and "127.0.0.1:1" in str(reported.value)


def test_the_default_is_a_private_folder_in_the_home(tmp_path: Path):
    open_database(default_url(Home(tmp_path))).close()
    assert (tmp_path / "annotation" / "annotation.db").is_file()
    assert (tmp_path / "annotation").stat().st_mode & 0o077 == 0
