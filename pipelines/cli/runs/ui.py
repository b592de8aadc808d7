"""`flywheel ui`: Dagster's webserver and daemon, and the Prefect server that collections need, on loopback, until interrupted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from assets.settings.profile import ScheduleSettings
from pipelines import profiles
from pipelines.orchestration.instance import check_disk_space, open_instance
from pipelines.orchestration.jobs import DAGSTER_URL_VARIABLE
from pipelines.orchestration.runs import kept_profile
from pipelines.orchestration.runs.living_runs import living_runs
from pipelines.orchestration.services import prefect_server
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.core.processes import end_group

DAGSTER_DEV = ("-m", "pipelines.orchestration.services.dagster_dev", "-m", "pipelines.definitions", "--host", "127.0.0.1", "--port")
POLL_S = 0.5
LOG_TAIL_CHARS = 3000


def serve(home: Home, port: int, profile_name: str, overrides: Mapping[str, Any], console: Console) -> int:
    """Serve until interrupted or terminated (then 0); returns Dagster's exit status where it ends by itself.

    Raises ConfigError for a bad profile or a port in use, StageFailed when the Prefect server does not come up.
    """
    schedules = _on(profiles.export(profile_name, overrides).schedule)
    check_disk_space(home)
    _check_port(port)
    kept_profile.keep(home, profile_name, overrides)
    url = f"http://127.0.0.1:{port}"
    os.environ[DAGSTER_URL_VARIABLE] = url
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with open_instance(home) as instance:
            living_runs(instance, home)  # a run that was killed before holds no place in the queue
        with prefect_server.prefect_server(home) as prefect_url:
            os.environ.update(prefect_server.client_environment(home, prefect_url))
            return _serve_dagster(home, url, prefect_url, schedules, console)
    except KeyboardInterrupt:
        return 0


def _on(schedule: ScheduleSettings) -> str:
    """The schedules that are on when the page starts, in words."""
    lines = {"retraining": schedule.cron, "ct": schedule.ct, "sft": schedule.sft, "rl": schedule.rl}
    return ", ".join(f"recurring_{name} at {cron}" for name, cron in lines.items() if cron) if schedule.enabled else ""


def _serve_dagster(home: Home, url: str, prefect_url: str, schedules: str, console: Console) -> int:
    """Every event of every run would be printed: that goes to a file, the terminal keeps the addresses."""
    log_path = home.dagster / "ui.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*_guarded(), sys.executable, *DAGSTER_DEV, url.rpartition(":")[2]],
            cwd=home.dagster,  # nothing of the caller's folder is taken for a setting of Dagster's, and nothing is left there
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        console.print("starting Dagster …")
        if _comes_up(url, process):
            console.print(f"\n[bold]Dagster[/]  {url}   Jobs → next_iteration → Launchpad → Launch Run", soft_wrap=True)
            console.print(f"[bold]Prefect[/]  {prefect_url}   each episode of a collection", soft_wrap=True)
            if schedules:
                console.print(f"[bold]schedules[/]  {schedules}", soft_wrap=True, highlight=False)
            console.print(f"[bold]log[/]      {log_path}", soft_wrap=True)
            console.print("Ctrl-C ends both, and what was launched there; what is finished is kept.\n")
        status = process.wait()
        tail = log_path.read_text(errors="replace")[-LOG_TAIL_CHARS:]
        console.print(f"Dagster ended with status {status}; the end of {log_path}:\n{tail}", markup=False, highlight=False)
        return status
    finally:
        end_group(process.pid)


def _guarded() -> list[str]:
    """Dagster's page, daemon, code server and runs end with us, however we end."""
    return [sys.executable, "-m", "pipelines.orchestration.services.guard", str(os.getpid())]


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} of 127.0.0.1 cannot be served on ({error}); choose another with --port") from error


def _comes_up(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Block until Dagster answers; False when it ended instead."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=2):  # nosec B310 # our own address
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    return False
