"""General data: from JSON lines and Parquet into D_CT, each conversation once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warehouse.errors import ConfigError
from warehouse.general_data import import_general
from warehouse.home import Home
from warehouse.mixing import MixtureConfig, Pool, snapshot
from warehouse.query import connect
from warehouse.tables import Warehouse


def chat(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(texts)]}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_conversations_become_samples_once(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    rows = [
        chat("What is 2 + 2?", "4"), chat("What is  2 + 2?", "4"), chat("Say hello", "hello", "and again", "hello"), chat("no answer"),
        {"conversations": [{"from": "human", "value": "Who wrote it?"}, {"from": "gpt", "value": "She did."}]},
    ]  # fmt: skip
    said = import_general(warehouse, write_lines(tmp_path / "a.jsonl", rows), name="a")
    assert (said.num_read, said.num_added, said.num_duplicates, said.num_without_answer) == (5, 3, 1, 1)
    stored = warehouse.read("ct_samples", iteration="0000", stage="general_a").to_pylist()
    assert {row["origin"] for row in stored} == {row["domain"] for row in stored} == {"general"}
    assert sorted(len(row["messages"]) for row in stored) == [2, 2, 4]
    assert all(message["loss"] == 1.0 for row in stored for message in row["messages"])
    table = pa.Table.from_pylist([chat("what is 2 + 2?", "4"), chat("One more", "yes")])
    pq.write_table(table, tmp_path / "b.parquet")
    again = import_general(warehouse, tmp_path / "b.parquet", name="b")
    assert (again.num_added, again.num_duplicates) == (1, 1), "what the first file brought is not added twice"
    assert import_general(warehouse, tmp_path / "a.jsonl", name="a").num_added == 3, "importing again replaces"
    _, members = snapshot(connect(warehouse), "sft", "0001", MixtureConfig(general=Pool()))
    assert [(row["kind"], row["component"], row["weight"]) for row in members] == [("ct", "general", 1.0)] * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "hello"}', "row 1 of .* is not a conversation"),
        ('{"messages": [{"role": "boss", "content": "hello"}]}', "system, user, assistant, tool"),
        ('{"messages": [{"role": "user", "content": 3}]}', "only text is taken"),
        ("{", "cannot be read as JSON lines"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    warehouse = Warehouse(Home(tmp_path / "home"))
    with pytest.raises(ConfigError, match=said):
        import_general(warehouse, tmp_path / "bad.jsonl", name="bad")
    with pytest.raises(ConfigError, match="lower-case"):
        import_general(warehouse, tmp_path / "bad.jsonl", name="Bad name")
    with pytest.raises(ConfigError, match="cannot be read"):
        import_general(warehouse, tmp_path / "none.parquet", name="none")
