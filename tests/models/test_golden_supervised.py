"""Golden loss curves: 20 steps of CT and of SFT at a fixed seed, padded and packed, as they were when golden_supervised.json was written.

A refactor that moves one of them has changed what is learned. Where that is meant, write them again and say why in the commit:

    python -m pytest tests/models/test_golden_supervised.py --override-ini "python_functions=write_*"
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from models.checkpoints.checkpoint import load_tokenizer, save
from models.families.registry import load_policy
from models.families.seed_policy import seed_policy
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.sample_file import sizes
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import plan_batches
from models.training.metrics import read_metrics

GOLDEN = Path(__file__).with_name("golden_supervised.json")
TOLERANCE = 1e-4
"""One and the same code differs by 2.2e-5 from one processor to another."""
COMMON = SupervisedConfig(steps=20, warmup_steps=3, batch_tokens=256, log_every=1, save_every=100)
RUNS = {
    "ct": COMMON.model_copy(update={"prompt_loss_weight": 1.0}),
    "sft": COMMON.model_copy(update={"learning_rate": 1.5e-3}),
    "sft_packed": COMMON.model_copy(update={"learning_rate": 1.5e-3, "packing": "packed"}),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "start"
    save(folder, *seed_policy(words("web"), 0), stage="seed_policy", iteration="0000")
    return folder


def made_samples() -> list[TrainingSample]:
    return [TrainingSample(messages=messages, weight=1.0 + row % 3) for row, messages in enumerate(tutorials(60, 0))]


def curve(config: SupervisedConfig, start: Path, folder: Path) -> list[float]:
    train_supervised(config, made_samples(), init=start, output=folder / "end", stage="sft_model", iteration="0001")
    return [progress.metrics["loss"] for progress in read_metrics(folder / "end.run")]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_the_loss_falls_as_it_always_has(name: str, start: Path, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    assert curve(RUNS[name], start, tmp_path) == pytest.approx(golden, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("name", RUNS)
def test_the_first_loss_is_the_plain_cross_entropy_of_the_first_batch(name: str, start: Path) -> None:
    """Worked out beside the code that trains: each sample alone, in float64, from the logits of a plain forward pass."""
    config, model, tokenizer = RUNS[name], load_policy(start), load_tokenizer(start)
    kept = encode_samples(tokenizer, made_samples(), config.prompt_loss_weight, max_tokens=config.batch_tokens)
    lengths, weights = sizes(kept)
    (first,) = plan_batches(lengths, weights, batch_tokens=config.batch_tokens, steps=1, seed=config.seed, packing=config.packing)
    loss = total = 0.0
    for sample in (kept[row] for row in first):
        ids, of_loss = torch.tensor([list(sample.token_ids)]), torch.tensor(list(sample.loss_weights)[1:], dtype=torch.float64)
        with torch.no_grad():
            logits = model(input_ids=ids[:, :-1]).logits[0].double()
        chosen = logits.gather(1, ids[0, 1:, None])[:, 0] - logits.logsumexp(-1)
        loss, total = loss - float(chosen @ of_loss), total + float(of_loss.sum())
    assert json.loads(GOLDEN.read_text())[name][0] == pytest.approx(loss / total, abs=TOLERANCE, rel=0)


def write_golden_curves(start: Path, tmp_path: Path) -> None:
    curves = {name: curve(config, start, tmp_path / name) for name, config in RUNS.items()}
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")
