"""Office: all that the routes of an annotation server work with. It is put together in app.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from annotation.service.access.accounts import Accounts
from annotation.service.campaigns.campaigns import Campaigns
from annotation.service.campaigns.queue import Queue
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.recordings.design import Design
from annotation.service.recordings.executability import Executability
from annotation.service.recordings.recordings import Recordings
from annotation.service.review.finished_runs import FinishedRuns
from annotation.service.review.quality import Quality
from annotation.service.review.review import Reviews
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.web.settings import WebSettings


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
