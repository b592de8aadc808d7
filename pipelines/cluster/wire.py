"""What a stage and the episode workers on a cluster's nodes tell each other. How it gets there is Ray's business.

Both sides may say a thing twice, where the network failed before the other had answered: each episode and each question has a number, and
what is known is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent.episode.episode import Episode, EpisodeRequest
from agent.policy.action_source import ActionSource
from agent.policy.policy import Prompt, Response
from assets.profile import ActingSettings


class WorkerSettings(BaseModel):
    """All that an episode worker is told at its start. `task_sources`: the text of FLYWHEEL_TASK_SOURCES."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    acting: ActingSettings
    to_choose: bool = False
    task_sources: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who a worker is. `code`: digest of the project's files there."""

    code: str
    host: str
    pid: int


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
class Seated:
    """Whether an episode holds a session, from now on."""

    run: int
    has_session: bool


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


Report = Question | Seated | Ended | Failed
