"""The Prefect server of a home: started once, found by whoever comes next, replaced when it was killed, gone with its starter."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pipelines.orchestration import service
from pipelines.orchestration.services import prefect_server
from warehouse.core.errors import ConfigError, StageFailed
from warehouse.core.home import Home

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from pipelines.orchestration.services.prefect_server import start
from warehouse.core.home import Home
print(start(Home(Path(sys.argv[1]))).pid, flush=True)
time.sleep(120)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_is_shared_replaced_when_killed_and_never_another_homes(tmp_path: Path):
    one, other = Home(tmp_path / "one"), Home(tmp_path / "other")
    first, neighbour = prefect_server.start(one), prefect_server.start(other)
    assert first is not None and neighbour is not None
    try:
        assert prefect_server.start(one) is None, "one that is coming up is not started twice"
        address, neighbours = prefect_server.wait_until_healthy(one, None), prefect_server.wait_until_healthy(other, neighbour)
        assert address != neighbours

        first.send_signal(signal.SIGKILL)
        first.wait()
        with pytest.raises(StageFailed, match="did not come up"):
            prefect_server.wait_until_healthy(one, None)
        with prefect_server.prefect_server(one) as again:
            assert again != neighbours
        assert not prefect_server._is_alive(prefect_server._recorded(one)[1]), "a server that was started for the block ends with it"
        with prefect_server.prefect_server(other) as found:
            assert found == neighbours
        assert neighbour.poll() is None, "a server that was only found is left alone"
    finally:
        for server in (first, neighbour):
            prefect_server.end(server)


def test_a_server_dies_with_its_starter(tmp_path: Path):
    starter = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    server = psutil.Process(int(starter.stdout.readline()))
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 20
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_a_record_whose_process_is_gone_or_another_is_no_server(tmp_path: Path):
    home = Home(tmp_path)
    record = {"url": "http://127.0.0.1:9", "pid": 1, "loopback": prefect_server._loopback()}
    (home.prefect / "server.json").write_text(json.dumps(record))
    started = time.monotonic()
    with pytest.raises(StageFailed, match="did not come up"):
        prefect_server.wait_until_healthy(home, None)
    assert time.monotonic() - started < prefect_server.START_TIMEOUT_S / 2, "what is not there is not waited for"


def test_a_server_on_the_loopback_of_another_host_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stage that is a job on another machine finds the record in the home, which both see."""
    home = Home(tmp_path)
    servers = [prefect_server.start(home)]
    try:
        assert servers[0] is not None and prefect_server.start(home) is None
        monkeypatch.setattr(prefect_server, "_loopback", lambda: "another host")
        servers.append(prefect_server.start(home))
        assert servers[1] is not None and prefect_server._recorded(home)[1] == servers[1].pid
    finally:
        for server in servers:
            prefect_server.end(server)


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_server_that_is_named_is_used_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as named:
        threading.Thread(target=named.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{named.server_port}"
        monkeypatch.setenv(prefect_server.URL_VARIABLE, f"{url}/")
        assert prefect_server.start(Home(tmp_path)) is None
        with prefect_server.prefect_server(Home(tmp_path)) as found:
            assert found == url
        named.shutdown()
    monkeypatch.setattr(prefect_server, "NAMED_WAIT_S", 0.0)
    with pytest.raises(StageFailed, match=f"{url}, which FLYWHEEL_PREFECT_URL names"), prefect_server.prefect_server(Home(tmp_path)):
        pass


def test_a_service_that_is_none_is_named():
    with pytest.raises(ConfigError, match="'scheduler' is not a service: there are code, webserver, daemon, prefect"):
        service.main(["scheduler"])
