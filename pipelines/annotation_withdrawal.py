"""What `flywheel annotate withdraw` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from annotation.service.recordings import Recordings
from annotation.storage import accounts, withdrawals
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from warehouse.errors import ConfigError
from warehouse.home import Home


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
        recordings = Recordings(database, PartStore.of_home(home))
        return sum([await recordings.erase(recording_id) for recording_id in await recordings.withdrawn()])

    return asyncio.run(run())
