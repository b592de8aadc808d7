"""Live sandboxes under annotated episodes: a pooled session of any kind for as long as an episode runs; another one, and the episode once
more, where the sandbox failed. Who decides in the episode is the service's business.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from agent.episode.episode import Episode, EpisodeRequest, Step
from agent.episode.loop import EpisodeLimits, run_episode
from agent.policy.action_source import StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.session import Observation, Session
from warehouse.core.errors import SandboxError


class Player(Protocol):
    """Who plays an episode. Played again, it begins with what it has decided before."""

    @property
    def num_decided(self) -> int:
        """How much has been decided so far: as long as that grows, failures are not in a row."""
        ...

    async def respond(self, context: StepContext) -> Response | None: ...

    async def intervene(self, context: StepContext, response: Response) -> str | None: ...

    async def watch(self, step: Step, after: Observation) -> None: ...

    async def failed(self, error: SandboxError) -> None:
        """The sandbox failed; the episode begins again on another session."""
        ...


MAX_IN_A_ROW = 3
"""Failures without a decision between them, after which the error is the caller's."""
PAUSE_S = 0.3
"""Before the first retry; doubles with each."""


class LiveEpisode:
    """One episode on the sessions of a pool."""

    def __init__(self, session_pool: SessionPoolProtocol, request: EpisodeRequest) -> None:
        self._session_pool, self._request = session_pool, request
        self._session: Session | None = None
        self.num_failures = 0
        """Sandboxes that failed so far."""

    @property
    def session(self) -> Session | None:
        """The session that the episode runs on now."""
        return self._session

    @property
    def environment(self) -> str | None:
        """Versions that pixels and behaviour depend on."""
        environment = getattr(self._session, "environment", None)
        return str(environment) if environment else None

    async def play(self, player: Player, builder: PromptBuilder, limits: EpisodeLimits, *, annotator: str) -> Episode:
        """The episode, from its beginning. Raises SandboxError when one session after the other fails or a person must fix something first,
        ModelError."""
        num_failures, decided = 0, player.num_decided
        while True:
            try:
                return await self._play_once(player, builder, limits, annotator)
            except SandboxError as error:
                if not error.is_retryable:
                    raise
                self.num_failures += 1
                num_failures = 1 if player.num_decided > decided else num_failures + 1
                decided = player.num_decided
                if num_failures >= MAX_IN_A_ROW:
                    raise
                await player.failed(error)
                await asyncio.sleep(PAUSE_S * 2 ** (num_failures - 1))

    async def _play_once(self, player: Player, builder: PromptBuilder, limits: EpisodeLimits, annotator: str) -> Episode:
        async with self._session_pool.lease(self._request.task, screenshots=self._request.screenshots) as session:
            self._session = session
            try:
                return await run_episode(
                    self._request, session, player, builder, limits, intervene=player.intervene, annotator=annotator, watch=player.watch
                )
            finally:
                self._session = None
