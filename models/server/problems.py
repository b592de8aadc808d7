"""Errors of the policy server in OpenAI's shape, and where each comes from. What a client must do is in the message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from models.server.wire import Problem, ProblemAnswer
from warehouse.core.errors import FlywheelError, ModelError, RequestRefused

CLOSING = "shutting_down"
RETRY_AFTER = {"retry-after": "1"}


class ApiError(ModelError):
    """A request that is refused. Stays inside the server."""

    def __init__(self, status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.message)
        self.status, self.problem, self.headers = status, problem, dict(headers or {})

    @property
    def body(self) -> str:
        return ProblemAnswer(error=self.problem).model_dump_json()


def wrong(message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> ApiError:
    return ApiError(status, Problem(message=message, type="invalid_request_error", param=param, code=code))


def cut_short(max_bytes: int) -> ApiError:
    return wrong(f"the request is larger than {max_bytes} bytes", status=413, code="too_large")


def too_long(num_prompt: int, limit: int, max_context: int) -> ApiError:
    return wrong(
        f"the prompt has {num_prompt} tokens and the answer may have {limit}; together at most {max_context} fit: shorten either",
        param="messages",
        code="context_length_exceeded",
    )


def unauthorised() -> ApiError:
    """The same for every request without the token, whatever it asked for."""
    return ApiError(
        401,
        Problem(message="Send the server's token: `Authorization: Bearer …`.", type="authentication_error", code="invalid_api_key"),
        {"www-authenticate": "Bearer"},
    )


def forbidden(message: str, code: str) -> ApiError:
    return ApiError(403, Problem(message=message, type="permission_error", code=code))


def busy(what: str, option: str) -> ApiError:
    """`what` keeps the server busy; `option` allows more of it."""
    message = f"{what}: try again later, or start the server with a higher {option}"
    return ApiError(429, Problem(message=message, type="rate_limit_error", code="busy"), RETRY_AFTER)


def closing() -> ApiError:
    return ApiError(503, Problem(message="The server is shutting down.", type="server_error", code=CLOSING), RETRY_AFTER)


def failed(error: Exception) -> ApiError:
    return ApiError(500, Problem(message=f"{type(error).__name__}: {error}", type="server_error", code="engine_failed"))


def refused(error: RequestRefused) -> ApiError:
    return wrong(str(error), param=error.param)


def of_engine(error: ModelError) -> ApiError:
    """The client's error for one that the engine, or the server on the way to it, raised."""
    if isinstance(error, ApiError):
        return error
    return refused(error) if isinstance(error, RequestRefused) else failed(error)


def response_of(error: ApiError) -> JSONResponse:
    return JSONResponse(json.loads(error.body), error.status, headers=error.headers)


async def answer_error(_: Request, error: Exception) -> JSONResponse:
    """The handler of everything that a route raises on purpose."""
    if isinstance(error, ApiError):
        return response_of(error)
    if isinstance(error, RequestValidationError):
        return response_of(_invalid(error))
    return response_of(failed(error if isinstance(error, FlywheelError) else ModelError("see the server's log")))


async def answer_unknown(request: Request, _: Exception) -> JSONResponse:
    """The handler of addresses and methods that no route has."""
    message = f"there is no {request.method} {request.url.path}; /openapi.json lists the routes"
    return response_of(wrong(message, status=404, code="not_found"))


async def answer_unreadable(_: Request, __: Exception) -> JSONResponse:
    """The handler of truncated bodies."""
    return response_of(wrong("the body of the request cannot be read"))


def _invalid(error: RequestValidationError) -> ApiError:
    first: dict[str, Any] = dict(error.errors()[0])
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    given = json.dumps(first.get("input"), default=str)[:80]
    if first["type"] == "extra_forbidden":
        message = f"{where} is not supported by this server; remove it (got {given})"
        return wrong(message, param=where, code="unknown_field")
    return wrong(f"{where}: {first['msg']} (got {given})", param=where)


def app_with_problems(title: str, description: str) -> FastAPI:
    """An application without routes whose every error is a problem in OpenAI's shape."""
    answers: dict[int | str, dict[str, Any]] = {"4XX": {"model": ProblemAnswer}, "5XX": {"model": ProblemAnswer}}
    app = FastAPI(title=title, description=description, docs_url=None, redoc_url=None, responses=answers)
    for kind in (FlywheelError, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_error)
    for status, handler in {400: answer_unreadable, 404: answer_unknown, 405: answer_unknown}.items():
        app.add_exception_handler(status, handler)
    return app
