"""DuckDB over the tables: views, versions, push-down, sealing, and errors that a person can use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.warehouse.conftest import on_disk
from warehouse.core.errors import CorruptTable, QueryError, UnknownTable
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.data_files import RESTORE
from warehouse.storage.sql import query
from warehouse.storage.sql.scan import connect_to_scan
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")


def _one(con: Any, sql: str) -> Any:
    return con.execute(sql).fetchall()[0][0]


def test_every_table_is_a_view_even_when_nobody_wrote_it(warehouse: Warehouse) -> None:
    with query.connect(warehouse, lineage=True) as con:
        for table, spec in TABLES.items():
            assert [row[0] for row in con.execute(f"DESCRIBE {table}").fetchall()] == [column.name for column in spec.columns]
            assert _one(con, f"SELECT count(*) FROM {table}") == 0
        assert _one(con, "SELECT count(*) FROM lineage") == 0
        assert _one(con, "SELECT count(*) FROM lineage_nodes") == 0


def test_views_join(planted: Warehouse) -> None:
    with query.connect(planted) as con:
        rows = con.execute("SELECT route, outcome FROM routes JOIN episodes USING (episode_id) ORDER BY ALL").fetchall()
    assert rows == [("ct", "failure"), ("sft", "success")]


def test_filters_and_columns_reach_the_files(planted: Warehouse) -> None:
    with query.connect(planted) as con:
        plan = con.execute("EXPLAIN SELECT task_id FROM episodes WHERE iteration = '0001' AND seed > 1").fetchall()[0][1]
    scan = plan[plan.index("PYTHON_ARROW_SCAN") :]
    assert "\"iteration\" = '0001'" in scan and '"seed" > 1' in scan
    assert "instruction" not in scan


def test_as_of_an_iteration_and_at_versions(planted: Warehouse) -> None:
    sql = "SELECT count(DISTINCT iteration) FROM checkpoints"
    with query.connect(planted, as_of="0001", lineage=True) as con:
        assert _one(con, sql) == 2
        assert _one(con, "SELECT count(*) FROM lineage WHERE child_id = 'ckpt-sft-2'") == 0
    with query.connect(planted) as con:
        assert _one(con, sql) == 3
    with query.connect(planted, versions={"checkpoints": 1}) as con:
        assert _one(con, "SELECT string_agg(checkpoint_id) FROM checkpoints") == "ckpt-seed"
        assert _one(con, "SELECT count(*) FROM episodes") == 3
    with query.connect(planted, versions={"checkpoints": -1}) as con:
        assert _one(con, "SELECT count(*) FROM checkpoints") == 0


def test_a_block_shows_what_was_there_when_it_began(planted: Warehouse, make: Any) -> None:
    for asked in ({}, {"as_of": "0002"}, {"tables": ["checkpoints"], "natively": True}):
        with query.connect(planted, **asked) as con:
            planted.replace_partition("checkpoints", [make.checkpoint(f"later-{len(asked)}")], iteration="0002", stage="rl_later")
            assert _one(con, "SELECT count(*) FROM checkpoints WHERE checkpoint_id LIKE 'later-" + f"{len(asked)}'") == 0


def test_a_table_is_first_named_while_rows_of_another_are_not_fetched(planted: Warehouse) -> None:
    with query.connect(planted) as con:
        assert con.execute("SELECT episode_id FROM episodes").fetchone() is not None
        assert con.execute("SELECT task_id FROM tasks").fetchone() is not None


@pytest.mark.parametrize("sql", ["DESCRIBE", "SHOW TABLES", "DESC", "PRAGMA show_tables"])
def test_statements_that_name_no_table_see_all(planted: Warehouse, sql: str) -> None:
    assert {*TABLES, "lineage", "lineage_nodes"} <= {row["name"] for row in query.run(planted, sql).to_pylist()}


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"as_of": "0001", "versions": {}}, "not for both"),
    ({"versions": {"runs": 1}}, "no table 'runs'"),
    ({"as_of": "two"}, "no iteration 'two'"),
    ({"versions": {"checkpoints": 99}}, "has no version 99"),
]


@pytest.mark.parametrize(("asked", "said"), IMPOSSIBLE)
def test_impossible_versions_are_refused(planted: Warehouse, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownTable, match=said), query.connect(planted, **asked) as con:
        con.execute("SELECT * FROM checkpoints")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "SELECT * FROM '{folder}/secret.csv'",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.duckdb'",
        "SELECT * FROM glob('{folder}/*')",
        "SET enable_external_access = true",
        "SET threads = 64",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM local_variable",
    ],
)
def test_a_sealed_connection_touches_nothing_but_the_tables(planted: Warehouse, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    local_variable = pa.table({"a": [1]})
    with pytest.raises(QueryError):
        query.run(planted, sql.format(folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert local_variable.num_rows == 1


def test_relations_of_ours_still_join_on_a_sealed_connection(planted: Warehouse) -> None:
    with query.connect(planted) as con:
        con.register("wanted", pa.table({"episode_id": ["ep-good"]}))
        assert _one(con, "SELECT count(*) FROM steps JOIN wanted USING (episode_id)") == 2


def test_run_answers_and_explains(planted: Warehouse) -> None:
    assert query.run(planted, "SELECT count(*) AS n FROM episodes", as_of="0000").to_pylist() == [{"n": 1}]
    assert query.run(planted, "").num_rows == 0
    with pytest.raises(QueryError, match="The views are tasks, task_instances, episodes") as caught:
        query.run(planted, "SELECT outcom FROM episodes")
    assert 'Candidate bindings: "outcome"' in str(caught.value)
    with pytest.raises(QueryError, match="syntax error"):
        query.run(planted, "SELEC 1")


READERS = {
    "a person's query": lambda warehouse: query.run(warehouse, "SELECT max(instruction) FROM episodes"),
    "ours": lambda warehouse: _all_rows(query.connect(warehouse)),
    "a scan": lambda warehouse: _all_rows(connect_to_scan(warehouse, ["episodes"])),
}
DAMAGES = {
    "missing": lambda path: path.unlink(),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
}


@on_disk
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_named_by_whoever_reads_it(warehouse: Warehouse, make: Any, reader: str, damage: str) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], iteration="0001", stage="rollouts")
    (path,) = warehouse.folder("episodes").glob("*/*/*.parquet")
    DAMAGES[damage](path)
    with pytest.raises(CorruptTable) as caught:
        READERS[reader](warehouse)
    assert str(path) in str(caught.value) and f"To fix it: {RESTORE}" in str(caught.value)


def test_too_little_memory_is_no_damage(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], iteration="0001", stage="rollouts")
    with pytest.raises(duckdb.OutOfMemoryException), query.connect(warehouse, memory_limit="1MB", threads=1) as con:
        con.execute("SELECT list(x) FROM range(3_000_000) t(x)").fetchall()


def _all_rows(connection: AbstractContextManager[duckdb.DuckDBPyConnection]) -> None:
    with connection as con:
        con.execute("SELECT * FROM episodes").fetchall()


@pytest.mark.slow
def test_memory_that_runs_out_spills_into_the_home(warehouse: Warehouse) -> None:
    with query.connect(warehouse, memory_limit="30MB", threads=1) as con:
        assert _one(con, "SELECT count(*) FROM (SELECT * FROM range(3_000_000) t(x) ORDER BY hash(x))") == 3_000_000
        assert _one(con, "SELECT current_setting('threads')") == 1
        assert _one(con, "SELECT current_setting('temp_directory')") == str(warehouse.home.scratch / "duckdb")
