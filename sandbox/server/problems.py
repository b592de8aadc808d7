"""Errors on the wire: a FlywheelError becomes problem+json (RFC 9457) that names its class and says whether it is retryable, and the same
error again at the other end."""

from __future__ import annotations

from typing import Any

from warehouse.core import errors
from warehouse.core.errors import AccessDenied, ConfigError, FlywheelError, LeaseLost, SandboxBusy, SandboxError, TaskError

BUSY, GONE, OUT_OF_ORDER, TOO_LARGE, UNAUTHORIZED = 503, 404, 409, 413, 401
RETRY_AFTER_S = 2


class OutOfOrder(SandboxError):
    """A call's number is neither the last one's nor the next: two callers share a lease. Stays inside the server."""


_STATUS: tuple[tuple[type[FlywheelError], int, str], ...] = (
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
    status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
    return _problem(title, status, str(error), errors.name_of(error), is_retryable=error.is_retryable)


def unauthorized() -> dict[str, Any]:
    """The same for every request without a valid token, whatever it asked for."""
    detail = "Send a valid token: `Authorization: Bearer …`. It is in the file that the server named when it started."
    return _problem("Unauthorized", UNAUTHORIZED, detail, AccessDenied.__name__, is_retryable=AccessDenied.is_retryable)


def _problem(title: str, status: int, detail: str, error: str, *, is_retryable: bool) -> dict[str, Any]:
    return {"type": "about:blank", "title": title, "status": status, "detail": detail, "error": error, "is_retryable": is_retryable}


def error_of(problem: Any, status: int) -> FlywheelError:
    """The error that a problem object stands for; SandboxError where it names no class of ours."""
    fields = problem if isinstance(problem, dict) else {}
    message = str(fields.get("detail") or f"The sandbox server answered with status {status}.")
    plain = {"type": fields.get("error"), "message": message, "is_retryable": fields.get("is_retryable")}
    return errors.from_plain(plain, AccessDenied if status in (401, 403) else SandboxError)
