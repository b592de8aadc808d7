"""The HTTP interface of an annotation server: /api/v1 for pages and programs, and the pages. Every request has passed the guard.

The routes are in routes_*.py, a noun each, with an `add_to(app)` that is listed here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from annotation.service.access.passwords import Passwords
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.parts import PartStore
from annotation.web import (
    pages,
    problems,
    routes_accounts,
    routes_design,
    routes_recordings,
    routes_review,
    routes_runs,
    routes_server,
    routes_work,
)
from annotation.web.access import needs
from annotation.web.guard import Guard
from annotation.web.office import make_office
from annotation.web.settings import WebSettings
from sandbox.http.problems import PROBLEMS, shared_routes
from sandbox.http.serving import api_version
from sandbox.pool.pool_protocol import SessionPoolProtocol

ROUTES: tuple[Callable[[FastAPI], None], ...] = (
    routes_accounts.add_to,
    routes_work.add_to,
    routes_runs.add_to,
    routes_review.add_to,
    routes_recordings.add_to,
    routes_design.add_to,
    routes_server.add_to,
    pages.add_to,
)
DESCRIPTION = """People correct an agent in live environments. Pages log in and hold a cookie; programs send `Authorization: Bearer TOKEN`.

What changes something needs the header `X-CSRF-Token` (of `GET /api/v1/me`) with a cookie, and nothing more with a token. Errors are
`application/problem+json`; `error` names their kind."""


def create_app(
    database: Database,
    blobs: Blobs,
    runs: LiveRuns,
    task_priorities: TaskPriorityReader,
    settings: WebSettings | None = None,
    *,
    passwords: Passwords | None = None,
    parts: PartStore | None = None,
    session_pool: SessionPoolProtocol | None = None,
    clock: Callable[[], float] = time.time,
) -> ASGIApp:
    """The ASGI application of a server. Its beginning brings back the runs that a server before it left, its end leaves them to the next;
    the database is the caller's to close. `parts`: None keeps those of uploaded recordings beside the pictures; on `session_pool` it
    is tried whether these can be carried out. Raises ConfigError for a route that does not say who may call it."""
    settings = settings or WebSettings()
    office = make_office(
        database, blobs, runs, task_priorities, settings, passwords=passwords, parts=parts, session_pool=session_pool, clock=clock
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await office.recover()
        yield
        await office.close()

    app = FastAPI(
        title="Flywheel annotation",
        version=api_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses=PROBLEMS,
    )
    app.state.office = office
    problems.add_to(app)
    app.router.routes.extend(shared_routes(*ROUTES))

    @app.get("/api/v1/openapi.json", include_in_schema=False, **needs("annotator"))
    async def openapi() -> dict[str, Any]:
        return app.openapi()

    return Guard(app, office.accounts, settings)
