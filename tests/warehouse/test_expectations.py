"""Great Expectations suites from the catalogue, on rows that another program wrote past our checks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from warehouse.core.errors import UnknownTable
from warehouse.quality.data_docs import build_data_docs
from warehouse.quality.expectations import Failure, ValidationReport, validate
from warehouse.storage import row_chunks
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).parents[2]


@pytest.fixture
def write_raw(warehouse: Warehouse, make: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Writes episodes of iteration 0001 with plain Delta, past to_arrow; what they refer to exists."""
    warehouse.replace_partition("tasks", [make.task("task-a")], iteration="0000", stage="tasks")
    warehouse.replace_partition("episodes", [make.episode("first")], iteration="0001", stage="rollouts")

    def write(rows: list[dict[str, Any]]) -> None:
        whole = [{"iteration": "0001", "stage": "rollouts"} | row for row in rows]
        delta = warehouse.delta("episodes")
        assert delta is not None
        data = pa.Table.from_pylist(whole, schema=TABLES["episodes"].schema)
        write_deltalake(delta, data, mode="overwrite", predicate="iteration = '0001'")

    return write


def _failure(report: ValidationReport, column: str | None) -> Failure:
    (failure,) = [failure for failure in report.failures if failure.column == column]
    return failure


@pytest.mark.parametrize("table", sorted(TABLES))
@pytest.mark.slow
def test_what_an_iteration_writes_passes_every_suite(planted: Warehouse, table: str) -> None:
    report = validate(planted, table, "0001")
    assert report.success and report.failures == ()
    assert report.num_expectations > len(TABLES[table].columns)


def test_an_empty_iteration_passes(planted: Warehouse) -> None:
    report = validate(planted, "episodes", "0009")
    assert report.success and report.num_rows == 0


def test_each_broken_rule_is_listed_with_its_rows(warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None]) -> None:
    write_raw(
        [
            make.episode("good"),
            make.episode("odd", outcome="weird"),
            make.episode("rich", reward=7.0),
            make.episode("lost", task_id="task-z"),
            make.episode("of the moment", policy_id="ckpt-z"),
            make.episode("good"),
        ]
    )
    report = validate(warehouse, "episodes", "0001")
    assert not report.success and report.num_rows == 6 and len(report.failures) == 4
    outcome = _failure(report, "outcome")
    assert (outcome.expectation, outcome.num_unexpected) == ("expect_column_values_to_be_in_set", 1)
    assert outcome.rows == ({"outcome": "weird", "iteration": "0001", "stage": "rollouts", "episode_id": "odd"},)
    assert _failure(report, "reward").rows[0]["episode_id"] == "rich"
    assert _failure(report, "task_id that names no tasks.task_id").rows[0]["episode_id"] == "lost"
    key = _failure(report, None)
    assert key.num_unexpected == 2 and {row["episode_id"] for row in key.rows} == {"good"}
    assert asdict(outcome)["rows"] == outcome.rows  # plain data, ready for JSON


@pytest.mark.usefixtures("tables_place")
def test_one_stage_can_be_checked_alone(warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None]) -> None:
    write_raw([make.episode("odd", outcome="weird")])
    warehouse.replace_partition("episodes", [make.episode("good")], iteration="0001", stage="evaluation")
    assert validate(warehouse, "episodes", "0001", "evaluation").success
    assert not validate(warehouse, "episodes", "0001", "rollouts").success


def test_a_long_list_of_failing_rows_is_cut(warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None]) -> None:
    write_raw([make.episode(f"ep-{i}", num_steps=-1) for i in range(500)])
    failure = _failure(validate(warehouse, "episodes", "0001"), "num_steps")
    assert failure.num_unexpected == 500 and len(failure.rows) == 20


def test_columns_that_the_catalogue_does_not_know_are_named(warehouse: Warehouse, make: Any) -> None:
    row = {"episode_id": "a", "route": "ct", "reason": "V=0"}
    warehouse.replace_partition("routes", [row], iteration="0001", stage="routing")
    delta = warehouse.delta("routes")
    assert delta is not None
    other = pa.Table.from_pylist([row | {"iteration": "0001", "stage": "routing", "colour": "red"}])
    write_deltalake(delta, other, mode="overwrite", predicate="iteration = '0001'", schema_mode="merge")
    failures = validate(warehouse, "routes", "0001").failures
    (columns,) = [failure for failure in failures if failure.expectation == "expect_table_columns_to_match_set"]
    assert "colour" in columns.detail


def test_lists_of_references_are_looked_into(warehouse: Warehouse, make: Any) -> None:
    row = make.checkpoint("ckpt-a", parents=["ckpt-b", "ckpt-a"])
    warehouse.replace_partition("checkpoints", [row], iteration="0001", stage="merged_policy")
    (failure,) = validate(warehouse, "checkpoints", "0001").failures
    assert failure.column == "parents that names no checkpoints.checkpoint_id"
    assert failure.rows[0]["parents that names no checkpoints.checkpoint_id"] == "ckpt-b"


