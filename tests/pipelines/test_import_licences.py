"""Licences of imports and of task sources: said once, kept with the import, and on the samples that are exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.importing.registry import IMPORTERS
from sandbox.tasks.imported.collecting import TASK_FORMATS
from sandbox.tasks.licences import task_sources
from sandbox.tasks.registry import SOURCES
from tests.pipelines.demonstration_files import agentnet, images, write_lines
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.datasets.provenance import known_sources
from warehouse.storage.tables import Warehouse

CHATS = [{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}]


def flywheel(home: Path, *words: str) -> str:
    ran = CliRunner().invoke(app, [*words, "--home", str(home)], env={"COLUMNS": "400"})
    if ran.exception is not None:
        raise ran.exception
    return ran.output


@pytest.mark.slow
def test_an_import_keeps_its_licence_and_its_samples_carry_it(tmp_path: Path) -> None:
    home, warehouse = tmp_path / "home", Warehouse(Home(tmp_path / "home"))
    images(tmp_path / "shots", 2)
    clicks = write_lines(tmp_path / "clicks.jsonl", [agentnet("one", ["pyautogui.click(x=0.2, y=0.5)"])])
    words = ("import", "demonstrations", "agentnet", str(clicks), "--track", "expert", "--images", str(tmp_path / "shots"))
    flywheel(home, *words)
    public = known_sources(warehouse)["imported_clicks"]
    assert (public.licence, public.stated_by) == (
        "MIT",
        "the importer, of the collection's own dataset card",
    ) and "AgentNet" in public.origin
    flywheel(home, *words, "--licence", " CC-BY-4.0 ")
    flywheel(home, *words)
    said = known_sources(warehouse)["imported_clicks"]
    assert (said.licence, said.stated_by) == ("CC-BY-4.0", "whoever imported it"), "and what was said stays"

    flywheel(home, "import", "general", str(write_lines(tmp_path / "chats.jsonl", CHATS)))
    assert known_sources(warehouse)["general_chats"].licence == "unknown"
    flywheel(home, "export", str(tmp_path / "out"), "--format", "sharegpt", "--dataset", "sft")
    rows = [json.loads(line) for line in (tmp_path / "out" / "data.jsonl").read_text().splitlines()]
    assert {(row["source"], row["licence"]) for row in rows} == {("imported_clicks", "CC-BY-4.0")}
    again = flywheel(
        home, "import", "demonstrations", "sharegpt", str(tmp_path / "out" / "data.jsonl"), "--track", "unreviewed", "--dry-run"
    )
    assert "unknown field" not in again, "an export of ours is read again whole"

    flywheel(home, "forget", "--import", "clicks", "--yes")
    for licence in ("", "x" * 201):
        with pytest.raises(ConfigError, match="best by its SPDX id"):
            flywheel(home, *words, "--licence", licence)


def test_a_set_of_tasks_has_the_licence_that_it_was_imported_under(tmp_path: Path) -> None:
    home, tasks = tmp_path / "home", tmp_path / "tasks.jsonl"
    write_lines(tasks, [{"name": "write", "kind": "terminal", "instruction": "Write a.", "goals": [{"kind": "file", "path": "a"}]}])
    flywheel(home, "import", "tasks", "plain", str(tasks), "--name", "office")
    (said,) = task_sources(["imported"], Home(home))
    assert (said.source, said.licence) == ("imported:office", "unknown")
    flywheel(home, "import", "tasks", "plain", str(tasks), "--name", "office", "--licence", "MIT")
    assert "nothing changed" in flywheel(home, "import", "tasks", "plain", str(tasks), "--name", "office"), "and what was said stays"
    (said,) = task_sources(["imported"], Home(home))
    assert (said.licence, said.stated_by) == ("MIT", "whoever imported it")


def test_an_importer_says_which_collection_its_files_are_of() -> None:
    licences = {
        (format, file): found.licence if (found := IMPORTERS[format].collection([Path(file)])) is not None else None
        for format, file in (("agentnet", "a.jsonl"), ("mind2web", "a.json"), ("mind2web", "a.parquet"), ("sharegpt", "a.jsonl"))
    }
    assert list(licences.values()) == ["MIT", "CC-BY-4.0", "OpenRAIL", None]
    stated = {name: format.collection.licence for name, format in TASK_FORMATS.items() if format.collection is not None}
    assert stated == {"miniwob": "MIT"}, "lists of Online-Mind2Web have the form of Mind2Web's"


def test_each_source_that_ships_says_its_licence_and_where_it_is_from() -> None:
    assert [
        name
        for name in SOURCES.installed()
        if name != "imported" and "unknown" in (SOURCES[name].licence, SOURCES[name].origin or "unknown")
    ] == []
