"""The loss on texts that no dataset holds: which they are, what it is, and that a stage stores it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.policy.policy import Message
from assets.seed_data.tutorials import tutorials
from assets.stages.requests import InitialiseRequest, SupervisedRequest
from models.families.registry import load_codec
from models.supervised.config import SupervisedConfig
from models.supervised.text_loss import text_loss
from pipelines.stages import initialise as seed_worker
from pipelines.stages import supervised as supervised_worker
from tests.pipelines.test_supervised_worker import context
from warehouse.core.home import Home
from warehouse.datasets.general_data import general_row
from warehouse.datasets.held_out_texts import held_out_texts
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.lineage import registry
from warehouse.routing.samples import tutorial_rows
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

NUM = 200


def talk(number: int) -> list[dict[str, object]]:
    return [
        {"role": "user", "content": f"say {number}", "screenshot_id": None, "loss": 1.0},
        {"role": "assistant", "content": f"click {number}", "screenshot_id": None, "loss": 1.0},
    ]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    made = Warehouse(Home(tmp_path / "home"))
    made.replace_partition("ct_samples", [general_row(talk(number)) for number in range(NUM)], iteration="0000", stage="general_talk")
    made.replace_partition("ct_samples", tutorial_rows(tutorials(40, 0)), iteration="0000", stage="seed_tutorials")
    return made


@pytest.mark.usefixtures("tables_place")
def test_one_in_twenty_is_in_no_dataset(warehouse: Warehouse) -> None:
    held_out = held_out_texts(warehouse)
    assert 2 <= len(held_out) <= 25 and held_out == held_out_texts(warehouse)
    assert held_out_texts(warehouse, 1) == held_out[:1]
    for kind, mixture in (
        ("ct", MixtureConfig(general=SamplePool(), tutorial=SamplePool())),
        ("sft", MixtureConfig(general=SamplePool(), tutorial=SamplePool())),
    ):
        with connect(warehouse) as con:
            rows = mixed(con, kind, "0001", mixture).rows.to_pylist()  # type: ignore[arg-type]
        components = [row["component"] for row in rows]
        assert components.count("general") == NUM - len(held_out), "they are drawn by neither"
        assert components.count("tutorial") == 40, "and of tutorials none is held out"


@pytest.mark.slow
def test_a_stage_stores_it(warehouse: Warehouse) -> None:
    home = warehouse.home
    asked = InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",))
    parent = registry.find(warehouse, str(seed_worker.run(asked, context(home, "0000", "seed_policy")).checkpoint_id))
    texts = [tuple(Message(**message) for message in text) for text in held_out_texts(warehouse)]
    before = text_loss(parent.folder, texts)
    assert before is not None and 1 < before < 3 * math.log(10_000)
    assert text_loss(parent.folder, texts[:1]) != before and text_loss(parent.folder, []) is None
    assert load_codec(parent.folder) is not None
    with connect(warehouse) as con:
        dataset = mixed(con, "ct", "0001", MixtureConfig(general=SamplePool(draws=400), tutorial=SamplePool()))
    warehouse.replace_partition("datasets", dataset.rows, iteration="0001", stage="ct_dataset")
    request = SupervisedRequest(
        iteration="0001",
        stage="ct_model",
        seed=0,
        kind="ct",
        checkpoint_id=parent.checkpoint_id,
        dataset_id=dataset.dataset_id,
        config=SupervisedConfig(steps=20, warmup_steps=2, batch_tokens=512, log_every=5),
    )
    result = supervised_worker.run(request, context(home, "0001", "ct_model"))
    stored = [row for row in warehouse.read("training_metrics", iteration="0001").to_pylist() if row["metric"] == "text_loss"]
    assert [(row["step"], row["value"]) for row in stored] == [(20, result.metrics["text_loss"])]
    assert result.metrics["text_loss"] < before, "talks of this kind were trained on, and these are like them"
    assert result.metrics["text_loss"] == pytest.approx(text_loss(registry.find(warehouse, str(result.checkpoint_id)).folder, texts))
