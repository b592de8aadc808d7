"""The weights of a mixture on their whole way, from the snapshot's rows to how often a step of training draws a sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from models.families.tokenizer import build_tokenizer
from models.supervised.sample_file import sizes
from models.supervised.training_set import training_set
from models.training.batching import plan_batches
from pipelines.stages.supervised import DatasetSamples
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

WEIGHTS = {"sft-often": 6.0, "sft-rare": 0.5, "sft-some": 1.5}


@pytest.mark.usefixtures("tables_place")
def test_a_sample_is_drawn_as_often_as_the_mixture_says(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    blank = {
        "origin": "demonstration",
        "domain": "forms",
        "episode_id": None,
        "step_index": None,
        "annotation_id": None,
        "verdict": True,
        "withdrawn": False,
    }
    answer = [{"role": "assistant", "content": "Ok", "screenshot_id": None, "loss": 1.0}]
    stored = [blank | {"sample_id": name, "messages": answer} for name in WEIGHTS]
    warehouse.replace_partition("sft_samples", stored, iteration="0001", stage="routing")
    same = {"dataset_id": "data", "kind": "sft", "component": "demonstration"}
    rows = [same | {"sample_id": name, "weight": weight} for name, weight in WEIGHTS.items()]
    warehouse.replace_partition("datasets", rows, iteration="0001", stage="sft_dataset")

    samples = DatasetSamples(warehouse, "data", ["sft"])
    assert {sample.sample_id: sample.weight for sample in samples} == WEIGHTS
    made = training_set(tmp_path / "set", build_tokenizer(("Ok",)), samples, prompt_loss_weight=0.0, eval_fraction=0.0, max_tokens=100)
    lengths, weights = sizes(made.trained)
    steps = plan_batches(lengths, weights, batch_tokens=int(lengths[0]), steps=800, seed=0)
    drawn = Counter(made.trained[row].sample_id for batch in steps for row in batch)
    total = sum(drawn.values())
    for name, weight in WEIGHTS.items():
        assert drawn[name] / total == pytest.approx(weight / sum(WEIGHTS.values()), abs=0.01), name
