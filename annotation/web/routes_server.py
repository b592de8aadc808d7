"""Routes of the server itself: health checks."""

from __future__ import annotations

import logging
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from annotation.storage.schema import User
from annotation.web.access import office_of, open_to_all

log = logging.getLogger(__name__)


class Health(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["ok", "no database"]


def add_to(app: FastAPI) -> None:
    @app.get(
        "/health",
        tags=["server"],
        summary="Whether the server and its database answer",
        responses={503: {"model": Health, "description": "The database does not answer"}},
        **open_to_all(),
    )
    async def health(request: Request, response: Response) -> Health:
        """Needs no login, and shows no more than this."""
        response.headers["cache-control"] = "no-store"
        try:
            await office_of(request).database.reading(_ask)
        except SQLAlchemyError:
            log.exception("the database does not answer")
            response.status_code = 503
            return Health(status="no database")
        return Health(status="ok")


def _ask(session: Session) -> None:
    session.execute(select(User.user_id).limit(1)).first()
