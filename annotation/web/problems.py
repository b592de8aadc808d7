"""Errors of an annotation server: the status of each (how they look on the wire is sandbox/http/problems.py's); a person who opened a page
gets one that says the same. What users must not see (a bug, a broken database) is logged, and reported in general terms."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from annotation.web.shell import problem_text
from sandbox.http import problems
from sandbox.http.problems import Statuses, answer, problem
from warehouse.core.errors import (
    AccessDenied,
    AnnotationError,
    AssignmentLost,
    BadUpload,
    ConfigError,
    DatabaseUnusable,
    EngineUnreachable,
    FlywheelError,
    LoginRefused,
    MachineLimit,
    ModelError,
    NotNow,
    OutOfDate,
    SandboxBusy,
    SandboxError,
    ServerUnreachable,
    StorageFull,
    TaskError,
    TooManyAttempts,
    UnknownSubject,
    UnreadableAnswer,
    UploadTooLarge,
)
from warehouse.core.machine import shortage

log = logging.getLogger(__name__)
RETRY_AFTER_S = 2

_STATUS: Statuses = (
    (LoginRefused, 401, "Not logged in"),
    (AccessDenied, 403, "Not allowed"),
    (UnknownSubject, 404, "Not found"),
    (OutOfDate, 409, "Out of date"),
    (NotNow, 409, "Not now"),
    (AssignmentLost, 410, "No longer yours"),
    (UploadTooLarge, 413, "Too large"),
    (BadUpload, 422, "Wrong upload"),
    (TooManyAttempts, 429, "Too many attempts"),
    (TaskError, 422, "Wrong task"),
    (ConfigError, 422, "Wrong request"),
    (DatabaseUnusable, 503, "The database does not answer"),
    (SandboxBusy, 503, "No session is free"),
    (ServerUnreachable, 503, "The sandbox server does not answer"),
    (EngineUnreachable, 503, "The policy server does not answer"),
    (AnnotationError, 422, "Wrong request"),
    (UnreadableAnswer, 422, "Not an answer"),
    (StorageFull, 507, "The disk is full"),
    (MachineLimit, 503, "The server is at its limit"),
    (SandboxError, 502, "The sandbox failed"),
    (ModelError, 502, "The policy failed"),
    (FlywheelError, 500, "The server failed"),
)
_WITHOUT_PATHS: dict[type[FlywheelError], FlywheelError] = {
    StorageFull: StorageFull("The server's disk is full; this was not stored. Send it again once its operator has freed space."),
    MachineLimit: MachineLimit("The server has no memory or files left; this was not stored. Send it again later."),
}
"""What users see where the machine runs out of something; the log has the rest."""
_OF_HTTP = {404: "There is nothing at this address.", 405: "This address does not take this method."}


def add_to(app: FastAPI) -> None:
    """Every error is answered as a problem."""
    for kind, handler in (
        (FlywheelError, _known),
        (RequestValidationError, _unusable),
        (HTTPException, _http),
        (SQLAlchemyError, _broken),
        (Exception, _broken),
    ):
        app.add_exception_handler(kind, _as_asked(handler))


def wants_page(scope: Scope) -> bool:
    """Whether somebody opened an address in a browser, rather than a page or a program asking for something."""
    is_ours = not scope["path"].startswith(("/api/", "/pages/"))
    headers = Headers(scope=scope)
    return is_ours and scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", "") and "authorization" not in headers


def as_asked(scope: Scope, response: Response) -> Response:
    """A problem in the form that is wanted."""
    if not wants_page(scope):
        return response
    given_text = json.loads(bytes(response.body))
    headers = {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
    return HTMLResponse(problem_text(given_text["title"], given_text["detail"]), response.status_code, headers=headers)


def _as_asked(handler: Callable[[Request, Exception], Awaitable[Response]]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answering(request: Request, error: Exception) -> Response:
        return as_asked(request.scope, await handler(request, error))

    return answering


def problem_of(error: FlywheelError, extra: Mapping[str, str] | None = None) -> Response:
    """`extra`: what a program needs to go on, e.g. ids."""
    body = problems.problem_of(error, _STATUS, **({"extra": dict(extra)} if extra else {}))
    headers: dict[str, str] = {}
    if isinstance(error, TooManyAttempts):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    elif body["status"] == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer(body, headers)


def answer_to(request: Request, error: FlywheelError, extra: Mapping[str, str] | None = None) -> Response:
    """`problem_of`; what failed here, rather than in the request, is logged."""
    response = problem_of(error, extra)
    if response.status_code >= 500:
        of = f" ({', '.join(extra.values())})" if extra else ""
        log.warning("%s %s%s: %s: %s", request.method, request.url.path, of, type(error).__name__, error)
    return response


async def _known(request: Request, error: Exception) -> Response:
    if not isinstance(error, FlywheelError):
        raise error
    return answer_to(request, error)


async def _unusable(_: Request, error: Exception) -> Response:
    """The given value is shown only where it is not text: that may be a password."""
    if not isinstance(error, RequestValidationError):
        raise error
    return problem_of(ConfigError(f"{problems.unusable(error, shows_texts=False)} See /api/v1/openapi.json."))


async def _http(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = error.status_code
    if status == 400:  # a body that could not be read
        return answer(problem(status, "Wrong request", "The request's body cannot be read as JSON.", ConfigError))
    kind = UnknownSubject if status == 404 else ConfigError
    return answer(problem(status, "Wrong request", _OF_HTTP.get(status, str(error.detail)), kind), error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    if (named := shortage(error)) is not None:
        return problem_of(_WITHOUT_PATHS[type(named)])
    # E.g. Postgres keeps no NUL in a text, SQLite no number of more than 64 bits.
    if isinstance(error, DataError | OverflowError):
        return problem_of(ConfigError("The request holds something that cannot be stored, e.g. a NUL character or too large a number."))
    if isinstance(error, SQLAlchemyError):
        return problem_of(DatabaseUnusable("The database does not answer as it should; nothing was stored. Try again in a moment."))
    return answer(problem(500, "The server failed", "Something is wrong in the server; its log says what.", FlywheelError))
