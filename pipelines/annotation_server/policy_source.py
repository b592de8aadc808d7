"""Where an annotation server's policies come from: the checkpoints of its home. The live release is looked up whenever an episode begins,
so that a release or a rollback is picked up between episodes; the one before it answers on for those who are at it, and is closed when
nobody is.

A server behind OpenAI's interface has one set of weights at a time: there the newest that was asked for answers everybody, and says so in
each answer's policy id.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.policy.policy import Policy, Prompt, Response, is_continuous
from annotation.service.campaigns.policies import NEWEST, Served
from assets.settings.profile import ActingSettings
from pipelines.stages.engines import ClosablePolicy, open_engine
from warehouse.core.errors import ModelError
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse

NAMES = (NEWEST, registry.RELEASED)
"""Of the newest release."""
IDLE_S = 900.0
"""An engine that is not the newest and answered nothing for so long is closed, and opened again should somebody come back to it."""


@dataclass(slots=True, kw_only=True)
class _Engine:
    policy: ClosablePolicy
    folder: Path
    num_asks: int = 0
    asked_s: float = 0.0


class _Handle:
    """What an episode is given: asks the engine of its checkpoint, whichever process or copy that is by then."""

    def __init__(self, source: ReleasedPolicies, checkpoint_id: str, *, is_continuous: bool) -> None:
        self._source, self.checkpoint_id, self.is_continuous = source, checkpoint_id, is_continuous

    @property
    def policy_id(self) -> str:
        return self._source.answering(self.checkpoint_id)

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        async with self._source.asking(self.checkpoint_id) as policy:
            return await policy.act(prompts)


class RegisteredPolicies:
    """Which policies there are; for who makes a campaign, be there a server or not."""

    def __init__(self, home: Home) -> None:
        self._warehouse = Warehouse(home)

    async def check(self, policy: str) -> None:
        """Raises CheckpointError for an id that is not registered."""
        if policy not in NAMES:
            await asyncio.to_thread(registry.find, self._warehouse, policy)


class ReleasedPolicies(RegisteredPolicies):
    """A PolicySource (annotation/service/campaigns/policies.py). Belongs to the event loop that it is used in."""

    def __init__(self, home: Home, acting: ActingSettings) -> None:
        super().__init__(home)
        self._acting = acting
        self._builder = acting.agent.builder()
        self._is_server = acting.engine.kind == "http"
        self._engines: dict[str, _Engine] = {}
        self._folders: dict[str, Path] = {}
        """Of checkpoints that were given out."""
        self._current = ""
        """The live release; of a server, what it has."""
        self._newest: tuple[tuple[int, ...], registry.Registered] | None = None
        """By the versions of the tables that say so."""
        self._handles: weakref.WeakSet[_Handle] = weakref.WeakSet()
        """Those that episodes were given and still hold, whether or not the engine is open."""
        self._opening = asyncio.Lock()
        """Held while an engine is opened or closed: one that is being closed is not opened beside itself."""
        self._is_closed = False

    async def get(self, policy: str) -> Served:
        """The policy of a checkpoint id, or of the newest release. Raises CheckpointError, ModelError."""
        found = await asyncio.to_thread(self._find, policy)
        self._folders[found.checkpoint_id] = found.folder
        if policy in NAMES or self._is_server:
            self._current = found.checkpoint_id
        engine = await self._open(found.checkpoint_id)
        handle = _Handle(self, found.checkpoint_id, is_continuous=is_continuous(engine.policy))
        self._handles.add(handle)
        await self._close_unused()
        as_policy: Policy = handle
        return Served(
            policy_id=found.checkpoint_id, policy=as_policy, builder=self._builder, max_new_tokens=self._acting.agent.max_new_tokens
        )

    @asynccontextmanager
    async def asking(self, checkpoint_id: str) -> AsyncIterator[Policy]:
        """The engine, for one question. Raises ModelError."""
        engine = await self._open(checkpoint_id)
        engine.num_asks += 1
        try:
            yield engine.policy
        finally:
            engine.num_asks -= 1
            engine.asked_s = time.monotonic()

    def answering(self, checkpoint_id: str) -> str:
        """Id of the weights that answer for a checkpoint now."""
        engine = next(iter(self._engines.values()), None) if self._is_server else None
        return checkpoint_id if engine is None else engine.policy.policy_id

    def open_ids(self) -> list[str]:
        """Checkpoints whose engine is open."""
        return list(self._engines)

    async def close(self) -> None:
        """End the engines; may be called twice."""
        self._is_closed = True
        async with self._opening:
            engines, self._engines = self._engines, {}
            for engine in engines.values():
                await asyncio.to_thread(engine.policy.close)

    def _find(self, policy: str) -> registry.Registered:
        if policy not in NAMES:
            return registry.find(self._warehouse, policy)
        versions = tuple(self._warehouse.version(table) for table in ("checkpoints", "releases"))
        newest = self._newest
        if newest is None or newest[0] != versions:
            newest = self._newest = (versions, registry.released(self._warehouse))
        return newest[1]

    async def _open(self, checkpoint_id: str) -> _Engine:
        if (engine := self._of(checkpoint_id)) is not None:
            return engine
        async with self._opening:
            if self._is_closed:
                raise ModelError("the annotation server is shutting down: it sends no more requests to policies")
            if (engine := self._of(checkpoint_id)) is None:
                folder = self._folders[checkpoint_id]
                before = list(self._engines) if self._is_server else []
                policy = await asyncio.to_thread(open_engine, folder, self._acting.engine)
                engine = self._engines[checkpoint_id] = _Engine(policy=policy, folder=folder, asked_s=time.monotonic())
                for name in before:  # the server has other weights now, for all clients
                    await self._close(name)
            return engine

    def _of(self, checkpoint_id: str) -> _Engine | None:
        """Its engine; of a server's, what it has once another was asked for, for those who are at an older one."""
        if self._is_server and checkpoint_id != self._current and self._current in self._engines:
            return self._engines[self._current]
        return self._engines.get(checkpoint_id)

    async def _close_unused(self) -> None:
        """The engines, except the newest, that nobody is at or that were not asked for long."""
        async with self._opening:
            now_s = time.monotonic()
            for name, engine in list(self._engines.items()):
                is_left = not any(handle.checkpoint_id == name for handle in self._handles) or now_s - engine.asked_s > IDLE_S
                if name != self._current and is_left and not engine.num_asks:
                    await self._close(name)

    async def _close(self, name: str) -> None:
        """Under the lock. Later requests for it wait, and open it again."""
        engine = self._engines.pop(name)
        await asyncio.to_thread(engine.policy.close)
