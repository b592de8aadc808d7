"""Servers of other packages, as processes of their own environments."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 300.0


@contextmanager
def other_server(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server that was started with a free port as its last argument, once it answers /health."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*map(str, command), str(port)], env={**os.environ, **(environment or {})})
    try:
        url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while not _answers(f"{url}/health"):
            assert process.poll() is None and time.monotonic() < until_s, "it does not answer"
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
