"""Ray clusters of the tests' own: raylets on this machine, each a node with a loopback address of its own. Nothing of another cluster here
is touched."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # a head has it of itself, all others must be told
    "RAY_AUTH_TOKEN": "of-these-tests-and-as-long-as-a-token-has-to-be",
    "RAY_memory_monitor_refresh_ms": "0",  # a busy machine is not a reason to end workers
}
HEAD = "127.0.0.2"
"""127.0.0.1 Ray replaces by the machine's address in its network."""
STORE_BYTES = 80 * 1024**2
"""Of a node's object store; less is refused."""


def start_command(*options: str, cpus: int) -> list[str]:
    program = "from ray.scripts.scripts import main; main()"
    common = ["--block", f"--num-cpus={cpus}", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
    return [sys.executable, "-c", program, "start", *common, *options]


class Nodes:
    """`address`: of the head, which has no processors, so that no episode is placed there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind((HEAD, 0))
            port = free.getsockname()[1]
        self.address = f"{HEAD}:{port}"
        self._start("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false", cpus=0)
        self._wait_for_head(port)

    def add(self, *, cpus: int = 1, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        return self._start(f"--address={self.address}", cpus=cpus, env=env)

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """`kill -9` of its raylet and what belongs to it; the workers of it end with it."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)

    def _start(self, *options: str, cpus: int, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        address = f"--node-ip-address=127.0.0.{2 + len(self._processes)}"
        command = start_command(address, *options, cpus=cpus)
        with self.output.open("ab") as output:
            process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=output, stderr=output, start_new_session=True)
        self._processes.append(process)
        return process

    def _wait_for_head(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._processes[0].poll() is None:
            with socket.socket() as one:
                if one.connect_ex((HEAD, port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(self.output.read_text())


@contextmanager
def ray_nodes(num_nodes: int) -> Iterator[tuple[Nodes, Sequence[subprocess.Popen[bytes]]]]:
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # paths of sockets may have 107 bytes
    nodes = None
    try:
        nodes = Nodes(folder)
        yield nodes, [nodes.add() for _ in range(num_nodes)]
    finally:
        if nodes is not None:
            nodes.end()
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)