def test_an_unknown_table_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(UnknownTable, match="the tables are tasks"):
        validate(warehouse, "runs", "0001")


class _Links(HTMLParser):
    """Every address that a page would fetch or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, value) for name, value in attrs if name in ("href", "src") and value]


def test_data_docs_stand_alone_and_list_every_page(warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None]) -> None:
    write_raw([make.episode("<script>alert(1)</script>", outcome="weird")])
    index = build_data_docs(warehouse.home, [validate(warehouse, "episodes", "0001"), validate(warehouse, "tasks", "0000")])
    assert build_data_docs(warehouse.home, [validate(warehouse, "tasks", "0001")]) == index
    pages = [index, *(path for path in index.parent.glob("*/*.html"))]
    assert len(pages) == 4
    for page in pages:
        text = page.read_text()
        assert "<script" not in text
        assert not re.search(r"url\(\s*['\"]?https?:", text)
        links = _Links()
        links.feed(text)
        for _, address in links.found:
            assert not address.startswith(("http:", "https:", "//")), address
            assert address.startswith("#") or (page.parent / address).exists(), address
    text = index.read_text()
    assert text.index("0001") < text.index("0000") and "✘ 1 failed" in text and "✔ all hold" in text
    episodes = (index.parent / "0001" / "episodes.html").read_text()
    assert "weird" in episodes and re.search(r"1 of \d+ expectations failed", episodes)


def test_importing_the_suites_does_not_import_great_expectations() -> None:
    code = "import sys, warehouse.quality.expectations; print('great_expectations' in sys.modules, 'pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split()[0] == "False"


@pytest.mark.slow
def test_many_rows_are_checked_in_chunks_as_if_at_once(
    warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make.episode(f"ep-{index}") for index in range(250)]
    faulty = [make.episode("odd", outcome="weird"), make.episode("lost", task_id="task-z"), make.episode("less", num_steps=-1)]
    write_raw([*rows, make.episode("ep-7"), *faulty])
    at_once = validate(warehouse, "episodes", "0001")
    monkeypatch.setattr(row_chunks, "CHUNK_ROWS", 60)
    in_chunks = validate(warehouse, "episodes", "0001")
    assert not in_chunks.success and (in_chunks.num_rows, in_chunks.num_expectations) == (254, at_once.num_expectations)

    def reported(report: ValidationReport) -> set[tuple[str, str | None, int, tuple[str, ...]]]:
        found = ((each, tuple(sorted(row["episode_id"] for row in each.rows))) for each in report.failures)
        return {(each.expectation, each.column, each.num_unexpected, rows) for each, rows in found}

    assert reported(in_chunks) == reported(at_once), "rows with one key are always in one chunk"
    build_data_docs(warehouse.home, [in_chunks])


def test_a_column_of_another_type_is_reported_with_the_rows_that_cannot_be_it(
    warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None]
) -> None:
    write_raw([make.episode("good"), make.episode("odd")])
    delta = warehouse.delta("episodes")
    assert delta is not None
    rows = delta.to_pyarrow_dataset().to_table().sort_by("episode_id")
    wrong = rows.set_column(rows.schema.get_field_index("num_steps"), "num_steps", pa.array(["2", "two"]))
    write_deltalake(delta, wrong, mode="overwrite", schema_mode="overwrite", partition_by=["iteration", "stage"])
    failures = validate(warehouse, "episodes", "0001").failures
    (failure,) = [each for each in failures if each.expectation == "expect_column_values_to_be_of_type"]
    assert (failure.num_unexpected, failure.detail) == (1, "stored as string, not as int64")
    assert failure.rows == ({"num_steps": "two", "iteration": "0001", "stage": "rollouts", "episode_id": "odd"},)


@pytest.mark.slow
def test_rows_of_another_type_are_those_that_cannot_be_it_whichever_chunk_they_are_in(
    warehouse: Warehouse, make: Any, write_raw: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw([make.episode(f"ep-{index}") for index in range(40)])
    delta = warehouse.delta("episodes")
    assert delta is not None
    rows = delta.to_pyarrow_dataset().to_table().sort_by("episode_id")
    monkeypatch.setattr(row_chunks, "CHUNK_ROWS", 8)

    def reported(texts: list[str]) -> tuple[int, set[str]]:
        wrong = rows.set_column(rows.schema.get_field_index("num_steps"), "num_steps", pa.array(texts))
        write_deltalake(delta, wrong, mode="overwrite", schema_mode="overwrite", partition_by=["iteration", "stage"])
        failures = validate(warehouse, "episodes", "0001").failures
        (failure,) = [each for each in failures if each.expectation == "expect_column_values_to_be_of_type"]
        return failure.num_unexpected, {str(row["episode_id"]) for row in failure.rows}

    names = rows["episode_id"].to_pylist()
    texts = ["two" if index in (3, 17, 31) else "2" for index in range(40)]
    assert reported(texts) == (3, {names[index] for index in (3, 17, 31)}), "rows of the first chunk that could be numbers are innocent"
    num, shown = reported(["2"] * 40)
    assert num == 40 and len(shown) == 20, "where all could be, the first stand for all"
