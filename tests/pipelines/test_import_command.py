"""`flywheel import general`, behind the terminal."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from pipelines.import_command import import_general_data
from warehouse.home import Home
from warehouse.tables import Warehouse


def test_says_what_became_of_the_file(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]}
    path = tmp_path / "My Chats.jsonl"
    path.write_text(f"{json.dumps(chat)}\n{json.dumps(chat)}\n")
    console = Console(record=True, width=200)
    warehouse = Warehouse(Home(tmp_path / "home"))
    import_general_data(warehouse, path, None, console)
    assert "1 of 2 conversations are general data my_chats now; left out: 1 that were there already" in console.export_text()
    assert warehouse.read("ct_samples", iteration="0000", stage="general_my_chats").num_rows == 1
