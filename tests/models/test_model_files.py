"""What goes with a model's weights when those are written again, and what stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.checkpoints.model_files import HUB_PATTERNS, PROCESSOR_FILES, TOKENIZER_FILES, companions, is_tokenizer_there

GO_ALONG = {"config.json", "generation_config.json", "qwen.tiktoken", *TOKENIZER_FILES, *PROCESSOR_FILES}
STAY = {
    "card.json",
    "trainer_state.json",
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "README.md",
    "training_args.bin",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*GO_ALONG, *STAY, "modeling_own.py"):
        (tmp_path / name).touch()
    (tmp_path / "more.json").mkdir()
    return tmp_path


def test_all_but_weights_their_index_and_tales_of_another_run_goes_along(folder: Path) -> None:
    assert [path.name for path in companions(folder, code=False)] == sorted(GO_ALONG)
    assert {path.name for path in companions(folder, code=True)} == {*GO_ALONG, "modeling_own.py"}


def test_nothing_that_can_run_is_downloaded(folder: Path) -> None:
    fetched = {path.name for pattern in HUB_PATTERNS for path in folder.glob(pattern) if path.is_file()}
    assert fetched >= GO_ALONG and fetched.isdisjoint({"modeling_own.py", "pytorch_model.bin", "training_args.bin"})


def test_a_tokenizer_is_there_with_any_of_its_forms(tmp_path: Path) -> None:
    (tmp_path / "merges.txt").touch()
    assert not is_tokenizer_there(tmp_path)
    (tmp_path / "vocab.json").touch()
    assert is_tokenizer_there(tmp_path)
