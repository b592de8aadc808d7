"""How a stage fails in Dagster: the policy by which its step is restarted, and the error that says whether it may be.

Dagster is the one who retries a stage (docs/failures.md). It starts every failed step again as RETRY says, but for a Failure that forbids
it: so errors that a person must fix become one on their way out of an asset.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import dagster as dg

from warehouse.core.errors import FlywheelError, to_plain
from warehouse.core.machine import shortage

F = TypeVar("F", bound=Callable[..., Any])

RETRY = dg.RetryPolicy(max_retries=2, delay=1)
"""For what passes by itself: a killed worker, a server that is gone. Every asset has it; `retried` keeps it from the rest."""
ERROR_TYPE = "error"
"""Metadata of a stage's failure: the name of the error's class."""
RETRYABLE = "is_retryable"
"""Metadata of a stage's failure: whether another start may succeed and nobody has fixed anything."""


def failure(what: str, plain: dict[str, Any], **metadata: dg.MetadataValue[Any]) -> dg.Failure:
    """The failure of `what` by an error as it crosses processes (errors.to_plain)."""
    return dg.Failure(
        description=f"{what}: {plain['type']}: {plain['message']}",
        metadata={**metadata, ERROR_TYPE: plain["type"], RETRYABLE: plain["is_retryable"]},
        allow_retries=plain["is_retryable"],
    )


def retried(function: F) -> F:
    """Goes between `@dg.asset(retry_policy=RETRY)` and the function: what a person must fix is started once. Any other error is as it
    was."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _named(function.__name__):
                yield from function(*args, **kwargs)

        return generator  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _named(function.__name__):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except FlywheelError as error:
        raise failure(what, to_plain(error)) from error
    except (OSError, MemoryError) as error:
        if (found := shortage(error)) is None:
            raise
        raise failure(what, to_plain(found)) from error
