"""Office: all that the routes of an annotation server work with. It is put together in app.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from annotation.service.accounts import Accounts
from annotation.service.campaigns import Campaigns
from annotation.service.design import Design
from annotation.service.executability import Executability
from annotation.service.finished_runs import FinishedRuns
from annotation.service.quality import Quality
from annotation.service.queue import Queue
from annotation.service.recordings import Recordings
from annotation.service.review import Reviews
from annotation.service.runs import LiveRuns
from annotation.service.standing import StandingReader
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
    standing: StandingReader
    settings: WebSettings
    clock: Callable[[], float]
