"""Exports of spans, as they come in, are lines of the day's log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.gateway import intake
from agent.gateway.intake import Intake, logs_of
from warehouse.core.errors import RequestRefused
from warehouse.core.home import Home

EXPORT: dict[str, Any] = {"resourceSpans": [{"scopeSpans": []}]}


def written(home: Path) -> list[Path]:
    return [path for path in logs_of(Home(home)).rglob("*") if path.is_file()]


def test_each_export_is_a_line_of_the_day_also_after_one_that_was_cut_off(tmp_path: Path) -> None:
    took = Intake(Home(tmp_path))
    took.add("../alpha", json.dumps(EXPORT, indent=2).encode())
    (path,) = written(tmp_path)
    assert path.relative_to(tmp_path).parts == ("logs", datetime.now(UTC).date().isoformat(), "otel-genai", "___alpha.jsonl")
    path.write_bytes(path.read_bytes() + b'{"resourceSp')
    took.add("../alpha", json.dumps(EXPORT).encode())
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in (lines[0], lines[2])] == [EXPORT, EXPORT] and lines[1] == '{"resourceSp'


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"resourceSpans": {}}', b'{"resourceSpans": [NaN]}', b'{"resourceSpans": ["\\ud800"]}', b"[" * 100_000]
)
def test_what_is_no_export_is_refused_and_not_stored(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="export"):
        Intake(Home(tmp_path)).add("alpha", body)
    assert not written(tmp_path)


def test_a_full_day_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_DAY_BYTES", 60)
    took = Intake(Home(tmp_path))
    took.add("alpha", json.dumps(EXPORT).encode())
    with pytest.raises(RequestRefused, match="at most 60"):
        took.add("alpha", json.dumps(EXPORT).encode())
