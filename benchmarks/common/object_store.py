"""An object store for as long as a test or a measurement lasts: moto's S3 server, in a process of its own, on loopback or on an address
that other hosts reach.

moto looks whether an object is there and puts it afterwards, in threads: two conditional puts of one name could both win. So requests that
write are taken one at a time here, as a store takes those of one name.

    python -m benchmarks.common.object_store HOST PORT
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUCKET = "flywheel"
LOOPBACK = "127.0.0.1"
START_S = 120


@dataclass(frozen=True, slots=True)
class Server:
    """A running one. `environment` is what a client of it needs."""

    port: int
    host: str = LOOPBACK

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.address)


def environment(address: str) -> dict[str, str]:
    """Variables of a client of the store at an address."""
    keys = {"AWS_ACCESS_KEY_ID": "flywheel", "AWS_SECRET_ACCESS_KEY": "flywheel", "AWS_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}


@contextmanager
def an_object_store(log: Path, host: str = LOOPBACK) -> Iterator[Server]:
    """A server with the bucket `flywheel`, which is empty; what it says goes to `log`. `host`: the address that it listens on."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.common.object_store", host, "0"],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        try:
            server = Server(_port(process, log), host)
            request = urllib.request.Request(f"{server.address}/{BUCKET}", method="PUT", headers={"Host": "s3.amazonaws.com"})
            with urllib.request.urlopen(request, timeout=START_S):
                yield server
        finally:
            process.kill()  # where a test's process ignores SIGTERM, what it starts does as well
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if (found := re.search(rb"listens on (\d+)", log.read_bytes())) is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"moto's server did not start: {log.read_text()[-2000:]}")


class _OneWriteAtATime:
    """A WSGI application that is asked to write by one client at a time."""

    def __init__(self, application: Any) -> None:
        self._application, self._lock = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)  # type: ignore[no-any-return]
        with self._lock:
            return list(self._application(environ, start_response))


def main(host: str, port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            if type == "error":
                super().log(type, message, *args)

    application = _OneWriteAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(host, port, application, threaded=True, request_handler=Quiet)
    print(f"listens on {server.port}")
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
