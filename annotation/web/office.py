"""Office: all that the routes of an annotation server work with, how it is put together, and what it does when a server begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from annotation.service.access.accounts import Accounts
from annotation.service.access.passwords import Passwords
from annotation.service.campaigns.campaigns import Campaigns
from annotation.service.campaigns.queue import Queue
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.recordings.design import Design
from annotation.service.recordings.executability import Executability
from annotation.service.recordings.recordings import Recordings
from annotation.service.recordings.unfinished import UploadLimits
from annotation.service.review.finished_runs import FinishedRuns
from annotation.service.review.quality import Quality
from annotation.service.review.review import Reviews
from annotation.service.runs.runs import LiveRuns
from annotation.storage.attempts import Limits
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.logins import Lifetimes
from annotation.storage.parts import PartStore
from annotation.web.settings import WebSettings
from sandbox.pool.pool_protocol import SessionPoolProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """All that routes work with: `access.office_of(request)`."""

    database: Database
    blobs: Blobs
    runs: LiveRuns
    accounts: Accounts
    queue: Queue
    campaigns: Campaigns
    finished: FinishedRuns
    reviews: Reviews
    quality: Quality
    recordings: Recordings
    executability: Executability
    design: Design
    task_priorities: TaskPriorityReader
    settings: WebSettings
    clock: Callable[[], float]

    async def recover(self) -> None:
        """Bring back what a server before this one left."""
        await self.runs.recover()
        await self.recordings.unfinished.sweep()
        await self.executability.recover()

    async def close(self) -> None:
        """The database stays open: it is the caller's."""
        await self.recordings.close()
        await self.executability.close()
        await self.runs.close()
        await self.queue.close()
        self.accounts.passwords.close()


def make_office(
    database: Database,
    blobs: Blobs,
    runs: LiveRuns,
    task_priorities: TaskPriorityReader,
    settings: WebSettings,
    *,
    passwords: Passwords | None,
    parts: PartStore | None,
    session_pool: SessionPoolProtocol | None,
    clock: Callable[[], float],
) -> Office:
    """The arguments are those of app.create_app."""
    store = parts or PartStore(blobs.folder.with_name("parts"))
    executability = Executability(database, store, session_pool)
    return Office(
        database=database,
        blobs=blobs,
        runs=runs,
        accounts=_accounts(database, passwords, settings, clock),
        queue=Queue(database, task_priorities, clock=clock),
        campaigns=Campaigns(database, task_priorities, runs.policies, clock=clock),
        task_priorities=task_priorities,
        settings=settings,
        clock=clock,
        reviews=Reviews(database, clock=clock),
        quality=Quality(database, clock=clock),
        recordings=Recordings(database, store, _upload_limits(settings), clock=clock, on_complete=executability.later),
        executability=executability,
        design=Design(database, clock=clock),
        finished=FinishedRuns(database),
    )


def _accounts(database: Database, passwords: Passwords | None, settings: WebSettings, clock: Callable[[], float]) -> Accounts:
    return Accounts(
        database,
        passwords,
        clock=clock,
        lifetimes=Lifetimes(idle_s=settings.idle_s, longest_s=settings.longest_s),
        limits=Limits(
            free=settings.free_failures,
            first_wait_s=settings.first_wait_s,
            longest_wait_s=settings.longest_wait_s,
            by_name=settings.failures_by_name,
            window_s=settings.window_s,
        ),
    )


def _upload_limits(settings: WebSettings) -> UploadLimits:
    return UploadLimits(
        max_bytes=settings.max_unfinished_bytes,
        max_recordings=settings.max_unfinished,
        kept_s=settings.unfinished_days * 86400.0,
        max_pixels_a_day=settings.max_pixels_a_day,
    )
