"""A server of others as a process of its own on loopback, for benchmarks and long tests: started, waited for, and ended with all that it
started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

ENDED_S = 30.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    process: subprocess.Popen[bytes]
    start_s: float
    """From the start of the process to the first answer of /health."""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server_process(
    command: Sequence[str | Path], port: int, log: Path, *, environment: Mapping[str, str], start_s: float
) -> Iterator[ServerProcess]:
    """A server that answers /health on that port once it is up, for as long as the block lasts. Raises RuntimeError, with the end of its
    log, where it does not within `start_s`."""
    url, started_s = f"http://127.0.0.1:{port}", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=output,
            env=os.environ | dict(environment),
            start_new_session=True,  # its engine and workers are ended with it
        )
        try:
            while not _is_up(url):
                if process.poll() is not None or time.monotonic() > started_s + start_s:
                    raise RuntimeError(f"{command[0]} did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.1)
            yield ServerProcess(url, process, time.monotonic() - started_s)
        finally:
            _end(process)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server, its engine and its workers: asked to first, so that they remove their shared memory."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
