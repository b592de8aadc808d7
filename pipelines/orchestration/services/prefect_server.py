"""The Prefect server of a FLYWHEEL_HOME: found if it answers, started if not, on loopback, one process that dies with its starter. Or one
that somebody else runs, where FLYWHEEL_PREFECT_URL names it: then none is started.

It runs as a plain uvicorn process: Prefect's own command would put a launcher in between, which orphans the server when it is killed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from warehouse.core.errors import StageFailed
from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import FileLock
from warehouse.core.processes import die_with_parent

APPLICATION = "pipelines.orchestration.services.prefect_app:create_guarded_app"
URL_VARIABLE = "FLYWHEEL_PREFECT_URL"
PREFERRED_PORT = 4200
START_TIMEOUT_S = 180.0
"""It takes ten seconds of a core; one that ends is noticed at once."""
NAMED_WAIT_S = 60.0
"""For a server that somebody else runs, which may be restarting."""
POLL_S = 0.2


IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "CANCELLATION_CLEANUP", "FOREMAN", "PAUSE_EXPIRATIONS", "TRIGGERS")
"""Services for deployments and automations, which we have none of; left running they take a twentieth of a core."""


def client_environment(home: Home, url: str | None = None) -> dict[str, str]:
    """What a process must have in its environment before it imports Prefect."""
    environment = {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "DO_NOT_TRACK": "1",
    }
    return environment | ({"PREFECT_API_URL": f"{url}/api"} if url else {})


def server_environment(home: Home, url: str) -> dict[str, str]:
    """What the process of a server must have: its clients' environment and its own settings."""
    idle = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in IDLE_SERVICES}
    return client_environment(home, url) | idle | {"PREFECT_UI_ENABLED": "true", "PREFECT_UI_API_URL": f"{url}/api"}


@contextmanager
def prefect_server(home: Home) -> Iterator[str]:
    """The address of a healthy server for as long as the block runs; one that was started here is ended here.

    Raises StageFailed when none can be started, or the one that is named does not answer.
    """
    if named := os.environ.get(URL_VARIABLE):
        yield _wait_for_named(named.rstrip("/"))
        return
    server = start(home)
    try:
        yield wait_until_healthy(home, server)
    finally:
        if server is not None:
            end(server)


def start(home: Home) -> subprocess.Popen[bytes] | None:
    """Start a server unless this home has one already, or one that is coming up, or another is named; does not wait for it."""
    if os.environ.get(URL_VARIABLE):
        return None
    with FileLock(home.locks / "prefect.lock"):  # of two that want a server, one starts it and the other finds it
        if _is_alive(_recorded(home)[1]):
            return None
        # The server gets the bound socket itself: a port that was only found free could be another home's by the time it is up.
        with _bound_socket() as listener, (home.prefect / "server.log").open("ab") as log:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "uvicorn",
                    "--factory",
                    APPLICATION,
                    "--fd",
                    str(listener.fileno()),
                    "--log-level",
                    "critical",
                    "--timeout-keep-alive",
                    "5",
                ],
                env={**os.environ, **server_environment(home, url)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                pass_fds=[listener.fileno()],
            )
        atomic_write(_record(home), json.dumps({"url": url, "pid": process.pid, "loopback": _loopback()}).encode())
        return process


def wait_until_healthy(home: Home, server: subprocess.Popen[bytes] | None) -> str:
    """Block until the recorded server answers. Raises StageFailed with the end of its log."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        url, pid = _recorded(home)
        if (server is not None and server.poll() is not None) or not _is_alive(pid):
            break
        if _is_healthy(url):
            return url
        time.sleep(POLL_S)
    log = home.prefect / "server.log"
    tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
    raise StageFailed(f"the Prefect server did not come up within {START_TIMEOUT_S:.0f} s; the end of {log}:\n{tail}")


def _wait_for_named(url: str) -> str:
    """Raises StageFailed where nothing answers there for NAMED_WAIT_S: a restart of the server is waited for, a wrong address is not."""
    deadline = time.monotonic() + NAMED_WAIT_S
    while not _is_healthy(url):
        if time.monotonic() >= deadline:
            raise StageFailed(f"no Prefect server answers at {url}, which {URL_VARIABLE} names: start it, or unset the variable")
        time.sleep(POLL_S)
    return url


def end(server: subprocess.Popen[bytes]) -> None:
    """End a server that we started."""
    server.terminate()
    try:
        server.wait(timeout=5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _record(home: Home) -> Path:
    return home.prefect / "server.json"


def _recorded(home: Home) -> tuple[str, int]:
    """Address and process of the last server of this home, of which the process may be gone; none of one that another host started, where a
    stage is a job of a cluster: it listens on that host's loopback."""
    try:
        with open(_record(home)) as file:
            record = json.load(file)
    except FileNotFoundError:
        return "", 0
    return (str(record["url"]), int(record["pid"])) if record.get("loopback") == _loopback() else ("", 0)


def _loopback() -> str:
    """Names the loopback of this process: of its host, or of its container."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/net')}"
    except OSError:  # not Linux
        return socket.gethostname()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/health", timeout=2) as answer:  # nosec B310 # our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _is_alive(pid: int) -> bool:
    """Whether the recorded process exists and is a server (a pid may have been given to another)."""
    try:
        return APPLICATION in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _bound_socket() -> socket.socket:
    for port in (PREFERRED_PORT, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; without it an answer may wait 40 ms
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()  # only now is the port taken: another socket may bind one at which nobody listens yet
            return listener
        except OSError:
            listener.close()
    raise StageFailed("no free port on 127.0.0.1 for the Prefect server: end programs that listen there")
