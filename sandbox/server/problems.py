"""Errors on the wire: a FlywheelError becomes problem+json (RFC 9457) that names its class, and the same class again at the other end."""

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
    name = type(error).__name__ if hasattr(errors, type(error).__name__) else SandboxError.__name__
    return {"type": "about:blank", "title": title, "status": status, "detail": str(error), "error": name}


def unauthorized() -> dict[str, Any]:
    """The same for every request without a valid token, whatever it asked for."""
    detail = "Send a valid token: `Authorization: Bearer …`. It is in the file that the server named when it started."
    return {"type": "about:blank", "title": "Unauthorized", "status": UNAUTHORIZED, "detail": detail, "error": AccessDenied.__name__}


def error_of(problem: Any, status: int) -> FlywheelError:
    """The error that a problem object stands for; SandboxError where it names no class of ours."""
    fields = problem if isinstance(problem, dict) else {}
    kind = getattr(errors, str(fields.get("error", "")), None)
    message = str(fields.get("detail") or f"The sandbox server answered with status {status}.")
    if isinstance(kind, type) and issubclass(kind, FlywheelError):
        return kind(message)
    return AccessDenied(message) if status in (401, 403) else SandboxError(message)
