"""This process's connection to a Ray cluster, as a profile names it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assets.settings.execution import RaySettings
from warehouse.core.errors import ConfigError, ServerUnreachable, missing_extra

_LOCK = threading.Lock()
_users = 0
_is_ours = False


def import_ray() -> Any:
    """The module. Raises ConfigError where the extra is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it reports to its makers
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error.name, "ray")) from error
    return ray


@contextmanager
def connected(settings: RaySettings) -> Iterator[Any]:
    """`ray`, connected until the last such block of the process ends; a connection that was there before stays. Not in the main thread, of
    which Ray would take the handler of SIGTERM. Raises ConfigError and ServerUnreachable."""
    global _users, _is_ours
    ray = import_ray()
    with _LOCK:
        if not _users and not ray.is_initialized():
            _connect(ray, settings)
            _is_ours = True
        _users += 1
    try:
        yield ray
    finally:
        with _LOCK:
            _users -= 1
            if not _users and _is_ours:
                _is_ours = False
                ray.shutdown()


def _connect(ray: Any, settings: RaySettings) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(
            address=settings.address,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            **({"include_dashboard": False} if settings.address == "local" else {}),
        )
    except ConnectionError as error:
        raise ServerUnreachable(
            f"no Ray cluster answers at sandbox.ray.address {settings.address!r}: {error}. Start its head with `ray start --head` and this "
            "machine's part with `ray start --address HOST:PORT`, with RAY_AUTH_MODE and RAY_AUTH_TOKEN as in this process, or use `local`"
        ) from error
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"the Ray cluster at sandbox.ray.address {settings.address!r} cannot be used: {error}") from error
