"""A browser page with a jail of the episode's own beside it: what sessions of that shape have in common.

What is in the jail (the files and tools of a hybrid task, the application of a web task) is started for the episode, is reached by this
session's page and by no other, and is gone with it. What an episode holds, how it is judged and what its page shows are the kinds' own:
sandbox/hybrid/session.py, sandbox/tasks/web_apps/session.py.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import ClassVar, Generic, Protocol, TypeVar

from sandbox.actions import Action
from sandbox.browser.page_session import PageSession
from sandbox.session import Observation, Verdict, require_open, require_running
from sandbox.tasks.page_task import PageState, Surroundings
from sandbox.tasks.task import Task
from sandbox.terminal.bubblewrap import find_bubblewrap, version
from warehouse.core.errors import SandboxTimeout


class JailedEpisode(Protocol):
    """A task instance that runs."""

    is_over: bool

    @property
    def surroundings(self) -> Surroundings:
        """What of the jail the page may reach."""
        ...

    async def close(self) -> None:
        """End all that was started for it."""
        ...


Instance = TypeVar("Instance")
Episode = TypeVar("Episode", bound=JailedEpisode)
Started = TypeVar("Started")


class EpisodePage(Generic[Episode]):
    """The page side of one session's episodes, on which the kinds' PageTask and WebTask are built. Unlike those of other sources it is one
    session's own, because what it says depends on the episode."""

    state_script = "null"

    def __init__(self) -> None:
        self.episode: Episode | None = None

    def needs_fresh_page(self, task: Task) -> bool:
        return True

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward, threshold=1.0)

    def running(self) -> Episode:
        return require_running(self.episode)


class JailedPageSession(ABC, Generic[Instance, Episode]):
    """Runs task instances one after another."""

    reset_timeout_s: ClassVar[float]
    """How long the start of an episode may take."""

    def __init__(self, page: PageSession, side: EpisodePage[Episode]) -> None:
        """`side` is what `page` asks about its episodes."""
        self._page = page
        self._side = side
        self._is_closed = False
        self.num_resets = 0

    @abstractmethod
    def _instance(self, task: Task, seed: int) -> Instance:
        """Raises TaskError for an unknown source or task."""

    @abstractmethod
    async def _begin(self, task: Task, instance: Instance) -> Episode:
        """Start what is beside the page. Raises SandboxErrors."""

    def _seen(self, episode: Episode, observation: Observation) -> Observation:
        """What the agent sees where the page shows `observation`."""
        return observation

    @property
    def screenshots(self) -> bool:
        return self._page.screenshots

    @screenshots.setter
    def screenshots(self, are_taken: bool) -> None:
        self._page.screenshots = are_taken

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on; empty before the first reset."""
        return f"{self._page.environment}; {version(find_bubblewrap())}" if self._page.environment else ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Raises TaskError for an unknown source or task, SandboxErrors."""
        require_open(self._is_closed)
        instance = self._instance(task, seed)
        self.num_resets += 1
        await self._end_episode()
        episode = self._side.episode = await self._begin(task, instance)
        self._page.surroundings = episode.surroundings
        try:
            return self._seen(episode, await self._page.reset(task, seed))
        except BaseException:
            await self._end_episode()
            raise

    async def _in_time(self, starting: Awaitable[Started], what: str) -> Started:
        try:
            async with asyncio.timeout(self.reset_timeout_s):
                return await starting
        except TimeoutError as error:
            raise SandboxTimeout(f"Starting {what} took longer than {self.reset_timeout_s:g} s. Is the machine overloaded?") from error

    async def oracle_action(self) -> Action | None:
        return None if self._running().is_over else await self._page.oracle_action()

    def _running(self) -> Episode:
        require_open(self._is_closed)
        return self._side.running()

    async def _end_episode(self) -> None:
        """The page first: as long as it lives, it may reach what is beside it."""
        episode, self._side.episode = self._side.episode, None
        try:
            await self._page.leave()
        finally:
            if episode is not None:
                await episode.close()

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._end_episode()
        finally:
            await self._page.close()
