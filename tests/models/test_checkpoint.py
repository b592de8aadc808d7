"""Checkpoints: whole or not there, the same weights the same id, and every damage named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoints.checkpoint import load_tokenizer, read_card, save, verify, write
from models.checkpoints.model_files import CARD_FILE, INDEX_FILE
from models.checkpoints.safetensors_stream import read_layout
from models.families.registry import load_policy
from warehouse.core.errors import CheckpointError


@pytest.fixture
def checkpoint(seed_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seed_checkpoint, tmp_path / "copy"))


def test_what_was_saved_is_what_is_loaded(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model, tokenizer = make_model()
    card = save(
        tmp_path / "one",
        model,
        tokenizer,
        stage="sft_model",
        iteration="0001",
        parents=("checkpoint-0123456789abcdef",),
        datasets=("dataset-1",),
        config={"steps": 3},
        metrics={"loss": 0.5},
    )
    assert read_card(tmp_path / "one") == card == verify(tmp_path / "one")
    assert set(card.files) == {path.name for path in (tmp_path / "one").iterdir()} - {CARD_FILE}
    opened = load_policy(tmp_path / "one")
    assert not opened.training
    assert all(torch.equal(value, opened.state_dict()[name]) for name, value in model.state_dict().items())
    assert load_tokenizer(tmp_path / "one").get_vocab() == tokenizer.get_vocab()
    assert [path.name for path in tmp_path.iterdir()] == ["one"], "nothing is left aside"


def test_whoever_may_enter_its_folder_may_read_it(make_model: Callable[..., Any], tmp_path: Path) -> None:
    """A server that runs as another user of the home's group, say."""
    save(tmp_path / "a", *make_model(), stage="seed_policy", iteration="0000")
    assert {oct(path.stat().st_mode)[-3:] for path in (tmp_path / "a").iterdir()} == {"644"}


def test_the_id_is_that_of_the_content(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model, tokenizer = make_model()
    first = save(tmp_path / "a", model, tokenizer, stage="seed_policy", iteration="0000")
    again = save(tmp_path / "b", model, tokenizer, stage="sft_model", iteration="0001", metrics={"loss": 1.0})
    assert first.checkpoint_id == again.checkpoint_id
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-6
    changed = save(tmp_path / "a", model, tokenizer, stage="seed_policy", iteration="0000")
    assert changed.checkpoint_id != first.checkpoint_id
    assert verify(tmp_path / "a") == changed, "the folder was replaced"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_cut_off_and_changed_files_are_named(checkpoint: Path, name: str) -> None:
    path = checkpoint / name
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name}.*truncated or changed.*Run stage"):
            load_policy(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        load_tokenizer(checkpoint)


def test_a_folder_without_a_card_or_with_a_broken_one_is_no_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_policy(tmp_path / "nowhere")
    (checkpoint / CARD_FILE).write_text('{"checkpoint_id": "x"')
    with pytest.raises(CheckpointError, match="not a checkpoint card"):
        read_card(checkpoint)


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "empty", lambda folder: (folder / "config.json").write_text("{}"), stage="merged_policy", iteration="0001")  # type: ignore[arg-type, return-value]
    with pytest.raises(CheckpointError, match="has no weights"):
        verify(tmp_path / "empty")


def test_a_failed_writing_leaves_what_was_there(checkpoint: Path) -> None:
    before = verify(checkpoint)

    def fail(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write(checkpoint, fail, stage="sft_model", iteration="0001")
    assert verify(checkpoint) == before
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


@pytest.mark.parametrize("name", ["../../secret.json", "/etc/hostname", "..", "run/../../secret.json", "..\\secret.json", "a\0b", ""])
def test_a_card_names_files_of_its_folder_only(checkpoint: Path, name: str) -> None:
    """Nothing outside is opened: not to compare it, nor to say in an error whether it is there."""
    (checkpoint.parent.parent / "secret.json").write_text("secret")
    card = json.loads((checkpoint / CARD_FILE).read_text())
    card["files"][name] = "0" * 64
    (checkpoint / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="under plain names") as refused:
        verify(checkpoint)
    assert "SHA-256" not in str(refused.value) and "missing" not in str(refused.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", CARD_FILE, "added_tokens.json"])
def test_a_link_that_leads_out_of_a_checkpoint_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    outside, place = tmp_path / "secret", checkpoint / name
    outside.write_bytes(place.read_bytes() if place.exists() else b"secret")
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    with pytest.raises(CheckpointError, match=rf"{name} is a link to a file outside") as refused:
        load_policy(checkpoint)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["../model.safetensors", "/dev/zero", "..", "a/b.safetensors"])
def test_shards_lie_beside_their_index(checkpoint: Path, name: str) -> None:
    (checkpoint / INDEX_FILE).write_text(json.dumps({"weight_map": {"weight": name}}))
    with pytest.raises(CheckpointError, match="under plain names"):
        read_layout(checkpoint)
