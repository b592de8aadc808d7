"""The client of a sandbox server without an event loop: the same calls, each of which waits. For scripts, notebooks and other languages'
bridges; what the calls do is client.py's.

    with SyncSandbox("http://127.0.0.1:8421") as sandbox, sandbox.lease(task) as session:
        observation = session.reset(task, seed)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from sandbox.actions import Action
from sandbox.loop_thread import LoopThread
from sandbox.server.client import RemoteSession, SandboxClient
from sandbox.session import Observation, Transition, Verdict
from sandbox.tasks.task import Task


class SyncSession:
    """A remote session whose calls wait for their answers."""

    def __init__(self, session: RemoteSession, thread: LoopThread) -> None:
        self._session, self._thread = session, thread

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def environment(self) -> str:
        return self._session.environment

    def reset(self, task: Task, seed: int) -> Observation:
        return self._thread.run(self._session.reset(task, seed))

    def step(self, action: Action) -> Transition:
        return self._thread.run(self._session.step(action))

    def evaluate(self) -> Verdict:
        return self._thread.run(self._session.evaluate())

    def oracle_action(self) -> Action | None:
        return self._thread.run(self._session.oracle_action())

    def observe(self) -> Observation:
        return self._thread.run(self._session.observe())

    def close(self) -> None:
        self._thread.run(self._session.close())


class SyncSandbox:
    """Takes what SandboxClient takes. Signs of life are sent while the caller does something else."""

    def __init__(self, url: str, token: str | None = None, **settings: Any) -> None:
        self._client = SandboxClient(url, token, **settings)
        self._thread = LoopThread("sandbox client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def lease(self, task: Task | None = None, *, screenshots: bool = True) -> Iterator[SyncSession]:
        lease = self._client.lease(task, screenshots=screenshots)
        session = self._thread.run(lease.__aenter__())
        try:
            yield SyncSession(session, self._thread)
        except BaseException as error:
            self._thread.run(lease.__aexit__(type(error), error, error.__traceback__))
            raise
        else:
            self._thread.run(lease.__aexit__(None, None, None))

    def tasks(self, selection: str | None = None) -> list[Task]:
        return self._thread.run(self._client.tasks(selection))

    def sessions(self) -> list[dict[str, Any]]:
        return self._thread.run(self._client.sessions())

    def close(self) -> None:
        """Release every session that is still held; may be called twice."""
        if not self._thread.is_closed:
            self._thread.run(self._client.close())
            self._thread.close()
