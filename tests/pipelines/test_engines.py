"""Who answers for a checkpoint, as a profile chooses: the embedded engine's device, type and settings reach every stage that acts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from assets.settings.profile import ActingSettings, TaskSettings
from assets.stages.requests import RlRequest
from models.checkpoints.checkpoint import save
from models.engine.choice import EngineChoice
from models.engine.embedded import EmbeddedEngine
from models.engine.settings import EngineSettings
from models.families.registry import device_named, load_codec, load_policy
from models.http.config import HttpEngineConfig
from models.rl.config import PpoConfig
from pipelines import profiles
from pipelines.stages import rl as rl_worker
from pipelines.stages.engines import engine_of_learner, open_engine
from tests.models.conftest import small_model
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE, our_server, prompt
from warehouse.core.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, tokenizer = small_model()
    save(tmp_path / "small", model, tokenizer, stage="seed_policy", iteration="0000")
    return tmp_path / "small"


def test_the_profiles_type_and_settings_are_the_engines(folder: Path) -> None:
    choice = EngineChoice(device="cpu", dtype="bfloat16", settings=EngineSettings(max_context=40))
    model, codec = load_policy(folder), load_codec(folder)
    plain = EmbeddedEngine.from_checkpoint(folder)
    plain.close()
    for engine in (open_engine(folder, choice), engine_of_learner(model, codec, "checkpoint-x", choice)):
        assert isinstance(engine, EmbeddedEngine) and engine.max_context == 40
        assert 2 * engine._scheduler.backend.kv_cache.bytes_per_slot == plain._scheduler.backend.kv_cache.bytes_per_slot
        first = asyncio.run(engine.act([prompt()]))[0]
        assert first.token_ids
        engine.load_weights(model.state_dict(), "checkpoint-y", version=1)
        assert asyncio.run(engine.act([prompt()]))[0].token_ids == first.token_ids, "what learns in float32 hands its weights over"
        engine.close()
    assert model.dtype == torch.float32, "what learns keeps its own type"


def test_a_profile_says_where_its_engine_runs() -> None:
    engine = profiles.load("smoke", {"engine.device": "cuda:1", "engine.settings.max_rows": 8}).engine
    assert (engine.device, engine.dtype, engine.settings.max_rows) == ("cuda:1", "auto", 8)
    with pytest.raises(ValidationError):
        EngineChoice(device="the fast one")


def test_a_gpu_that_is_not_there_is_named(folder: Path) -> None:
    assert device_named("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="cuda:99"):
        open_engine(folder, EngineChoice(device="cuda:99"))


def test_learning_refuses_a_server_that_could_not_take_its_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with our_server(folder) as server:  # it loads nothing
        http = HttpEngineConfig(base_url=server.url, token_env=TOKEN_VARIABLE, exchange=str(folder.parent))
        tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing",))
        request = RlRequest(
            iteration="0001",
            stage="rl_pointing",
            seed=0,
            domains=("pointing",),
            checkpoint_id="checkpoint-x",
            config=PpoConfig(),
            acting=ActingSettings(tasks=tasks, engine=EngineChoice(kind="http", http=http)),
            replay_dataset_ids=("data-sft", "data-ct"),
        )
        make_policy = rl_worker._policy_factory(request, folder, folder.parent / "exchange")
        with pytest.raises(ModelError, match="a learner's weights: it loads nothing"):
            make_policy(load_policy(folder), load_codec(folder), "checkpoint-x")
