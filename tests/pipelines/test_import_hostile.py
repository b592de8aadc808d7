"""Imports of records that were written to do harm, or by nobody who looked: a bad one is refused by file and line, and the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fuzz_imports import FORMATS, play, play_parquet, play_trace, valid, write_pictures
from tests.pipelines.demonstration_files import write_lines
from tests.pipelines.test_import_demonstrations import run


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_records_changed_at_random_are_refused_by_their_line_or_taken(format: str, tmp_path: Path) -> None:
    """100 records, ten of them untouched; more: `python -m benchmarks.fuzz_imports`."""
    assert 10 < play(format, range(100), tmp_path) <= 90


@pytest.mark.slow
def test_so_are_those_of_a_parquet_file(tmp_path: Path) -> None:
    assert 10 < play_parquet(range(100), tmp_path) < 100


def test_traces_of_playwright_are_refused_or_read(tmp_path: Path) -> None:
    assert 10 < play_trace(range(60), tmp_path) < 60


@pytest.mark.parametrize("name", ["n" * 300, "a/" * 3000 + "b", "a\0b", "", ".", "folder.png", "link.png", "cut.png", "huge.png"])
def test_a_picture_by_a_name_that_no_file_has_costs_its_record_alone(name: str, tmp_path: Path) -> None:
    write_pictures(tmp_path)
    records = [valid("agentnet", number) for number in range(3)]
    records[1]["traj"][0]["image"] = name
    report, _ = run(tmp_path / "home", "agentnet", write_lines(tmp_path / "demos.jsonl", [json.dumps(record) for record in records]))
    assert report.num_added == 2 and [where for where, _ in report.malformed] == ["demos.jsonl:2"]


@pytest.mark.parametrize(
    ("attributes", "why"), [("[" * 5000, "nested deeper"), ('{"a": NaN}', "nan"), ("9" * 5000, "not JSON"), ("{", "not JSON")]
)
def test_json_inside_of_json_is_read_within_the_same_limits(attributes: str, why: str, tmp_path: Path) -> None:
    records = [valid("mind2web", number) for number in range(2)]
    records[0]["actions"][0]["pos_candidates"][0]["attributes"] = attributes
    report, _ = run(tmp_path / "home", "mind2web", write_lines(tmp_path / "demos.jsonl", records))
    ((where, said),) = report.malformed
    assert report.num_added == 1 and where == "demos.jsonl:1" and why in said and len(said) < 300
