"""Any Hugging Face model's folder is served as it is, with what was assumed said; and `released` names the newest release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from models.checkpoints.checkpoint import read_card, save
from models.checkpoints.importing import assumed, with_card
from models.server.backend import ServedEngine
from pipelines.cli.app import app
from pipelines.cli.data.queries import checkpoint_folder
from tests.models.conftest import small_model
from tests.models.policy_servers import our_server
from tests.models.served_models import TOOLS, small_chat_model
from tests.models.vision_models import VISION_MODELS
from warehouse.core.errors import CheckpointError, ModelError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse


def downloaded(folder: Path, make: Callable[[], tuple[Any, Any]]) -> Path:
    """As `save_pretrained` leaves a model, without a card."""
    model, codec = make()
    model.save_pretrained(folder)
    codec.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "make"), [("chat", small_chat_model), ("qwen2_vl", VISION_MODELS["qwen2_vl"])])
def test_a_folder_without_a_card_is_served(tmp_path: Path, name: str, make: Callable[[], tuple[Any, Any]]) -> None:
    folder = downloaded(tmp_path / name, make)
    before = sorted(path.name for path in folder.iterdir())
    (folder / "model.safetensors").chmod(0o600)
    with with_card(folder) as whole:
        assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o600, "a file of somebody else's keeps its mode"
        said = assumed(whole, folder)
        assert "has no card.json" in said and ("vision" in said) == (name != "chat") and "end tokens" in said
        with our_server(whole) as server, server.client() as client:
            body = {"messages": [{"role": "user", "content": "see"}], "max_tokens": 4, "seed": 1}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["flywheel"]["policy_id"] == read_card(whole).checkpoint_id
        assert (whole / "model.safetensors").samefile(folder / "model.safetensors"), "the weights are not copied"
    assert sorted(path.name for path in folder.iterdir()) == before, "nothing is written into it"
    assert not whole.exists() and [path.name for path in tmp_path.iterdir()] == [name]


def test_a_checkpoint_with_a_card_is_itself(tmp_path: Path) -> None:
    save(tmp_path / "a", *small_model(), stage="seed_policy", iteration="0000")
    with with_card(tmp_path / "a") as whole:
        assert whole == tmp_path / "a"


def test_what_a_folder_lacks_is_said_with_how_to_fix_it(tmp_path: Path) -> None:
    serve = ["policy", "serve", "--home", str(tmp_path / "home"), "--port", "0"]

    def error(folder: Path) -> BaseException | None:
        return CliRunner().invoke(app, [*serve, str(folder)]).exception

    folder = downloaded(tmp_path / "untold", small_chat_model)
    (folder / "chat_template.jinja").unlink()
    failed = error(folder)
    assert isinstance(failed, ModelError) and "add chat_template.jinja" in str(failed)
    (folder / "chat_template.jinja").write_text(TOOLS)
    with with_card(folder) as whole:
        ServedEngine.open(whole).close()
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"unheard_of"'))
    failed = error(folder)
    assert isinstance(failed, ModelError) and "unheard_of" in str(failed)
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (folder / name).unlink()
        failed = error(folder)
        assert isinstance(failed, CheckpointError), failed
    assert "config.json" in str(failed)


def test_released_names_the_newest_release(tmp_path: Path) -> None:
    home = Home(tmp_path)
    warehouse = Warehouse(home)
    with pytest.raises(CheckpointError):
        checkpoint_folder(warehouse, "released")
    for iteration, seed in (("0001", 0), ("0002", 1)):
        folder = tmp_path / "checkpoints" / iteration
        card = save(folder, *small_model(seed), stage="merged_policy", iteration=iteration)
        for stage in ("merged_policy", registry.RELEASES) if iteration == "0001" else ("merged_policy",):
            registry.register(warehouse, iteration=iteration, stage=stage, checkpoint_id=card.checkpoint_id, folder=folder)
    assert checkpoint_folder(warehouse, "released") == tmp_path / "checkpoints" / "0001"
    second = registry.made_by(warehouse, "0002", "merged_policy")
    registry.pass_on(warehouse, second, iteration="0002", stage=registry.RELEASES, note="better")
    assert checkpoint_folder(warehouse, "released") == second.folder == checkpoint_folder(warehouse, "0002/released_policy")
    parents, output = ["released", "0001/merged_policy"], ["-o", str(tmp_path / "m"), "--home", str(tmp_path)]
    merged = CliRunner().invoke(app, ["merge", *parents, "--any-ancestry", *output])
    assert merged.exception is None, merged.output
    traced = CliRunner().invoke(app, ["lineage", "released", "--home", str(tmp_path)])
    assert second.checkpoint_id[:20] in traced.output, traced.output
