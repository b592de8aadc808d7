"""Host names that Dagster's page and the Prefect server accept besides loopback names and IP addresses: in a deployment, that of their
container, by which the other services reach them."""

from __future__ import annotations

import os

VARIABLE = "FLYWHEEL_ALLOWED_HOSTS"


def allowed_hosts() -> tuple[str, ...]:
    """Of FLYWHEEL_ALLOWED_HOSTS, a list with commas. Pages are still let in from loopback alone (sandbox/http/origins.py)."""
    return tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
