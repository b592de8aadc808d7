"""Models that others wrote, taken in as checkpoints: a tiny text and a tiny vision-language model, whole, sharded, linked, converted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Config, Qwen2ForCausalLM

from models.checkpoints.checkpoint import verify
from models.checkpoints.importing import import_checkpoint, num_parameters, stored_dtypes
from models.families.registry import load_policy
from warehouse.core.errors import CheckpointError

TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
IMAGE_PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}


def save_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bfloat16 model in three shards, as the hub's are."""
    folder = tmp_path_factory.mktemp("text")
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**TEXT)).to(torch.bfloat16).save_pretrained(folder, max_shard_size="3KB")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        tie_word_embeddings=False,
        vision_config={"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 16},
    )
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    save_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE_PROCESSOR))
    return folder


def test_a_sharded_text_model_is_the_same_afterwards(text_model: Path, tmp_path: Path) -> None:
    assert (text_model / "model.safetensors.index.json").is_file()
    card = import_checkpoint(text_model, tmp_path / "c", stage="seed_policy", iteration="0000", origin={"model": "x"})
    assert verify(tmp_path / "c") == card and card.config == {"model": "x"} and card.parents == ()
    theirs, ours = load_policy(tmp_path / "c", dtype="bfloat16"), Qwen2ForCausalLM.from_pretrained(text_model, dtype=torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))
    again = import_checkpoint(text_model, tmp_path / "d", stage="other", iteration="0000")
    assert again.checkpoint_id == card.checkpoint_id, "an id says what the weights are, not who brought them"


def test_links_cost_no_room(text_model: Path, tmp_path: Path) -> None:
    import_checkpoint(text_model, tmp_path / "c", stage="seed_policy", iteration="0000", link=True)
    for shard in text_model.glob("*.safetensors"):
        assert (tmp_path / "c" / shard.name).samefile(shard)


def test_another_type_is_converted_to_and_the_source_stays(text_model: Path, tmp_path: Path) -> None:
    import_checkpoint(text_model, tmp_path / "c", stage="seed_policy", iteration="0000", dtype="float32")
    assert stored_dtypes(tmp_path / "c") == ("float32",) and stored_dtypes(text_model) == ("bfloat16",)
    model = load_policy(tmp_path / "c")
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters(tmp_path / "c")
    verify(tmp_path / "c")


def test_a_vision_model_keeps_its_parts_and_its_pictures_are_limited(vision_model: Path, tmp_path: Path) -> None:
    import_checkpoint(vision_model, tmp_path / "c", stage="seed_policy", iteration="0000", max_image_pixels=401408)
    processor = json.loads((tmp_path / "c" / "preprocessor_config.json").read_text())
    assert processor["size"] == {"shortest_edge": 3136, "longest_edge": 401408} and processor["patch_size"] == 14
    assert isinstance(load_policy(tmp_path / "c"), Qwen2_5_VLForConditionalGeneration)
    assert "max_pixels" in (vision_model / "preprocessor_config.json").read_text(), "the source is left as it is"


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "safetensors"),
        (lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"\x00" * 40), "safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    ],
)
def test_what_is_not_whole_is_refused(text_model: Path, tmp_path: Path, break_it, words: str) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "broken"
    shutil.copytree(text_model, folder)
    break_it(folder)
    with pytest.raises(CheckpointError, match=words):
        import_checkpoint(folder, tmp_path / "c", stage="seed_policy", iteration="0000")
    assert not (tmp_path / "c").exists()


def test_pickles_missing_folders_and_text_models_with_image_limits_are_refused(text_model: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(text_model, pickled, ignore=shutil.ignore_patterns("*.safetensors*"))
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    for folder, words in ((pickled, "pickle"), (tmp_path / "none", "no folder")):
        with pytest.raises(CheckpointError, match=words):
            import_checkpoint(folder, tmp_path / "c", stage="seed_policy", iteration="0000")
    with pytest.raises(CheckpointError, match="max_image_pixels"):
        import_checkpoint(text_model, tmp_path / "c", stage="seed_policy", iteration="0000", max_image_pixels=401408)


def test_a_link_out_of_a_folder_is_not_taken_in(text_model: Path, tmp_path: Path) -> None:
    """A model from elsewhere may link to a file of this machine, which would go into the checkpoint and to whoever it is given to. The
    hub's own cache links to its blobs."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    source = Path(shutil.copytree(text_model, tmp_path / "source"))
    (source / "notes.txt").symlink_to(secret)
    with pytest.raises(CheckpointError, match=r"notes\.txt is a link"):
        import_checkpoint(source, tmp_path / "made", stage="seed_policy", iteration="0000")
    cached = tmp_path / "models--a" / "snapshots" / "0123"
    blobs = tmp_path / "models--a" / "blobs"
    cached.mkdir(parents=True)
    shutil.copytree(text_model, blobs)
    for path in blobs.iterdir():
        (cached / path.name).symlink_to(Path("..") / ".." / "blobs" / path.name)
    import_checkpoint(cached, tmp_path / "made", stage="seed_policy", iteration="0000")
    assert not any(path.is_symlink() for path in (tmp_path / "made").iterdir())
