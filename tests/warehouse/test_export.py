"""Exports, read back as their users read them: JSON lines, one JSON array, Parquet, and a DuckDB file under another name."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.models.chat_models import chat_tokenizer, small_idefics3
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.datasets.export import FORMATS, export
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import Warehouse


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def samples(warehouse: Warehouse, make: Any) -> Warehouse:
    def chat(*turns: tuple[str, str, float]) -> list[dict[str, Any]]:
        return [{"role": role, "content": content, "loss": loss} for role, content, loss in turns]

    whole = chat(("system", "be brief", 0), ("user", 'click "Ö"\n', 0), ("assistant", "done", 1))
    twice = chat(("user", "one", 0), ("user", "two", 0), ("assistant", "three", 1))
    warehouse.replace_partition(
        "sft_samples", [make.sample("a", messages=whole), make.sample("b", messages=twice)], iteration="0000", stage="seed_demonstrations"
    )
    everything = chat(("user", "read this", 1), ("assistant", "I did", 1))
    alone = chat(("assistant", "a page of a book", 1))
    rows = [make.sample("c", messages=everything), make.sample("d", messages=alone)]
    warehouse.replace_partition("ct_samples", rows, iteration="0000", stage="seed_tutorials")
    members = [
        {"dataset_id": "data-1", "kind": "sft", "sample_id": name, "component": "demonstration", "weight": weight}
        for name, weight in (("a", 2.0), ("b", 0.5))
    ]
    warehouse.replace_partition("datasets", members, iteration="0001", stage="sft_dataset")
    return warehouse


def test_trl_reads_prompt_and_completion(samples: Warehouse, tmp_path: Path) -> None:
    result = export(samples, tmp_path / "out", format="trl", dataset="sft")
    assert (result.num_rows, result.num_left_out) == (2, 0)
    first, second = _lines(tmp_path / "out" / "train.jsonl")
    assert first["prompt"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": 'click "Ö"\n'}]
    assert first["completion"] == [{"role": "assistant", "content": "done"}]
    assert [message["content"] for message in second["prompt"]] == ["one", "two"]
    table = pyarrow.json.read_json(tmp_path / "out" / "train.jsonl")  # what Hugging Face `datasets` reads JSON lines with
    assert table.column_names == ["sample_id", "weight", "source", "licence", "prompt", "completion"]


def test_trl_learns_every_token_where_prompts_carry_loss(samples: Warehouse, tmp_path: Path) -> None:
    export(samples, tmp_path / "out", format="trl", dataset="ct")
    rows = _lines(tmp_path / "out" / "train.jsonl")
    assert [len(row["messages"]) for row in rows] == [2, 1] and all("prompt" not in row for row in rows)
    assert "every token is learned" in json.loads((tmp_path / "out" / "manifest.json").read_text())["note"]


def test_llama_factory_gets_alternating_turns_and_its_dataset_info(samples: Warehouse, tmp_path: Path) -> None:
    export(samples, tmp_path / "out", format="llama-factory", dataset="data-1")
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())["flywheel_data-1"]
    assert (info["file_name"], info["formatting"], info["columns"]) == ("data.json", "sharegpt", {"messages": "messages"})
    rows = json.loads((tmp_path / "out" / info["file_name"]).read_text())
    assert [turn["role"] for turn in rows[0]["messages"]] == ["system", "user", "assistant"]
    assert rows[1]["messages"] == [{"role": "user", "content": "one\n\ntwo"}, {"role": "assistant", "content": "three"}]


def test_what_a_format_cannot_say_is_left_out_and_counted(samples: Warehouse, tmp_path: Path) -> None:
    result = export(samples, tmp_path / "out", format="llama-factory", dataset="ct")
    assert (result.num_rows, result.num_left_out) == (1, 1)
    assert len(json.loads((tmp_path / "out" / "data.json").read_text())) == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["num_left_out"] == 1 and "train_on_prompt" in manifest["note"]


def test_sharegpt_names_the_speakers_and_keeps_the_weights(samples: Warehouse, tmp_path: Path) -> None:
    export(samples, tmp_path / "out", format="sharegpt", dataset="sft")
    first = _lines(tmp_path / "out" / "data.jsonl")[0]
    assert [(turn["from"], turn["weight"]) for turn in first["conversations"]] == [("system", 0.0), ("human", 0.0), ("gpt", 1.0)]


def test_parquet_holds_the_samples_of_a_snapshot_with_their_weights(samples: Warehouse, tmp_path: Path) -> None:
    export(samples, tmp_path / "out", format="parquet", dataset="data-1")
    rows = pq.read_table(tmp_path / "out" / "samples.parquet").to_pylist()
    assert [(row["sample_id"], row["weight"]) for row in rows] == [("a", 2.0), ("b", 0.5)]
    assert rows[0]["messages"][2] == {"role": "assistant", "content": "done", "screenshot_id": None, "loss": 1.0}


@pytest.mark.usefixtures("tables_place")
def test_a_snapshot_of_both_kinds_is_exported_whole(samples: Warehouse, tmp_path: Path) -> None:
    members = [
        {"dataset_id": "data-2", "kind": kind, "sample_id": name, "component": "mixed", "weight": 1.0}
        for kind, name in (("sft", "a"), ("sft", "b"), ("ct", "c"))
    ]
    samples.replace_partition("datasets", members, iteration="0002", stage="sft_dataset")
    export(samples, tmp_path / "out", format="parquet", dataset="data-2")
    assert sorted(pq.read_table(tmp_path / "out" / "samples.parquet").column("sample_id").to_pylist()) == ["a", "b", "c"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["num_withdrawn_since"] == 0


@pytest.mark.usefixtures("tables_place")
def test_parquet_of_everything_is_every_table(own: Warehouse, tmp_path: Path) -> None:
    export(own, tmp_path / "out", format="parquet", dataset="all")
    for table in TABLES:
        assert pq.read_table(tmp_path / "out" / f"{table}.parquet").num_rows == own.read(table).num_rows


@pytest.mark.usefixtures("tables_place")
def test_a_duckdb_file_stands_alone_under_any_name(own: Warehouse, tmp_path: Path) -> None:
    export(own, tmp_path / "first.duckdb", format="duckdb", as_of="0001")
    export(own, tmp_path / "first.duckdb", format="duckdb")  # replaces the earlier one
    shutil.move(tmp_path / "first.duckdb", tmp_path / "second.db")
    with duckdb.connect(str(tmp_path / "second.db"), read_only=True) as con:
        for table in TABLES:
            assert con.execute(f"SELECT count(*) FROM {table}").fetchall() == [(own.read(table).num_rows,)]
        found = con.execute("SELECT count(*) FROM ancestors('ckpt-sft-2') WHERE kind = 'episode'").fetchall()
        assert found == [(3,)]
        comment = con.execute("SELECT comment FROM duckdb_columns() WHERE table_name = 'routes' AND column_name = 'route'").fetchall()
        assert comment == [("its one destination",)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "second.db"]


@pytest.mark.usefixtures("tables_place")
def test_screenshots_that_samples_show_go_along(warehouse: Warehouse, make: Any, tmp_path: Path) -> None:
    warehouse.add_screenshots([make.screenshot("shot-1", b"\x89PNG"), make.screenshot("shot-2", b"other")])
    messages = make.messages("look")
    messages[0]["screenshot_id"] = "shot-1"
    rows = [make.sample("a", messages=messages), make.sample("b")]
    warehouse.replace_partition("sft_samples", rows, iteration="0000", stage="seed_demonstrations")
    export(warehouse, tmp_path / "trl", format="trl")
    first, second = _lines(tmp_path / "trl" / "train.jsonl")
    assert first["prompt"][0]["content"] == [{"type": "image"}, {"type": "text", "text": "look"}]
    assert first["images"] == ["images/shot-1.png"] and second["images"] == []
    assert (tmp_path / "trl" / "images" / "shot-1.png").read_bytes() == b"\x89PNG"
    assert [path.name for path in (tmp_path / "trl" / "images").iterdir()] == ["shot-1.png"]
    export(warehouse, tmp_path / "factory", format="llama-factory")
    rows = json.loads((tmp_path / "factory" / "data.json").read_text())
    assert rows[0]["messages"][0]["content"] == "<image>look" and rows[0]["images"] == ["images/shot-1.png"]
    assert json.loads((tmp_path / "factory" / "dataset_info.json").read_text())["flywheel_sft"]["columns"]["images"] == "images"


def test_a_screenshot_that_is_not_stored_is_named(warehouse: Warehouse, make: Any, tmp_path: Path) -> None:
    messages = make.messages("look")
    messages[0]["screenshot_id"] = "shot-gone"
    warehouse.replace_partition("sft_samples", [make.sample("a", messages=messages)], iteration="0000", stage="seed_demonstrations")
    with pytest.raises(UnknownId, match="the first is shot-gone"):
        export(warehouse, tmp_path / "out", format="sharegpt")
    assert list(tmp_path.glob("*out*")) == []


@pytest.mark.usefixtures("tables_place")
def test_withdrawn_samples_never_leave(samples: Warehouse, tmp_path: Path) -> None:
    withdraw(samples, "sft_samples", ["a"], iteration="0002")
    assert [row["sample_id"] for row in _lines(export(samples, tmp_path / "sft").path / "train.jsonl")] == ["b"]
    export(samples, tmp_path / "snapshot", dataset="data-1")
    assert json.loads((tmp_path / "snapshot" / "manifest.json").read_text())["num_withdrawn_since"] == 1
    assert export(samples, tmp_path / "before", as_of="0001").num_rows == 2


MIB = 1024**2


@pytest.fixture
def mixed(warehouse: Warehouse, make: Any) -> Warehouse:
    """Enough that a reader of JSON takes its types from a part of it: the first have no verdict and no picture, the last have."""
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    warehouse.add_screenshots([make.screenshot("shot-1", picture.getvalue())])
    bare = [make.sample(f"a{number:05d}", messages=make.messages("x" * 6000), verdict=None) for number in range(2500)]
    shown = make.messages("look")
    shown[0]["screenshot_id"] = "shot-1"
    judged = [make.sample(f"b{number}", messages=shown, verdict=number % 2 == 0) for number in range(4)]
    for kind in ("sft", "ct"):
        warehouse.replace_partition(f"{kind}_samples", [*bare, *judged], iteration="0001", stage="routes")
    members = [
        {"dataset_id": "data-1", "kind": "ct", "sample_id": row["sample_id"], "component": "routed", "weight": 1.0}
        for row in (*bare, *judged)
    ]
    warehouse.replace_partition("datasets", members, iteration="0001", stage="ct_dataset")
    return warehouse


@pytest.mark.slow
@pytest.mark.parametrize("format", ["trl", "llama-factory", "sharegpt", "parquet"])
def test_hugging_face_datasets_loads_every_export(mixed: Warehouse, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets

    for dataset in ("sft", "ct", "data-1"):
        exported = export(mixed, tmp_path / dataset, format=format, dataset=dataset)
        (path,) = [
            path
            for path in (tmp_path / dataset).iterdir()
            if path.suffix in (".json", ".jsonl", ".parquet") and path.name not in ("manifest.json", "dataset_info.json")
        ]
        assert format == "parquet" or path.stat().st_size > 12 * MIB
        kind = "parquet" if format == "parquet" else "json"
        loaded = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert loaded.num_rows == exported.num_rows == 2504
        if format == "sharegpt":
            assert Counter(loaded["verdict"]) == {"none": 2500, "good": 2, "bad": 2}
        if format != "parquet":
            assert sum(len(images) for images in loaded["images"]) == 4


def trained_by_trl(model: Any, processing: Any, rows: Any, folder: Path) -> tuple[Any, float]:
    """What TRL's SFTTrainer reads first of these rows, and the loss of its one step on them."""
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=rows.num_rows,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        activation_checkpointing=False,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
    )
    trainer = SFTTrainer(model=model, args=settings, processing_class=processing, train_dataset=rows)
    before = [parameter.clone() for parameter in model.parameters()]
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.train().training_loss
    assert any(not old.equal(new) for old, new in zip(before, model.parameters(), strict=True)), "nothing was learned"
    return batch, loss


