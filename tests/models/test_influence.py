"""Influence by gradients, beside what training without a sample really does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent.policy.policy import Message
from models.checkpoints.checkpoint import load_tokenizer, save
from models.families.registry import load_policy
from models.supervised.config import SupervisedConfig
from models.supervised.influence import InfluenceConfig, Influences, Question, influences, log_odds
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import tensors
from models.training.forward import weighted_loss
from tests.models.conftest import small_model
from warehouse.core.errors import CheckpointError, ConfigError

WORDS = ("Ok", "Submit", "see", "then")
FURTHER = SupervisedConfig(steps=24, warmup_steps=2, learning_rate=3e-4, batch_tokens=256, save_every=50, log_every=24)


def sample(asked: str, answer: str, name: str = "", weight: float = 1.0) -> TrainingSample:
    messages = (Message(role="user", content=asked), Message(role="assistant", content=answer, loss=1.0))
    return TrainingSample(messages=messages, weight=weight, sample_id=name)


def asked(word: str, number: int) -> str:
    return f'Find "{word}" [{number}] then hello'


def question(word: str, number: int, instead: str) -> Question:
    return Question(wanted=sample(asked(word, number), word), unwanted=sample(asked(word, number), instead))


def harm_of(found: Influences) -> dict[str, float]:
    return dict(zip(found.sample_ids, found.harm_NF @ (found.fold_sizes_F / found.fold_sizes_F.sum()), strict=True))


def test_the_influence_of_a_sample_is_what_a_step_without_it_changes(seed_checkpoint: Path) -> None:
    rate = 1e-4
    config = FURTHER.model_copy(update={"steps": 1, "warmup_steps": 0, "learning_rate": rate, "batch_tokens": 4096, "weight_decay": 0.0})
    samples = [
        sample(asked(word, number), answer, f"{word}-{answer}")
        for number, (word, answer) in enumerate(zip(WORDS, WORDS[::-1], strict=True))
    ]
    questions = [question("Ok", 7, "see"), question("then", 8, "Submit"), question("see", 9, "Ok")]
    found = influences(
        InfluenceConfig(points=1, preconditioner="none"), config, samples, questions, init=seed_checkpoint, final=seed_checkpoint
    )
    assert set(found.sample_ids) == {one.sample_id for one in samples} and found.fold_sizes_F.tolist() == [1, 1, 1]
    tokenizer, model = load_tokenizer(seed_checkpoint), load_policy(seed_checkpoint).double()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def loss(parts: list[TrainingSample]) -> torch.Tensor:
        batch = tensors(encode_samples(tokenizer, parts, 0.0, max_tokens=999), int(tokenizer.pad_token_id))
        return weighted_loss(model, {**batch, "total_weight": torch.tensor(1.0)})

    def gradient(parts: list[TrainingSample]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss(parts), list(model.parameters())))

    def odds_after(step: list[torch.Tensor]) -> np.ndarray:
        with torch.no_grad():
            for (name, weight), part in zip(model.named_parameters(), step, strict=True):
                weight.copy_(start[name] - part)
            after = np.array([float(loss([one.wanted]) - loss([one.unwanted])) for one in questions])
            for name, weight in model.named_parameters():
                weight.copy_(start[name])
        return after

    of_each = [gradient([one]) for one in samples]
    # each is drawn as often as the others, and a batch divides by its loss weights
    num_drawn = found.draws_N.sum()
    weight = num_drawn * sum(encode_samples(tokenizer, samples[:1], 0.0, max_tokens=999)[0].loss_weights[1:])
    assert found.draws_N.min() > 0
    draws = dict(zip(found.sample_ids, found.draws_N, strict=True))
    rows = dict(zip(found.sample_ids, found.harm_NF, strict=True))

    def step_of(names: set[str]) -> list[torch.Tensor]:
        parts = [
            [rate * draws[one.sample_id] / weight * g for g in of]
            for one, of in zip(samples, of_each, strict=True)
            if one.sample_id in names
        ]
        return [torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True)]

    everything = {one.sample_id for one in samples}
    for one in samples:
        really = odds_after(step_of(everything)) - odds_after(step_of(everything - {one.sample_id}))
        assert rows[one.sample_id] == pytest.approx(really, rel=0.02, abs=1e-9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A policy that can say the word it is asked for, and one that was trained further on two sources, of which one says another word
    where Ok is asked for."""
    root = tmp_path_factory.mktemp("influence")
    save(root / "fresh", *small_model(), stage="seed_policy", iteration="0000")
    dice = random.Random(0)
    right = [(word, number) for word in WORDS for number in range(30)]
    dice.shuffle(right)
    lessons = [sample(asked(word, number), word, f"lesson-{word}-{number}") for word, number in right]
    first = FURTHER.model_copy(update={"steps": 80, "learning_rate": 3e-3})
    train_supervised(first, lessons, init=root / "fresh", output=root / "before", stage="sft_model", iteration="0001")
    good = [sample(asked(word, number), word, f"good-{word}-{number}") for word, number in right[:40]]
    bad = [sample(asked(word, number), "see" if word == "Ok" else word, f"bad-{word}-{number}") for word, number in right[40:80]]
    further = {"init": root / "before", "stage": "sft_model", "iteration": "0002"}
    train_supervised(FURTHER, [*good, *bad], output=root / "after", **further)
    questions = [question("Ok", number, "see") for number in range(40, 50)]
    return {"root": root, "samples": [*good, *bad], "questions": questions}


