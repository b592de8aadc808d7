"""Messages between a stage and the episode workers on a cluster's nodes. Ray transports them.

Both sides may send a message twice, where the network failed before the answer: each episode and each question has a number, and
what is known is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent.episode.episode import Episode, EpisodeRequest
from agent.policy.action_source import ActionSource
from agent.policy.policy import Prompt, Response
from assets.settings.profile import ActingSettings
from sandbox.server.identity import code_id
from warehouse.core.code import code_digest
from warehouse.core.errors import ConfigError


class WorkerSettings(BaseModel):
    """What an episode worker is started with. `plugins`: the variables that name them (warehouse/core/plugins.py); `plugin_ids`:
    what the plug-ins are here, as sandbox/server/identity.py has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    acting: ActingSettings
    to_choose: bool = False
    plugins: dict[str, str] = {}
    plugin_ids: dict[str, str] = {}

    def require_plugins(self, found: Mapping[str, str]) -> None:
        """Raises ConfigError where a node that found these has other plug-ins."""
        others = [f"{name!r} is {found.get(name)}, not {own}" for name, own in self.plugin_ids.items() if found.get(name) != own]
        if others:
            raise ConfigError(f"it has other plug-ins than the stage ({'; '.join(others)}): put the same files on every node")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who a worker is. `code`: its `own_code()`."""

    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Run an episode. Without a `source` its prompts are asked of the stage."""

    run: int
    request: EpisodeRequest
    source: ActionSource | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a worker's question."""

    run: int
    question: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    run: int


Order = Play | Answer | Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What an episode asks the policy."""

    run: int
    question: int
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """Whether an episode holds a session, from now on."""

    run: int
    has_session: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDisk:
    """What is free for the sessions of a node, from now on. `is_short`: too little for new ones; `is_full`: too little for any."""

    free_mib: float
    needed_mib: float
    is_short: bool
    is_full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An episode that ended, with its screenshots."""

    run: int
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An episode that cannot be run: the error as `warehouse.core.errors.to_plain` writes it."""

    run: int
    error: dict[str, Any]


def own_code() -> str:
    """What this process runs: a digest of the project's code, and one of the sandbox's pages and task lists."""
    return f"{code_digest()} {code_id()}"


Report = Question | SlotChange | Ended | Failed | FreeDisk
