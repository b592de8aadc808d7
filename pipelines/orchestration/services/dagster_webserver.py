"""Dagster's webserver, which refuses pages of another origin: `python -m pipelines.orchestration.services.dagster_webserver …`, options as
Dagster's own.

By itself it takes a GraphQL mutation from any page that is open in a browser of this machine, in the address of a picture even: such a page
could launch runs, end them, and wipe what they recorded.
"""

from __future__ import annotations

from typing import Any

from dagster_webserver import cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from pipelines.orchestration.services.allowed_hosts import allowed_hosts
from sandbox.http.origins import OwnPagesOnly


def main() -> None:
    build = DagsterWebserver.build_middleware

    def build_guarded(self: Any) -> list[Middleware]:
        return [Middleware(OwnPagesOnly, names=allowed_hosts()), *build(self)]

    DagsterWebserver.build_middleware = build_guarded  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
