"""`flywheel import general`: conversations of JSON lines and Parquet into D_CT, each once; nothing of a file is passed over unseen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.cli import app as cli
from pipelines.importing.general import import_general_data
from pipelines.importing.report import Report
from pipelines.importing.rows import ScreeningSettings
from tests.pipelines.demonstration_files import write_lines
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(texts)]} | more


def run(home: Path, path: Path, name: str | None = None, **settings: Any) -> tuple[Report, str]:
    console = Console(record=True, width=200)
    report = import_general_data(Warehouse(Home(home)), path, name, console, ScreeningSettings(**settings))
    return report, console.export_text()


def stored(home: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Warehouse(Home(home)).read("ct_samples", iteration="0000", stage=f"general_{name}").to_pylist()
    return rows


def test_conversations_become_samples_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    rows = [
        chat("What is 2 + 2?", "4"),
        chat("What is  2 + 2?", "4"),
        chat("Say hello", "hello", "and again", "hello"),
        chat("no answer"),
        {"conversations": [{"from": "human", "value": "Who wrote it?"}, {"from": "gpt", "value": "She did."}]},
    ]
    report, said = run(home, write_lines(tmp_path / "A file.jsonl", rows))
    assert (report.num_records, report.num_added, report.num_there) == (5, 3, 1)
    assert report.malformed == [("A file.jsonl:4", "it does not end with an answer")]
    assert "5 records: 3 added (3 ct_samples), 1 were there already, 0 withheld, 1 malformed." in said and "general_a_file" in said
    found = stored(home, "a_file")
    assert {row["origin"] for row in found} == {row["domain"] for row in found} == {"general"}
    assert sorted(len(row["messages"]) for row in found) == [2, 2, 4]
    assert all(message["loss"] == 1.0 for row in found for message in row["messages"])
    pq.write_table(pa.Table.from_pylist([chat("what is 2 + 2?", "4"), chat("One more", "yes")]), tmp_path / "b.parquet")
    again, _ = run(home, tmp_path / "b.parquet")
    assert (again.num_added, again.num_there) == (1, 1), "what the first file brought is not added twice"
    assert run(home, tmp_path / "A file.jsonl")[0].num_added == 3, "importing again replaces"
    with connect(Warehouse(Home(home))) as con:
        members = mixed(con, "sft", "0001", MixtureConfig(general=SamplePool())).rows.to_pylist()
    assert [(row["kind"], row["component"], row["weight"]) for row in members] == [("ct", "general", 1.0)] * 4


def test_what_a_record_says_besides_is_kept_or_counted(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi", "weight": 0}, {"from": "gpt", "value": "Yes?", "mood": "fine"}]
    records = [
        {"conversations": turns, "system": "Be brief.", "id": 3, "origin": "rollout", "verdict": False, "source": "a forum"},
        chat("One", "1", source="a forum"),
    ]
    report, said = run(tmp_path / "home", write_lines(tmp_path / "chats.jsonl", records))
    assert report.unknown == {"source": 2, "conversations[].mood": 1} and report.lost == {"`origin`": 1, "`verdict`": 1}
    first = next(row for row in stored(tmp_path / "home", "chats") if len(row["messages"]) == 3)
    assert [(message["role"], message["content"], message["loss"]) for message in first["messages"]] == [
        ("system", "Be brief.", 1.0),
        ("user", "Hi", 0.0),
        ("assistant", "Yes?", 1.0),
    ]
    assert first["verdict"] is None and "conversations[].mood" in said
    manifest = json.loads((tmp_path / "home/imports/general_chats/import.json").read_text())
    assert manifest["counts"]["unknown"] == dict(report.unknown) and manifest["counts"]["lost"] == dict(report.lost)


def test_a_bad_row_is_named_and_kept_and_the_others_come_in(tmp_path: Path) -> None:
    records = [
        {"text": "hello"},
        chat("fine", "yes"),
        {"messages": [{"role": "boss", "content": "hello"}]},
        {"messages": [{"role": "user", "content": 3}]},
        "{",
        {"messages": [*chat("a", "b")["messages"], {"role": "tool", "content": "c"}]},
        {"conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "A cat."}], "images": ["cat.png"]},
    ]
    path = write_lines(tmp_path / "chats.jsonl", records)
    report, said = run(tmp_path / "home", path)
    assert (report.num_records, report.num_added) == (7, 1)
    expected = {
        1: "`conversations` is missing",
        3: "from 'boss'; known are system, human",
        4: "has no text",
        5: "is not JSON",
        6: "does not end with an answer",
        7: "import demonstrations sharegpt",
    }
    assert [where for where, _ in report.malformed] == [f"chats.jsonl:{line}" for line in expected]
    for (_, why), part in zip(report.malformed, expected.values(), strict=True):
        assert part in why
    kept = [json.loads(line) for line in (tmp_path / "home/imports/general_chats/rejected.jsonl").read_text().splitlines()]
    assert [row["record"] for row in kept] == [path.read_text().splitlines()[line - 1] for line in expected] and "rejected.jsonl" in said


def test_personal_data_are_withheld_and_not_repeated(tmp_path: Path) -> None:
    records = [chat("Who is she?", "grace.hopper@navy.mil"), chat("And he?", "user@example.com"), chat("Πώς σε λένε σήμερα;", "Άννα.")]
    path = write_lines(tmp_path / "chats.jsonl", records)
    report, said = run(tmp_path / "home", path)
    assert report.withheld == [("chats.jsonl:1", "holds personal data: an e-mail address in message 1")] and "hopper" not in said
    assert report.num_added == 2 and "hopper" not in json.dumps(stored(tmp_path / "home", "chats"))
    assert run(tmp_path / "kept", path, keep_personal_data=True)[0].num_added == 3
    latin, _ = run(tmp_path / "latin", path, scripts=("Latin",))
    assert [where for where, _ in latin.withheld] == ["chats.jsonl:1", "chats.jsonl:3"]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "bad.jsonl", [{"text": "hello"}, "{"])
    with pytest.raises(ConfigError, match=re.escape("none of 2 records is a conversation of the format general: bad.jsonl:1: ")):
        run(tmp_path / "home", path)
    with pytest.raises(ConfigError, match="lower-case"):
        run(tmp_path / "home", path, "Bad name")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(tmp_path / "home", tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(tmp_path / "home", tmp_path / "text.parquet")
    assert not (tmp_path / "home" / "imports").exists(), "what was imported before stays as it is"


def test_the_command_makes_the_home_as_the_other_imports_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one wants in the first iteration is imported before anything has run."""
    home = tmp_path / "home"
    path = write_lines(tmp_path / "chats.jsonl", [chat("What is 2 + 2?", "4")])
    monkeypatch.setenv("FLYWHEEL_HOME", str(home))
    assert CliRunner().invoke(cli.app, ["import", "general", str(path)]).exit_code == 0
    assert len(stored(home, "chats")) == 1
