"""Where exported samples come from and under which licence, and the card that says so, read as the hub's own library reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from warehouse.datasets.export import export
from warehouse.datasets.provenance import PEOPLE, RECORDINGS, Source, add_sources, known_sources
from warehouse.storage.tables import Warehouse

MINIWOB = Source(source="miniwob", kind="tasks", licence="MIT", origin="pages", stated_by="the task source")


@pytest.fixture
def mixed(warehouse: Warehouse, make: Any) -> Warehouse:
    """A sample of each kind of provenance."""
    tasks = [make.task("task-a"), make.task("task-set", source="imported", name="office:write"), make.task("task-gone", source="shop")]
    warehouse.replace_partition("tasks", tasks, iteration="0000", stage="tasks")
    for stage, purpose, ids in (
        ("rollouts", "rollout", {"ep-page": "task-a", "ep-set": "task-set", "ep-shop": "task-gone"}),
        ("imported_clicks", "seed", {"ep-import": "task-a"}),
        ("recordings", "seed", {"ep-own": "task-a"}),
    ):
        episodes = [make.episode(id_, task_id=task, purpose=purpose, policy_id="policy-1") for id_, task in ids.items()]
        warehouse.replace_partition("episodes", episodes, iteration="0001", stage=stage)
    note = make.annotation("note", "ep-page", origin="human", annotator="user-ada")
    warehouse.replace_partition("annotations", [note], iteration="0001", stage="human_annotations")

    def add(stage: str, *rows: dict[str, Any], iteration: str = "0001") -> None:
        warehouse.replace_partition("sft_samples", list(rows), iteration=iteration, stage=stage)

    played = [make.sample(f"of-{id_}", episode_id=f"ep-{id_}", step_index=0, origin="rollout") for id_ in ("page", "set", "shop")]
    decided = make.sample("decided", episode_id="ep-page", step_index=1, origin="annotation", annotation_id="note")
    add("routing", *played, decided)
    add("imported_clicks", make.sample("of-import", episode_id="ep-import", step_index=0), iteration="0000")
    add("general_chats", make.sample("of-chats", origin="general", domain="general"), iteration="0000")
    add("recordings", make.sample("of-own", episode_id="ep-own", step_index=0, origin="annotation"))
    add("seed_tutorials", make.sample("told", origin="tutorial", domain="general"), iteration="0000")
    office = Source(source="imported:office", kind="tasks", licence="in-house, do not share")
    add_sources(warehouse, [MINIWOB, office], stage="tasks")
    add_sources(warehouse, [Source(source="imported_clicks", kind="import", licence="CC-BY-4.0")], stage="imported_clicks")
    add_sources(warehouse, [Source(source=PEOPLE, kind="people", licence="work for hire")], iteration="0001", stage="human_annotations")
    add_sources(warehouse, [Source(source=RECORDINGS, kind="people", licence="by consent")], iteration="0001", stage="recordings")
    return warehouse


EXPECTED = {
    "of-page": ("miniwob", "MIT"),
    "of-set": ("imported:office", "in-house, do not share"),
    "of-shop": ("shop", "unknown"),
    "decided": ("miniwob", "MIT; annotators: work for hire"),
    "of-import": ("imported_clicks", "CC-BY-4.0"),
    "of-chats": ("general_chats", "unknown"),
    "of-own": ("recordings", "by consent"),
    "told": ("flywheel", "Apache-2.0"),
}


@pytest.mark.usefixtures("tables_place")
def test_each_sample_names_its_source_and_licence_in_every_format(mixed: Warehouse, tmp_path: Path) -> None:
    for format_, file in (
        ("trl", "train.jsonl"),
        ("sharegpt", "data.jsonl"),
        ("llama-factory", "data.json"),
        ("parquet", "samples.parquet"),
    ):
        export(mixed, tmp_path / format_, format=format_)
        if format_ == "parquet":
            rows = pq.read_table(tmp_path / format_ / file).to_pylist()
        elif file.endswith(".jsonl"):
            rows = [json.loads(line) for line in (tmp_path / format_ / file).read_text().splitlines()]
        else:
            rows = json.loads((tmp_path / format_ / file).read_text())
        assert sorted((row["source"], row["licence"]) for row in rows) == sorted(EXPECTED.values()), format_
        ids = {row.get("sample_id", row.get("id")): (row["source"], row["licence"]) for row in rows}
        assert format_ == "llama-factory" or ids == EXPECTED


@pytest.mark.slow
def test_the_card_is_one_that_the_hub_reads(mixed: Warehouse, tmp_path: Path) -> None:
    export(mixed, tmp_path / "out", format="trl")
    card = DatasetCard.load(tmp_path / "out" / "README.md")
    assert set(card.data.license) == {"mit", "cc-by-4.0", "apache-2.0", "other", "unknown"} and "in-house" in card.data.license_name
    assert card.data.configs[0]["data_files"] == [{"split": "train", "path": "train.jsonl"}] and card.data.size_categories == ["n<1K"]
    for line in (
        "8 samples from 5 episodes",
        "| miniwob | MIT | policies of this flywheel | rollout | 1 |",
        "| miniwob | MIT; annotators: work for hire | people: annotated or recorded | annotation | 1 |",
        "| miniwob | pages | MIT | the task source |",
    ):
        assert line in card.text, line
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["licences"]["unknown"] == 2
    export(mixed, tmp_path / "all", format="parquet", dataset="all")
    assert "8 samples" in DatasetCard.load(tmp_path / "all" / "README.md").text
    export(mixed, tmp_path / "one.duckdb", format="duckdb")
    with duckdb.connect(str(tmp_path / "one.duckdb"), read_only=True) as con:
        assert "8 samples" in con.sql("select card from dataset_card").fetchall()[0][0]


def test_a_home_from_before_takes_what_installed_sources_say(warehouse: Warehouse, make: Any, tmp_path: Path) -> None:
    warehouse.replace_partition("tasks", [make.task("task-a")], iteration="0000", stage="tasks")
    warehouse.replace_partition("episodes", [make.episode("ep")], iteration="0001", stage="rollouts")
    warehouse.replace_partition("sft_samples", [make.sample("s", episode_id="ep", step_index=0)], iteration="0001", stage="routing")
    export(warehouse, tmp_path / "old")
    export(warehouse, tmp_path / "new", installed=[MINIWOB])
    assert [DatasetCard.load(tmp_path / name / "README.md").data.license for name in ("old", "new")] == ["unknown", "mit"]
    add_sources(warehouse, [Source(source="miniwob", kind="tasks", licence="CC0-1.0")], stage="tasks")
    assert known_sources(warehouse, [MINIWOB])["miniwob"].licence == "CC0-1.0", "what the home says goes first"
