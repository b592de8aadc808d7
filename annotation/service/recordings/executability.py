"""Whether uploaded recordings can be carried out: those that name a task of a sandbox are tried there, one at a time, on a session of the
pool that people annotate on. How that goes is recording/replaying.py's. What could not be tried says so by saying nothing.
"""

from __future__ import annotations

import asyncio
import logging

from annotation.recordings.bundle import Manifest, TaskQuery
from annotation.recordings.replaying import replay
from annotation.service.recordings import bundles
from annotation.storage import recordings
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Task
from warehouse.core.errors import FlywheelError

LIMIT_S = 600.0
HIGHEST_SEED = 2**63 - 1
log = logging.getLogger(__name__)


class Executability:
    """Belongs to the event loop that it is used in. `session_pool` None: nothing is tried."""

    def __init__(self, database: Database, store: PartStore, session_pool: SessionPoolProtocol | None) -> None:
        self._database, self._store, self._session_pool = database, store, session_pool
        self._one = asyncio.Semaphore(1)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def recover(self) -> None:
        """Try what a server before this one left untried."""
        if self._session_pool is not None:
            for recording_id in await self._database.reading(recordings.untried):
                self.later(recording_id)

    def later(self, recording_id: str) -> None:
        """Beside whatever else goes on. May be called again: what was tried is not retried."""
        if self._session_pool is not None and recording_id not in self._tasks:
            task = asyncio.create_task(self._surely(recording_id, self._session_pool), name=f"trying {recording_id}")
            self._tasks[recording_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(recording_id, None))

    async def settled(self) -> None:
        """Once everything is tried that was asked for so far."""
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        """What is left untried the next server tries. May be called twice."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _surely(self, recording_id: str, session_pool: SessionPoolProtocol) -> None:
        async with self._one:
            try:
                async with asyncio.timeout(LIMIT_S):
                    found = await self._try(recording_id, session_pool)
            except (FlywheelError, TimeoutError) as error:
                log.warning("%s could not be tried: %s: %s", recording_id, type(error).__name__, error)
                return
            except Exception:
                log.exception("%s could not be tried", recording_id)
                return
            if found is not None:
                await self._database.writing(recordings.set_executable, recording_id, found)

    async def _try(self, recording_id: str, session_pool: SessionPoolProtocol) -> bool | None:
        """None for an unknown task, or where there is nothing to find out."""
        found = await self._database.reading(recordings.get, recording_id)
        if found.state != "pending" or found.is_executable is not None or not found.summary.get("environment"):
            return None
        manifest: Manifest = await asyncio.to_thread(bundles.read_manifest, self._store.of(found.user_id), found.digest)
        task = await asyncio.to_thread(task_of, manifest.task)
        if task is None:
            return None
        async with session_pool.lease(task, screenshots=False) as session:
            return (await replay(manifest, session, task, manifest.task.seed or 0)).is_executable


def task_of(query: TaskQuery) -> Task | None:
    """The task that a recording names as source/name; None for none, and for a seed that is out of bounds."""
    source, _, name = query.environment.partition("/")
    if source not in SOURCES or not 0 <= (query.seed or 0) <= HIGHEST_SEED:
        return None
    return next((task for task in tasks_of(source) if task.name == name), None)