@pytest.mark.slow
def test_a_source_is_as_harmful_as_training_without_it_says(trained: dict[str, Any]) -> None:
    root, questions = trained["root"], trained["questions"]
    for left_out, source in (("without bad", "good"), ("without good", "bad")):
        rest = [one for one in trained["samples"] if one.sample_id.startswith(source)]
        train_supervised(FURTHER, rest, output=root / left_out, init=root / "before", stage="sft_model", iteration="0002")
    found = influences(InfluenceConfig(points=3), FURTHER, trained["samples"], questions, init=root / "before", final=root / "after")
    harm = harm_of(found)
    bad, good = (sum(value for name, value in harm.items() if name.startswith(source)) for source in ("bad", "good"))
    odds = {name: log_odds(root / name, questions) for name in ("before", "after", "without bad", "without good")}
    assert odds["without bad"] < odds["after"] < odds["without good"], odds
    assert bad > 0 > good
    # together they moved the odds as far as training did: a line, no momentum and a measured scale are near enough for small steps
    assert 0.6 < (bad + good) / (odds["after"] - odds["before"]) < 1.7
    assert 0.6 < bad / (odds["after"] - odds["without bad"]) < 2.5
    worst = sorted(harm, key=lambda name: -harm[name])
    wrong = {name for name in harm if name.startswith("bad-Ok")}
    assert set(worst[: len(wrong)]) == wrong


def test_influence_is_the_same_again_and_may_be_of_some_samples(trained: dict[str, Any]) -> None:
    root, few = trained["root"], InfluenceConfig(points=1, folds=2, most_samples=10, seed=3)
    asked_of: dict[str, Any] = {"init": root / "before", "final": root / "after", "first": {"good-Ok-0"}}
    seen: list[tuple[int, int]] = []
    one, again = (
        influences(few, FURTHER, trained["samples"], trained["questions"], on_scored=lambda *done: seen.append(done), **asked_of)
        for _ in range(2)
    )
    assert one.sample_ids == again.sample_ids and (one.harm_NF == again.harm_NF).all() and len(one.sample_ids) <= 10
    assert one.stands_for_N.sum() <= len(trained["samples"]) and one.fold_sizes_F.sum() == len(trained["questions"])
    assert seen[-1][0] == seen[-1][1]
    last = influences(few.model_copy(update={"weights": "last"}), FURTHER, trained["samples"], trained["questions"], **asked_of)
    assert last.num_weights < one.num_weights


def test_what_cannot_be_asked_is_said(trained: dict[str, Any], tmp_path: Path) -> None:
    root = trained["root"]
    with pytest.raises(ConfigError, match="at least one answer"):
        influences(InfluenceConfig(), FURTHER, trained["samples"], [], init=root / "before", final=root / "after")
    save(tmp_path / "wider", *small_model(hidden_size=64), stage="seed_policy", iteration="0000")
    with pytest.raises(CheckpointError, match="not of one shape"):
        influences(InfluenceConfig(), FURTHER, trained["samples"], trained["questions"], init=tmp_path / "wider", final=root / "after")
