"""A session that a program drives: one thing at a time, and once the environment has ended the episode nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandbox.actions import Action
from sandbox.session import Observation, Outside, Session, Transition
from warehouse.core.errors import SandboxError


class DrivenSession:
    """Begins at an observation, after the reset. `failure`: why the session is lost, if it is; later calls raise it."""

    def __init__(self, session: Session, observation: Observation) -> None:
        self._session = session
        self._devtools_url: str | None = None
        self._lock = asyncio.Lock()
        self.last = Transition(observation=observation, reward=0.0, terminated=False, truncated=False)
        self.failure: SandboxError | None = None

    @property
    def is_over(self) -> bool:
        return self.last.terminated or self.last.truncated

    async def step(self, action: Action) -> Transition:
        """Raises SandboxError."""
        return await self._after(lambda: self._session.step(action))

    async def devtools(self) -> str | None:
        """The DevTools address of its browser, where it has one: from then on it may be driven by that, too. Raises SandboxError."""
        if isinstance(self._session, Outside):
            self._devtools_url = await self._session.devtools()
        return self._devtools_url

    @property
    def has_devtools(self) -> bool:
        return self._devtools_url is not None

    async def look(self) -> Transition:
        """What is so now, where it may be driven by its DevTools address; else what the last step led to: only steps change it, and a look
        would take the news (dialogs, downloads) that the next step is to report. Raises SandboxError."""
        if self.has_devtools and isinstance(self._session, Outside):
            return await self._after(self._session.look)
        return await self._after(None)

    async def _after(self, act: Callable[[], Awaitable[Transition]] | None) -> Transition:
        async with self._lock:
            if self.failure is not None:
                raise self.failure
            if act is not None and not self.is_over:
                try:
                    self.last = await act()
                except SandboxError as error:
                    self.failure = error
                    raise
            return self.last
