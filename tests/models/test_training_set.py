"""Encoded samples in files: what is written is what is read, which are held out, and that nothing is read before it is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.policy.policy import Message
from models.checkpoints.checkpoint import load_tokenizer
from models.supervised.early_stop import is_held_out
from models.supervised.sample_file import SampleFile, SampleWriter, sizes
from models.supervised.training_set import TrainingSample, encode_samples, training_set
from models.training.batching import EncodedSample
from tests.models.test_supervised import samples
from warehouse.core.errors import ConfigError


def same(sample: EncodedSample) -> tuple[Any, ...]:
    """What two equal samples have alike, whatever they are kept in."""
    ids, weights = np.asarray(sample.token_ids).tolist(), np.asarray(sample.loss_weights, dtype=np.float32).tolist()
    return ids, weights, sample.weight, sample.sample_id, tuple(sample.screenshot_ids)


def test_held_out_samples_are_chosen_by_content() -> None:
    encoded = [EncodedSample(token_ids=[row % 150, 1, 2], loss_weights=[0.0, 1.0, 1.0]) for row in range(300)]
    sides = [is_held_out(sample, 0.2) for sample in encoded]
    assert 30 <= sum(sides) <= 90
    assert sides[:150] == sides[150:], "equal samples are on one side"
    assert not any(is_held_out(sample, 0.0) for sample in encoded)
    mapped = [replace(sample, token_ids=np.array(sample.token_ids, dtype=np.int32)) for sample in encoded]
    assert [is_held_out(sample, 0.2) for sample in mapped] == sides


def test_a_training_set_is_encoded_into_files(seed_checkpoint: Path, tmp_path: Path) -> None:
    codec = load_tokenizer(seed_checkpoint)
    given = [replace(sample, sample_id=f"sample-{index}") for index, sample in enumerate(samples())]
    silent = TrainingSample(messages=(Message(role="user", content="hello"), Message(role="assistant", content="Ok")))
    wanted = encode_samples(codec, given, 0.25, max_tokens=2048)
    common: dict[str, Any] = {"codec": codec, "prompt_loss_weight": 0.25, "max_tokens": 2048}
    whole = training_set(tmp_path / "whole", samples=iter([silent, *given]), eval_fraction=0.0, **common)
    assert len(whole.held_out) == 0 and list(whole.held_out) == []
    assert whole.trained.lengths.tolist() == [len(sample.token_ids) for sample in wanted]
    assert [same(one) for one in whole.trained] == [same(one) for one in wanted]
    cut = training_set(tmp_path / "cut", samples=given, eval_fraction=0.3, **common)
    assert len(cut.held_out) > 0 and len(cut.held_out) + len(cut.trained) == len(given)
    assert sorted(map(same, (*cut.trained, *cut.held_out))) == sorted(map(same, wanted))
    assert cut.trained[-1].sample_id == cut.trained[len(cut.trained) - 1].sample_id == cut.trained[:][-1].sample_id
    with pytest.raises(IndexError, match="of"):
        cut.trained[len(cut.trained)]
    again = training_set(tmp_path / "cut", samples=given, eval_fraction=0.3, **common)
    assert again.digest == cut.digest != whole.digest
    never_drawn = [replace(sample, weight=0.0) for sample in given]
    unmeasured = training_set(tmp_path / "cut", samples=[*never_drawn, *given], eval_fraction=0.3, **common)
    assert [same(one) for one in unmeasured.held_out] == [same(one) for one in cut.held_out], "what never counts has no loss to measure"
    with pytest.raises(ConfigError, match="of 1 samples holds out"):
        training_set(tmp_path / "cut", samples=given[:1], eval_fraction=0.3, **common)


def test_a_training_set_has_parts_and_is_not_read_to_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.supervised.sample_file.PART_TOKENS", 64)
    rng = np.random.default_rng(0)
    given = [
        EncodedSample(
            token_ids=rng.integers(2**31, size=length).tolist(),
            loss_weights=rng.random(length, dtype=np.float32).tolist(),
            weight=float(rng.random()),
            sample_id=f"sample-{length}",
            screenshot_ids=[f"shot-{length % 3}"] * (length % 4),
        )
        for length in rng.integers(2, 40, size=100)
    ]
    with SampleWriter(tmp_path / "samples.arrow") as writer:
        for sample in given:
            writer.add(sample)
    read = SampleFile(tmp_path / "samples.arrow")
    assert [same(one) for one in read] == [same(one) for one in given]
    assert read.screenshot_ids() == ["shot-0", "shot-1", "shot-2"]
    lengths, weights = sizes(given)
    assert (read.lengths.tolist(), read.weights.tolist()) == (lengths.tolist(), weights.tolist())
    assert not read[7].token_ids.flags.owndata, "tokens are the file's own"  # type: ignore[union-attr]
