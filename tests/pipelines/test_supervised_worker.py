"""The worker of CT and SFT on real tables: a snapshot of tutorials and general data, trained on in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from assets.seed_data.tutorials import tutorials
from assets.stages.requests import InitialiseRequest, SupervisedRequest
from models.checkpoints.checkpoint import verify
from models.supervised.config import SupervisedConfig
from pipelines.importing.general import import_general_data
from pipelines.orchestration.work import progress
from pipelines.orchestration.work.folder import work_folder
from pipelines.stages import initialise as seed_worker
from pipelines.stages import supervised as supervised_worker
from pipelines.stages.context import WorkerContext
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.lineage import registry
from warehouse.routing.samples import tutorial_rows
from warehouse.storage.sql.query import connect


def context(home: Home, iteration: str, stage: str) -> WorkerContext:
    folder = work_folder(home, iteration, stage)
    folder.mkdir(parents=True, exist_ok=True)
    return WorkerContext(folder=folder, home=home, iteration=iteration, stage=stage, log=print)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stage_trains_in_processes_of_its_own_and_registers_what_they_made(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    request = InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",))
    parent = seed_worker.run(request, context(home, "0000", "seed_policy")).checkpoint_id
    place = context(home, "0001", "ct_model")
    warehouse = place.warehouse
    warehouse.replace_partition("ct_samples", tutorial_rows(tutorials(60, 0)), iteration="0000", stage="seed_tutorials")
    chats = [
        {"messages": [{"role": "user", "content": f"what is {number}"}, {"role": "assistant", "content": str(number)}]}
        for number in (12, 22, 33)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    import_general_data(warehouse, tmp_path / "chats.jsonl", None, Console(quiet=True))
    mixture = MixtureConfig(tutorial=SamplePool(), general=SamplePool(), general_share=0.25)
    with connect(warehouse) as con:
        dataset = mixed(con, "ct", "0001", mixture)
    warehouse.replace_partition("datasets", dataset.rows, iteration="0001", stage="ct_dataset")
    config = SupervisedConfig(
        steps=8,
        batch_tokens=512,
        log_every=1,
        prompt_loss_weight=1.0,
        packing="packed",
        eval_fraction=0.2,
        eval_every=4,
        num_processes=2,
        deepspeed_stage=2,
    )
    asked = SupervisedRequest(
        iteration="0001", stage="ct_model", seed=0, kind="ct", checkpoint_id=str(parent), dataset_id=dataset.dataset_id, config=config
    )
    result = supervised_worker.run(asked, place)
    made = registry.made_by(warehouse, "0001", "ct_model")
    assert made.checkpoint_id == result.checkpoint_id == verify(made.folder).checkpoint_id
    assert result.counts == {"samples": 63, "samples/too long": 0}
    shown = progress.read(place.folder)
    assert shown is not None and shown.done == shown.total == 8
    curve = warehouse.read("training_metrics", iteration="0001", stage="ct_model").to_pylist()
    assert [row["step"] for row in curve if row["metric"] == "loss"] == list(range(1, 9))
    assert [row["step"] for row in curve if row["metric"] == "eval_loss"] == [4, 8]
