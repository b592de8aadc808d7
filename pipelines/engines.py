"""Who answers for a checkpoint: the engine in this process, or a server, as the profile chooses. What they do is models/engine.py's and
models/http_engine.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from agent.policy import Policy
from models.http_config import EngineChoice


class ClosablePolicy(Policy, Protocol):
    def close(self) -> None: ...


def open_engine(folder: Path, choice: EngineChoice) -> ClosablePolicy:
    """A checkpoint, ready to act; close it. Raises CheckpointError for a folder that is not whole, ModelError where the engine cannot run
    it or the server cannot load it."""
    if choice.http is not None:
        from models.http_engine import HttpEngine

        return HttpEngine.of_checkpoint(choice.http, folder)
    from models.engine import EmbeddedEngine

    return EmbeddedEngine.from_checkpoint(folder)
