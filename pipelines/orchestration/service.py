"""One service of a deployment on the home of FLYWHEEL_HOME, in this process: `python -m pipelines.orchestration.service NAME …`, options as
the program's own. deploy/compose.yaml runs each in its own container; `flywheel ui` starts them all on one machine.

    code        Dagster's code location; the runs are processes of it
    webserver   Dagster's page, for our own pages only
    daemon      Dagster's queue, schedules, sensors and run monitoring
    prefect     the Prefect server that collections are shown on (`--host`, `--port`; where its database is, is Prefect's own setting)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pipelines.orchestration.instance import prepare
from pipelines.orchestration.services import prefect_server
from warehouse.core.durable import make_folder
from warehouse.core.errors import ConfigError, FlywheelError
from warehouse.core.home import Home

DAGSTER = {
    "code": ("dagster", "api", "grpc", "--module-name", "pipelines.definitions"),
    "webserver": ("pipelines.orchestration.services.dagster_webserver",),
    "daemon": ("dagster._daemon", "run"),
}


def main(arguments: Sequence[str]) -> None:
    """Becomes the program. Raises ConfigError for an unknown service, or a home that is not usable."""
    name, *options = arguments or [""]
    home = Home.from_env()
    if name == "prefect":
        program = _prefect(home, options)
    elif name in DAGSTER:
        os.environ.update(prepare(home))
        if name == "code":
            _make_folders(home)
        program = [*DAGSTER[name], *options]
    else:
        raise ConfigError(f"{name!r} is not a service: there are {', '.join([*DAGSTER, 'prefect'])}")
    os.execv(sys.executable, [sys.executable, "-m", *program])


def _make_folders(home: Home) -> None:
    """Those that the other services look into and, as other users, may not make."""
    root = home.make()
    for name in ("tables", "checkpoints", "reports", "scratch", "work", "locks"):
        make_folder(root / name)


def _prefect(home: Home, options: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(prog="service prefect")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=prefect_server.PREFERRED_PORT)
    given = parser.parse_args(options)
    url = f"http://127.0.0.1:{given.port}"
    for variable, value in prefect_server.server_environment(home, url).items():
        os.environ.setdefault(variable, value)  # what the deployment sets goes before ours
    listening = ["--host", given.host, "--port", str(given.port), "--log-level", "warning", "--timeout-keep-alive", "5"]
    return ["uvicorn", "--factory", prefect_server.APPLICATION, *listening]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FlywheelError as error:
        sys.exit(f"{type(error).__name__}: {error}")
