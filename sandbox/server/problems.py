"""Errors of a sandbox server: the status of each, and the same error again at the other end. How they look on the wire is
sandbox/http/problems.py's."""

from __future__ import annotations

from typing import Any

from sandbox.http import problems
from sandbox.http.problems import Statuses, problem
from warehouse.core import errors
from warehouse.core.errors import AccessDenied, ConfigError, FlywheelError, LeaseLost, SandboxBusy, SandboxError, TaskError

BUSY, GONE, OUT_OF_ORDER, UNAUTHORIZED = 503, 404, 409, 401
RETRY_AFTER_S = 2


class OutOfOrder(SandboxError):
    """A call's number is neither the last one's nor the next: two callers share a lease. Stays inside the server."""


_STATUS: Statuses = (
    (LeaseLost, GONE, "No such session"),
    (SandboxBusy, BUSY, "No session is free"),
    (OutOfOrder, OUT_OF_ORDER, "Out of order"),
    (AccessDenied, 403, "Not allowed"),
    (TaskError, 422, "Wrong task"),
    (ConfigError, 422, "Wrong request"),
    (SandboxError, 502, "The sandbox failed"),
    (FlywheelError, 500, "The server failed"),
)


def problem_of(error: FlywheelError) -> dict[str, Any]:
    """The problem object of an error; `status` in it is the HTTP status."""
    return problems.problem_of(error, _STATUS)


def unauthorized() -> dict[str, Any]:
    """The same for every request without a valid token, whatever it asked for."""
    detail = "Send a valid token: `Authorization: Bearer …`. It is in the file that the server named when it started."
    return problem(UNAUTHORIZED, "Unauthorized", detail, AccessDenied)


def error_of(problem: Any, status: int) -> FlywheelError:
    """The error that a problem object stands for; SandboxError where it names no class of ours."""
    fields = problem if isinstance(problem, dict) else {}
    message = str(fields.get("detail") or f"The sandbox server answered with status {status}.")
    plain = {"type": fields.get("error"), "message": message, "is_retryable": fields.get("is_retryable")}
    return errors.from_plain(plain, AccessDenied if status in (401, 403) else SandboxError)
