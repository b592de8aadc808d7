"""Who answers for a checkpoint: the engine in this process, servers that it starts, or one that runs, as the profile chooses. What they do
is models/engine/embedded.py's and models/http/engine.py's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.policy.policy import Policy
from models.engine.choice import EngineChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from models.engine.embedded import EmbeddedEngine
    from models.families.chat import ChatCodec
    from models.http.engine import HttpEngine


class ClosablePolicy(Policy, Protocol):
    def close(self) -> None: ...


def open_engine(folder: Path, choice: EngineChoice) -> ClosablePolicy:
    """A checkpoint, ready to act; close it. Raises CheckpointError for a folder that is not whole, ModelError where the engine cannot run
    it or the server cannot load it."""
    if choice.http is not None:
        from models.http.engine import HttpEngine

        return HttpEngine.of_checkpoint(choice.http, folder)
    if choice.kind == "served":
        return open_servers(folder, choice)
    from models.engine.embedded import EmbeddedEngine

    dtype, device = placed(choice)
    return EmbeddedEngine.from_checkpoint(folder, dtype=dtype, device=device, settings=choice.settings)


def open_servers(folder: Path, choice: EngineChoice, *, dtype: str | None = None, exchange: Path | None = None) -> HttpEngine:
    """A checkpoint on servers that are started for it and end with the engine. `dtype`: of its weights, where the profile leaves it open.
    `exchange`: where a learner puts weights for them. Raises CheckpointError, ModelError."""
    from models.http.engine import HttpEngine
    from models.http.servers import OwnServers

    usual, device = placed(choice)
    dtype = dtype if dtype is not None and choice.dtype == "auto" else usual
    servers = OwnServers.start(folder, dtype=dtype, device=device, settings=choice.settings, num=choice.replicas, exchange=exchange)
    try:
        return HttpEngine.of_checkpoint(servers.config, folder, servers=servers)
    except BaseException:
        servers.close()
        raise


def placed(choice: EngineChoice) -> tuple[str, str]:
    """The type of a checkpoint's weights in this process, and where they lie. Raises ModelError for a GPU that is not there."""
    from models.families.registry import device_named

    return "float32" if choice.dtype == "auto" else choice.dtype, device_named(choice.device)


def engine_of_learner(model: PreTrainedModel, codec: ChatCodec, checkpoint_id: str, choice: EngineChoice) -> EmbeddedEngine:
    """The embedded engine on a copy of what learns: there and of its type, unless the profile says otherwise. Raises ModelError."""
    from models.engine.embedded import EmbeddedEngine
    from models.families.registry import device_named

    return EmbeddedEngine(
        model,
        codec,
        checkpoint_id,
        settings=choice.settings,
        dtype=None if choice.dtype == "auto" else choice.dtype,
        device=None if choice.device == "auto" else device_named(choice.device),
    )