@pytest.mark.long
def test_trl_trains_on_what_we_export_for_it(samples: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both layouts: prompt and completion, and whole chats. The loss is on the text that ours is on."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = chat_tokenizer()
    for dataset, learned, context in (("sft", ["done", "three"], "be brief"), ("ct", ["read this", "I did", "a page of a book"], None)):
        folder = export(samples, tmp_path / dataset, format="trl", dataset=dataset).path
        rows = datasets.load_dataset("json", data_files=str(folder / "train.jsonl"), split="train", cache_dir=str(tmp_path / "cache"))
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        batch, loss = trained_by_trl(model, tokenizer, rows, tmp_path / f"{dataset}-trained")
        read = tokenizer.batch_decode(batch["input_ids"])
        reported = [tokenizer.decode(labels[labels != -100]) for labels in batch["labels"]]
        assert math.isfinite(loss) and loss > 0
        assert all(any(text in one for one in reported) for text in learned)
        assert context is None or (any(context in one for one in read) and not any(context in one for one in reported))


@pytest.mark.long
def test_trl_trains_on_pictures_too(warehouse: Warehouse, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    import datasets

    picture = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(picture, "PNG")
    warehouse.add_screenshots([make.screenshot("shot-1", picture.getvalue())])
    messages = make.messages("see the screen", "click 12")
    messages[0]["screenshot_id"] = "shot-1"
    warehouse.replace_partition("sft_samples", [make.sample("a", messages=messages)], iteration="0000", stage="seed_demonstrations")
    folder = export(warehouse, tmp_path / "out", format="trl").path
    monkeypatch.chdir(folder)  # the paths of pictures are relative to it
    rows = datasets.load_dataset("json", data_files="train.jsonl", split="train", cache_dir=str(tmp_path / "cache"))
    model, _, processor = small_idefics3()
    batch, loss = trained_by_trl(model, processor, rows.cast_column("images", datasets.List(datasets.Image())), tmp_path / "trained")
    assert math.isfinite(loss) and loss > 0
    assert float(batch["pixel_values"].abs().sum()) > 0
    (labels,) = batch["labels"]
    reported = processor.tokenizer.decode(labels[labels != -100])
    assert "click 12" in reported and "see the screen" not in reported


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_warehouse_exports_empty_files(warehouse: Warehouse, tmp_path: Path, format: str) -> None:
    assert export(warehouse, tmp_path / "out", format=format).num_rows == 0
    if format == "llama-factory":
        assert json.loads((tmp_path / "out" / "data.json").read_text()) == []


def test_what_is_not_an_export_is_left_alone(samples: Warehouse, tmp_path: Path) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.txt").write_text("precious")
    with pytest.raises(ConfigError, match="holds other things"):
        export(samples, mine)
    with pytest.raises(ConfigError, match="is a folder"):
        export(samples, mine, format="duckdb")
    with pytest.raises(ConfigError, match="is a file"):
        export(samples, mine / "chapter.txt")
    with pytest.raises(ConfigError, match="is not a DuckDB file"):
        export(samples, mine / "chapter.txt", format="duckdb")
    assert (mine / "chapter.txt").read_text() == "precious"
    export(samples, tmp_path / "out")
    export(samples, tmp_path / "out", dataset="ct")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["dataset"] == "ct"


def test_wrong_requests_are_refused_with_the_right_ones(samples: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the formats are trl, llama-factory"):
        export(samples, tmp_path / "out", format="csv")
    with pytest.raises(UnknownId, match="the newest snapshots are data-1"):
        export(samples, tmp_path / "out", dataset="data-2")
    with pytest.raises(ConfigError, match="holds samples, not tables"):
        export(samples, tmp_path / "out", dataset="all")
    assert list(tmp_path.glob("*out*")) == []
