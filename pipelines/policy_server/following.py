"""Serving whichever release is live: looks at the releases of a home as long as a server runs, and hands it the weights of the live one: to
ours from within, to others (vLLM, SGLang, ours elsewhere) over HTTP.

The version of its weights is the number of the change that was last in the ledger when they were taken (`flywheel release list`), so that
it grows with a rollback too. What cannot be served leaves the server with what it has, says so once in the log and in /health for as long
as it lasts, and is retried; nothing that happens here ends the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from models.http.engine import HttpEngine
from models.server.wire import Following
from warehouse.lineage import registry
from warehouse.lineage.release_ledger import read_ledger
from warehouse.storage.tables import Warehouse

EVERY_S = 1.0
"""Two small files are read each time, the tables only where these have changed."""
ASK_S = 5.0
"""How often servers elsewhere are asked whose weights they have: they may be restarted."""
AGAIN_S = 30.0
"""What could not be served may be by then: a disk that was away, a folder that was restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A release to be served."""

    policy: registry.Registered
    release: str
    number: int


def find_live(warehouse: Warehouse) -> Live:
    """The live release. Raises CheckpointError without one, or if its checkpoint is not registered."""
    policy, ledger = registry.released(warehouse), read_ledger(warehouse)
    if ledger.live_id != policy.checkpoint_id:
        policy = registry.find(warehouse, str(ledger.live_id))  # it changed between the two
    return Live(policy=policy, release=ledger.name(policy.checkpoint_id), number=ledger.number)


class Followed(Protocol):
    """A server that is handed releases."""

    following: Following | None

    @property
    def policy_id(self) -> str: ...

    async def load(self, folder: Path, policy_id: str | None, version: int) -> None: ...

    async def has_lost_weights(self) -> bool:
        """Whether it has other weights than it was handed."""
        ...


class ServersElsewhere:
    """Policy servers over HTTP, all of which are handed a release before any answers with it, as far as they can be stopped."""

    def __init__(self, engine: HttpEngine, *, every_s: float = ASK_S) -> None:
        self.following: Following | None = None
        self._engine, self._every_s, self._asked_s, self._is_lost = engine, every_s, 0.0, False

    @property
    def policy_id(self) -> str:
        return "what it was started on" if self._is_lost else self._engine.policy_id

    async def load(self, folder: Path, policy_id: str | None, version: int) -> None:
        await asyncio.to_thread(self._engine.load_checkpoint, folder, policy_id or "", version)
        self._is_lost = False

    async def has_lost_weights(self) -> bool:
        if time.monotonic() < self._asked_s + self._every_s:
            return False
        self._asked_s = time.monotonic()
        self._is_lost = await asyncio.to_thread(self._engine.has_lost_weights)
        return self._is_lost


class Follower:
    """One server's. `say` is called with a line for its log."""

    def __init__(self, warehouse: Warehouse, say: Callable[[str], None], *, every_s: float = EVERY_S, again_s: float = AGAIN_S) -> None:
        self._warehouse, self._say, self._every_s, self._again_s = warehouse, say, every_s, again_s
        self._seen: tuple[int, ...] | None = None
        """Versions of the tables that were looked at last; None where they could not be read."""
        self._failed_s: float | None = None

    async def follow(self, service: Followed) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._look(service)
            except Exception as error:  # whatever a damaged table or file makes a library raise: the server goes on with what it has
                self._fail(service, None, error)
            await asyncio.sleep(self._every_s)

    async def _look(self, service: Followed) -> None:
        waits = self._failed_s is not None and time.monotonic() - self._failed_s < self._again_s
        if waits and self._seen is None:
            return
        before, self._seen = self._seen, None
        self._seen = await asyncio.to_thread(self._versions)
        if self._seen == before and (waits or self._failed_s is None) and not await service.has_lost_weights():
            return
        live = await asyncio.to_thread(find_live, self._warehouse)
        if live.policy.checkpoint_id == service.policy_id:
            service.following = _following(live)
        else:
            try:
                await service.load(live.policy.folder, live.policy.checkpoint_id, live.number)
            except Exception as error:
                self._fail(service, live, error)
                return
            service.following = _following(live)
            self._say(f"serves {live.release} ({live.policy.checkpoint_id}) since change {live.number}")
        self._failed_s = None

    def _versions(self) -> tuple[int, ...]:
        return tuple(self._warehouse.version(table) for table in ("checkpoints", "releases"))

    def _fail(self, service: Followed, live: Live | None, error: Exception) -> None:
        self._failed_s = time.monotonic()
        before, problem = service.following, f"{type(error).__name__}: {error}"
        if live is not None:
            service.following = _following(live, problem)
            what = f"{live.release} ({live.policy.checkpoint_id}) is live and cannot be served"
        else:
            known = before or Following(release="", policy_id=service.policy_id)
            service.following = known.model_copy(update={"problem": problem})
            what = f"the live release of {self._warehouse.home.root} cannot be read"
        if before is None or before != service.following:
            self._say(f"{what}: {problem}. {service.policy_id} goes on answering; it is retried every {self._again_s:g} s")


def _following(live: Live, problem: str | None = None) -> Following:
    return Following(release=live.release, policy_id=live.policy.checkpoint_id, problem=problem)
