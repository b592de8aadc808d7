"""`flywheel ui`: Dagster's webserver and daemon, and the Prefect server that collections need, on loopback, until interrupted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import yaml
from rich.console import Console

from pipelines import prefect_server, profiles
from pipelines.executor import reap_dead_runs
from pipelines.instance import PROJECT, check_room, open_instance
from pipelines.jobs import DAGSTER_URL_VARIABLE
from pipelines.processes import end_group
from warehouse.errors import ConfigError
from warehouse.home import Home

START_TIMEOUT_S = 120.0
DAGSTER_DEV = ("-m", "dagster", "dev", "-m", "pipelines.definitions", "--host", "127.0.0.1", "--port")


def serve(home: Home, port: int, profile_name: str, overrides: Mapping[str, Any], console: Console) -> int:
    """Serve until interrupted; returns Dagster's exit status.

    Raises ConfigError for a bad profile or a port in use, StageFailed when the Prefect server does not come up.
    """
    profiles.load(profile_name, overrides)
    check_room(home)
    _check_port(port)
    url = f"http://127.0.0.1:{port}"
    os.environ[profiles.PROFILE_VARIABLE] = profile_name
    os.environ[profiles.OVERRIDES_VARIABLE] = yaml.safe_dump(dict(overrides)) if overrides else ""
    os.environ[DAGSTER_URL_VARIABLE] = url
    with open_instance(home) as instance:
        reap_dead_runs(instance, home)
    with prefect_server.prefect_server(home) as prefect_url:
        os.environ.update(prefect_server.client_environment(home, prefect_url))
        process = subprocess.Popen(
            [*_guarded(), sys.executable, *DAGSTER_DEV, str(port)],
            cwd=PROJECT,
            start_new_session=True,
        )
        try:
            _announce(url, prefect_url, process, console)
            return process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            end_group(process.pid)


def _guarded() -> list[str]:
    """Dagster's page, daemon, code server and runs end with us, however we end."""
    return [sys.executable, "-m", "pipelines.guard", str(os.getpid())]


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} of 127.0.0.1 cannot be served on ({error}); choose another with --port") from error


def _announce(url: str, prefect_url: str, process: subprocess.Popen[bytes], console: Console) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=2):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    console.print(f"\n[bold]Dagster[/]  {url}   jobs → next_iteration → Launchpad → Launch run turns the wheel once")
    console.print(f"[bold]Prefect[/]  {prefect_url}   each episode of a collection\n")
