"""The gateway's durable log: calls, outcomes and pictures in FLYWHEEL_HOME/gateway, in the form of the log of episodes. A call is answered
once its line is on the disk. Calls that end together share one sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agent.episode.log import EpisodeLog
from agent.gateway.grouping import Grouping
from agent.gateway.records import Call, Outcome
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.core.locks import FileLock

CALLS_FILE, OUTCOMES_FILE = "calls.jsonl", "outcomes.jsonl"
Pictures = Mapping[str, bytes]


def folder_of(home: Home) -> Path:
    return home.root / "gateway"


class GatewayLog:
    """Of one gateway, which holds the folder's lock. Reading needs no lock: use `read_calls` and `read_outcomes`."""

    def __init__(self, home: Home) -> None:
        """Raises ConfigError where another gateway writes there."""
        self.home = home
        self._lock = FileLock(_lock_path(home))
        if not self._lock.acquire():
            raise ConfigError(f"another gateway records in {folder_of(home)}: end it, or give this one a --home of its own")
        self._log = EpisodeLog(folder_of(home))
        self._log.repair()
        self._waiting: list[tuple[Sequence[Call], Pictures, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def grouping(self) -> Grouping:
        """All episodes as they were when the log was last written. Raises ModelError for a damaged log."""
        grouping = Grouping()
        for call in self._log.lines(CALLS_FILE, Call):
            grouping.add(call)
        for outcome in self._log.lines(OUTCOMES_FILE, Outcome):
            grouping.close(outcome)
        return grouping

    async def append(self, calls: Sequence[Call], pictures: Pictures) -> None:
        """Write the calls; they survive the death of this process, and a power cut, once this returns. Raises StorageFull, OSError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((calls, pictures, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._write, batch)
            except Exception as error:  # the callers that wait for the batch get it
                for _, _, done in batch:
                    if not done.done():
                        done.set_exception(error)
            else:
                for _, _, done in batch:
                    if not done.done():
                        done.set_result(None)

    def _write(self, batch: Sequence[tuple[Sequence[Call], Pictures, object]]) -> None:
        for _, pictures, _ in batch:
            self._log.keep_screenshots(pictures)
        self._log.write_lines(CALLS_FILE, [call for calls, _, _ in batch for call in calls])

    async def close_episode(self, outcome: Outcome) -> None:
        """Write an outcome; durable as calls are."""
        await asyncio.to_thread(self._log.write_line, OUTCOMES_FILE, outcome)

    def forget(self, episodes: Collection[str]) -> None:
        """Take the gateway's episodes of these ids out, with the pictures that no other one was shown. Calls, by which they are found, go
        last, so that what a kill cuts off is done again."""
        calls, outcomes = list(self._log.lines(CALLS_FILE, Call)), list(self._log.lines(OUTCOMES_FILE, Outcome))
        kept = [call for call in calls if call.place.episode not in episodes]
        self._log.remove_screenshots(_shown(calls) - _shown(kept))
        self._log.replace_lines(OUTCOMES_FILE, [outcome for outcome in outcomes if outcome.episode not in episodes])
        self._log.replace_lines(CALLS_FILE, kept)

    def close(self) -> None:
        self._lock.release()


def _shown(calls: Iterable[Call]) -> set[str]:
    return {name for call in calls for said in (*call.messages, call.answer) for name in said.pictures}


def is_written(home: Home) -> bool:
    """Whether a gateway records there now."""
    lock = FileLock(_lock_path(home))
    if is_free := lock.acquire():
        lock.release()
    return not is_free


def _lock_path(home: Home) -> Path:
    return home.locks / "gateway.lock"


def read_calls(home: Home) -> Iterator[Call]:
    """Those whose lines are whole, in the order in which they ended; a gateway may be writing meanwhile."""
    return _log(home).lines(CALLS_FILE, Call)


def read_outcomes(home: Home) -> Iterator[Outcome]:
    return _log(home).lines(OUTCOMES_FILE, Outcome)


def read_picture(home: Home, screenshot_id: str) -> bytes:
    return (folder_of(home) / "screenshots" / screenshot_id).read_bytes()


def has_log(home: Home) -> bool:
    return (folder_of(home) / CALLS_FILE).exists()


def _log(home: Home) -> EpisodeLog:
    return EpisodeLog(folder_of(home))
