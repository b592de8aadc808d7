"""The application that uvicorn serves as the Prefect server: Prefect's own, which accepts pages of any origin, behind a guard."""

from __future__ import annotations

from prefect.server.api.server import create_app
from starlette.types import ASGIApp

from pipelines.orchestration.services.allowed_hosts import allowed_hosts
from sandbox.http.origins import OwnPagesOnly


def create_guarded_app() -> ASGIApp:
    return OwnPagesOnly(create_app(), allowed_hosts())
