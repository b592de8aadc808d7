"""Ray clusters for tests and benchmarks: raylets on this machine, each a node with a loopback address of its own (`ray_nodes`), or each on
a host of its own (`ray_hosts`). Nothing of another cluster here is touched."""

from __future__ import annotations

import json
import os
import random
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
from typing import Any

from benchmarks.common.hosts import Host, Hosts

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # a head's default; all others need it set
    "RAY_AUTH_TOKEN": "of-trials-on-this-machine-and-as-long-as-it-has-to-be",
    "RAY_FAKE_CLUSTER": "1",  # an autoscaler's nodes are processes here
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_memory_monitor_refresh_ms": "0",  # a busy machine is not a reason to end workers
    "RAY_worker_niceness": "0",  # nor to have them wait: by 15, Ray's own, they were not ready after two minutes beside other work
}
PORT = 6379
PAGE_PORT = 8265
STORE_BYTES = 80 * 1024**2
"""Of a node's object store; less is refused."""
OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A host that sees no process of others: what Ray starts there joins whichever raylet it finds among all processes, the head's first."""
START_LIMIT_S = 300.0
"""For a head to start, on a busy machine."""


def start_command(*options: str, cpus: int) -> list[str]:
    program = "from ray.scripts.scripts import main; main()"
    common = [
        "--block",
        "--include-log-monitor=false",
        f"--num-cpus={cpus}",
        f"--object-store-memory={STORE_BYTES}",
        "--disable-usage-stats",
    ]
    return [sys.executable, "-c", program, "start", *common, *options]


class Nodes:
    """`address`: of the head, which has no processors, so that no episode is placed there; `page`: of its page and job server, if any. Each
    cluster has loopback addresses of its own, since some of Ray's ports are fixed, and a node ends whose part finds its port taken."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        # 127.0.0.1 Ray replaces by the machine's address in its network.
        self._network = f"127.{1 + os.getpid() % 250}.{random.SystemRandom().randrange(1, 250)}"
        self._head = f"{self._network}.2"
        self._port, self.page_port = _free_port(self._head), _free_port(self._head)
        self.address, self.page = f"{self._head}:{self._port}", f"http://{self._head}:{self.page_port}"

    def start_head(self, *, job_server: bool, max_nodes: int) -> None:
        """With an autoscaler that starts up to `max_nodes` nodes of one processor, where there are to be any."""
        scaling = []
        if max_nodes:
            (self.folder / "autoscaling.json").write_text(json.dumps(_autoscaling(self.address, max_nodes)))
            scaling = [f"--autoscaling-config={self.folder / 'autoscaling.json'}"]
        page = _page(self._head, self.page_port if job_server else None)
        self._start("--head", f"--port={self._port}", f"--temp-dir={self.folder}", *page, *scaling, cpus=0)
        _wait_for(self._head, self._port, self.output)
        if job_server:
            _wait_for(self._head, self.page_port, self.output)
            _wait_for_jobs(self.page)

    def add(self, *, cpus: int = 1, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        return self._start(f"--address={self.address}", f"--temp-dir={self.folder / str(len(self._processes))}", cpus=cpus, env=env)

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """`kill -9` of its raylet and what belongs to it; the workers of it end with it."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)

    def _start(self, *options: str, cpus: int, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        address = f"--node-ip-address={self._network}.{2 + len(self._processes)}"
        command = start_command(address, *options, cpus=cpus)
        with self.output.open("ab") as output:
            process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=output, stderr=output, start_new_session=True)
        self._processes.append(process)
        return process


def _autoscaling(address: str, max_nodes: int) -> dict[str, Any]:
    """Of Ray's autoscaler, with the provider of its own tests, which starts nodes on this machine."""
    head = "ray.head.default"
    provider = {"type": "fake_multinode", "gcs_address": address, "head_node_id": 51 * "f" + 5 * "0"}
    directly = {"disable_node_updaters": True, "disable_launch_config_check": True, "foreground_node_launch": True}
    small = {"resources": {"CPU": 1, "object_store_memory": STORE_BYTES}, "node_config": {}, "min_workers": 0, "max_workers": max_nodes}
    empty: dict[str, Any] = {
        **{key: {} for key in ("head_node", "worker_nodes", "file_mounts")},
        **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands")},
        **{key: [] for key in ("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")},
    }
    return {
        "cluster_name": "trial",
        "max_workers": max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10,
        "provider": {**provider, **directly},
        "auth": {"ssh_user": "nobody"},
        "available_node_types": {head: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}, "small": small},
        "head_node_type": head,
        "file_mounts_sync_continuously": False,
        **empty,
    }


