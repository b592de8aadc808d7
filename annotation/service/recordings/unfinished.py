"""Uploads that are not complete: how much a person may have of them, and their end when nobody goes on with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from annotation.storage import audit, recordings
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from annotation.storage.schema import Recording
from warehouse.core.errors import UploadTooLarge

SWEEP_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """Of each person. `kept_s` counts from the last announcement; `max_pixels_a_day` is of pictures that are decoded."""

    max_bytes: int = 8 * 1024**3
    max_recordings: int = 64
    kept_s: float = 7 * 86400.0
    max_pixels_a_day: int = 64 * 10**9


class Unfinished:
    """`clock` gives seconds since 1970."""

    def __init__(
        self, database: Database, store: PartStore, limits: UploadLimits | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._store, self._clock = database, store, clock
        self.limits = limits or UploadLimits()
        self._swept_s = float("-inf")
        """By time.monotonic."""

    def check(self, session: Session, announced: Recording) -> None:
        """Whether a person may have so much, what was announced last included; asked under `lock_parts`. Raises UploadTooLarge."""
        found = recordings.unfinished_of(session, announced.user_id)
        sizes: dict[str, int] = {}
        for part in (part for one in found for part in one.parts):
            sizes[part["sha256"]] = max(int(part["num_bytes"]), sizes.get(part["sha256"], 0))
        num_bytes, limits = sum(sizes.values()), self.limits
        if num_bytes <= limits.max_bytes and len(found) <= limits.max_recordings:
            return
        raise UploadTooLarge(
            f"with {announced.recording_id} {len(found)} uploads of {num_bytes / 1024**3:.1f} GiB would be under way; one person may have "
            f"{limits.max_recordings} of {limits.max_bytes / 1024**3:.1f} GiB in all: complete those that were begun. What nobody goes on "
            f"with is dropped after {limits.kept_s / 86400:.0f} days"
        )

    async def sweep(self) -> int:
        """Drop what was announced long ago and never completed; how many. What is dropped may be announced again."""
        self._swept_s = time.monotonic()
        before_s = self._clock() - self.limits.kept_s
        found = await self._database.reading(recordings.unfinished_since, before_s)
        return sum([await self._database.writing(self._drop, recording_id, before_s) for recording_id in found])

    async def sweep_now_and_then(self) -> None:
        if time.monotonic() - self._swept_s >= SWEEP_EVERY_S:
            await self.sweep()

    def _drop(self, session: Session, recording_id: str, before_s: float) -> bool:
        found = recordings.get(session, recording_id)
        recordings.lock_parts(session, found.user_id)
        session.refresh(found, with_for_update=True)
        if found.completed_at_s is not None or found.erased_at_s is not None or found.created_at_s > before_s:
            return False  # somebody went on with it meanwhile
        own, now_s = recordings.digests(found.parts), self._clock()
        num = self._store.of(found.user_id).erase(sorted(own - recordings.parts_of_others(session, found)))
        found.parts, found.erased_at_s = [], now_s
        audit.record(session, "recording.dropped", now_s=now_s, subject=recording_id, num_parts=num)
        return True
