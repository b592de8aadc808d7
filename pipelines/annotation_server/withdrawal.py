"""What `flywheel annotate withdraw` does, and `flywheel withdraw --purge` with recordings that people took back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from annotation.recordings.samples import attempt_of
from annotation.service.recordings.recordings import Recordings
from annotation.storage import accounts, recordings, withdrawals
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from pipelines.cli.annotate.options import opened_if_there
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.datasets import erasing_episodes
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """Recordings that people took back: their episodes, as far as the tables have them, and those of which the server still holds files."""

    episodes: frozenset[str] = frozenset()
    recordings: tuple[str, ...] = ()


def taken_back(warehouse: Warehouse) -> TakenBack:
    """Whether they gave samples or not: tombstones exist only for those that did. Raises ConfigError, DatabaseUnusable."""
    with opened_if_there(warehouse.home) as database:
        if database is None:
            return TakenBack()
        with database.read() as session:
            attempts = {attempt_of(recording_id) for recording_id in recordings.withdrawn(session, also_erased=True)}
            left = tuple(recordings.withdrawn(session))
    rows = warehouse.read("episodes", stage=erasing_episodes.STAGE, columns=["episode_id", "attempt"]).to_pylist()
    return TakenBack(episodes=frozenset(row["episode_id"] for row in rows if row["attempt"] in attempts), recordings=left)


def erase_taken_back(home: Home) -> int:
    """`erase_withdrawn` in the home's own annotation database."""
    with opened_if_there(home) as database:
        return erase_withdrawn(database, home) if database is not None else 0


def withdraw_given(database: Database, ids: Sequence[str], of: str | None, reason: str) -> int:
    """How many runs and recordings were withdrawn that had not been. Raises ConfigError, UnknownSubject, NotNow."""
    if not ids and of is None:
        raise ConfigError("say what to withdraw: ids of runs or recordings, or --of NAME for all that an account gave")
    with database.write() as session:
        given = [*ids, *(withdrawals.of_user(session, accounts.named(session, of).user_id) if of is not None else ())]
        return len(withdrawals.withdraw(session, list(dict.fromkeys(given)), reason, now_s=time.time()))


def erase_withdrawn(database: Database, home: Home) -> int:
    """Remove the parts of every withdrawn recording from the disk; how many went."""

    async def run() -> int:
        server = Recordings(database, PartStore.of_home(home))
        return sum([await server.erase(recording_id) for recording_id in await server.withdrawn()])

    return asyncio.run(run())