class RayHosts:
    """A head on the first host, and a node on each other with so many processors, and with these resources beside them. `address`: for what
    runs on one of them; `page`: of the head's page and job server, if any."""

    def __init__(
        self, hosts: Sequence[Host], folder: Path, cpus: int, *, job_server: bool, resources: Sequence[Mapping[str, float]]
    ) -> None:
        self.head, *self.others = hosts
        self.address, self._folder, self._cpus = f"{self.head.address}:{PORT}", folder, cpus
        self.page = f"http://{self.head.address}:{PAGE_PORT}"
        self._resources = dict(zip((host.address for host in self.others), resources, strict=False))
        self.output = folder / "output.txt"
        head = start_command(
            f"--node-ip-address={self.head.address}",
            "--head",
            f"--port={PORT}",
            f"--temp-dir={folder}",
            *_page(self.head.address, PAGE_PORT if job_server else None),
            cpus=0,
        )
        self.head.start(head, env=dict(os.environ), output=self.output)
        _wait_for_text("Ray runtime started", self.output)  # stages connect to its raylet
        if job_server:
            with self.head.entered():
                _wait_for(self.head.address, PAGE_PORT, self.output)
                _wait_for_jobs(self.page)
        for host in self.others:
            self.start(host)

    def start(self, host: Host) -> subprocess.Popen[bytes]:
        """A node on a host."""
        own = f"--temp-dir={self._folder / host.address}"  # one for all, and sometimes one of two that start at once waits for ever
        resources = f"--resources={json.dumps(self._resources.get(host.address, {}))}"
        command = start_command(f"--node-ip-address={host.address}", f"--address={self.address}", own, resources, cpus=self._cpus)
        return host.start([*OWN_PROCESSES, *command], env=dict(os.environ), output=self.output)

    def run(self, function: str, *arguments: Any, output: Path) -> subprocess.Popen[bytes]:
        """`module:function` in a process on the head's host, with these arguments as strings."""
        module, name = function.split(":")
        program = f"import sys; from {module} import {name}; {name}(*sys.argv[1:])"
        return self.head.start([sys.executable, "-c", program, *map(str, arguments)], env=dict(os.environ), cwd=ROOT, output=output)


@contextmanager
def ray_hosts(
    num_nodes: int, *, cpus: int = 1, job_server: bool = False, resources: Sequence[Mapping[str, float]] = ()
) -> Iterator[RayHosts]:
    """`resources`: of each node in turn, beside its processors."""
    with _environment() as folder, Hosts(1 + num_nodes) as hosts:
        yield RayHosts(hosts, folder, cpus, job_server=job_server, resources=resources)


@contextmanager
def ray_nodes(num_nodes: int, *, job_server: bool = False, max_nodes: int = 0) -> Iterator[tuple[Nodes, Sequence[subprocess.Popen[bytes]]]]:
    with _environment() as folder:
        nodes = Nodes(folder)
        try:
            nodes.start_head(job_server=job_server, max_nodes=max_nodes)
            yield nodes, [nodes.add() for _ in range(num_nodes)]
        finally:
            nodes.end()


@contextmanager
def _environment() -> Iterator[Path]:
    """Ray's environment variables, and a folder for it: paths of sockets may have 107 bytes."""
    before, folder = dict(os.environ), Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    os.environ.update(ENVIRONMENT)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


def _page(address: str, port: int | None) -> tuple[str, ...]:
    """Options of a head for its page and job server, or for none."""
    return ("--include-dashboard=false",) if port is None else (f"--dashboard-host={address}", f"--dashboard-port={port}")


def _free_port(address: str) -> int:
    with socket.socket() as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


def _wait_for(address: str, port: int, output: Path) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex((address, port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(output.read_text())


def _wait_for_text(text: str, output: Path) -> None:
    """Until it has been printed."""
    deadline = time.monotonic() + START_LIMIT_S
    while not output.exists() or text not in output.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(output.read_text())
        time.sleep(0.1)


def _wait_for_jobs(page: str) -> None:
    """Until the job server takes jobs: it answers before the agents are there that would run them."""
    from ray.job_submission import JobSubmissionClient

    client, deadline = JobSubmissionClient(page), time.monotonic() + 120
    while True:
        try:
            client.submit_job(entrypoint="true")
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
