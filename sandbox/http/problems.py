"""Errors on the wire: a FlywheelError becomes problem+json (RFC 9457) that names its class and says whether it is retryable. Which status
an error has is each server's own. The policy server answers in OpenAI's shape instead (models/server/problems.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from warehouse.core import errors
from warehouse.core.errors import ConfigError, FlywheelError

PROBLEM_TYPE = "application/problem+json"
TEXT, WHETHER = {"type": "string"}, {"type": "boolean"}
_FIELDS = {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT, "error": TEXT, "is_retryable": WHETHER}
_PROBLEM = {"type": "object", "required": [*_FIELDS], "properties": _FIELDS}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What is wrong with the request", "content": {PROBLEM_TYPE: {"schema": _PROBLEM}}},
    "5XX": {"description": "What failed", "content": {PROBLEM_TYPE: {"schema": _PROBLEM}}},
}
"""What an interface says of its errors in its OpenAPI schema."""
LONGEST_INPUT = 80
Statuses = tuple[tuple[type[FlywheelError], int, str], ...]
"""Status and title of each kind of error, the narrower kinds first."""


@cache
def shared_routes(*add_to: Callable[[FastAPI], None]) -> tuple[BaseRoute, ...]:
    """What these functions add to an application, for every application of the process: FastAPI takes a tenth of a second to read the
    signatures of a server's routes. What they work with they get from a request's application."""
    of = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, responses=PROBLEMS)
    for add in add_to:
        add(of)
    return tuple(of.routes)


def problem(status: int, title: str, detail: str, error: FlywheelError | type[FlywheelError], **more: Any) -> dict[str, Any]:
    """The problem object of an error, or of a kind of errors. `more`: what a program needs to go on."""
    name = error.__name__ if isinstance(error, type) else errors.name_of(error)
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "error": name, "is_retryable": error.is_retryable}
    return body | more


def problem_of(error: FlywheelError, statuses: Statuses, **more: Any) -> dict[str, Any]:
    status, title = next((status, title) for kind, status, title in statuses if isinstance(error, kind))
    return problem(status, title, str(error), error, **more)


def answer(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(body, body["status"], headers, PROBLEM_TYPE)


def cut_short(max_bytes: int, *, is_too_large: bool) -> JSONResponse:
    """Of a request's body that is too large, or did not come in time."""
    if is_too_large:
        return answer(problem(413, "Too large", f"The request is larger than the {max_bytes} bytes that are taken here.", ConfigError))
    return answer(problem(408, "Too slow", "The request did not come whole.", ConfigError))


def unusable(error: RequestValidationError, *, shows_texts: bool) -> str:
    """What is wrong with a request, and what was given; where texts may be secret, only what is not text."""
    first = error.errors()[0]
    where, given = ".".join(str(part) for part in first["loc"]), first.get("input")
    shown = f" (got {json.dumps(given, default=str)[:LONGEST_INPUT]})" if shows_texts or isinstance(given, int | float | None) else ""
    return f"The request is not usable: {where}: {first['msg']}{shown}."
