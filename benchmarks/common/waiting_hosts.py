"""Nodes whose sessions only wait (waiting_node.py), for measurements of work on many machines: network namespaces (hosts.py), each with a
sandbox server, or each with a node of a Ray cluster. What plays episodes there is the real collector of either.

    with PLACEMENTS["ray"](4, size=4, step_ms=1000.0) as made:
        async with made.collector() as placed:
            async for episode in placed.collector.collect(ClickingPolicy(), requests): …

Ray in a process keeps threads in the namespace where it was first used: use a process of its own for each cluster.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import PoolCollector
from agent.prompts.prompt import PromptBuilder
from assets.settings.agent import AgentSettings
from assets.settings.execution import RaySettings, SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from benchmarks.common.hosts import Host, Hosts
from benchmarks.common.ray_nodes import RayHosts, ray_hosts
from benchmarks.common.waiting_node import WaitingPool
from pipelines.cluster.collector import RayCollector
from pipelines.cluster.episode_cluster import open_cluster
from pipelines.cluster.sessions import collecting
from pipelines.stages.sandboxes import StageCollector
from sandbox.server.address import ServerAddress
from sandbox.server.servers_pool import ServersPool
from sandbox.server.tokens import TOKEN_VARIABLE

LOGS = Path(".bench/nodes")
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-the-nodes-0123456789"
PORT = 8421
GRAMMAR = "uitars15"
NODE_WAIT_S = 900.0
"""For nodes to start, on a busy machine."""
RESTART_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Nodes that all take episodes. `is_used`: whether an episode runs on a host now."""

    collector: StageCollector
    is_used: Callable[[Host], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Seconds of processor time up to now: of everything on the nodes, of this process, of all else on the head, and of the whole machine
    with all that has nothing to do with us; and the clock."""

    nodes_s: float
    own_s: float
    head_s: float
    machine_s: float
    clock_s: float


class WaitingHosts(ABC):
    """A head, and nodes with so many sessions. `stay_down`: addresses where what ended is not restarted."""

    def __init__(self, head: Host, hosts: Sequence[Host], size: int, step_ms: float) -> None:
        self.head, self.hosts, self.size, self.step_ms = head, hosts, size, step_ms
        self.stay_down: set[str] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def start(self, host: Host) -> subprocess.Popen[bytes]:
        """What a node has."""

    @abstractmethod
    def collector(self) -> AbstractAsyncContextManager[Placed]:
        """Plays as many episodes at once as there are sessions."""

    def kill(self, host: Host) -> None:
        with self._lock:
            host.kill()

    @asynccontextmanager
    async def kept_started(self) -> AsyncIterator[None]:
        """Start what has ended again, as a service manager would."""
        task = asyncio.create_task(self._keep_started())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_started(self) -> None:
        while True:
            await asyncio.to_thread(self._start_ended)
            await asyncio.sleep(RESTART_S)

    def _start_ended(self) -> None:
        with self._lock:
            for host in self.hosts:
                if host.address not in self.stay_down and host.has_ended():
                    self.start(host)


Make = Callable[[int, int, float], AbstractContextManager[WaitingHosts]]


class ServerNodes(WaitingHosts):
    """Nodes that serve."""

    def start(self, host: Host) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.common.waiting_node", "--host", host.address, "--port", PORT, "--size", self.size]
        arguments = [str(part) for part in [*command, "--step-ms", self.step_ms]]
        env = {**os.environ, TOKEN_VARIABLE: TOKEN, "PYTHONPATH": str(ROOT)}
        return host.start(arguments, env=env, cwd=ROOT, output=LOGS / f"{host.address}.log")

    def addresses(self) -> list[ServerAddress]:
        return [ServerAddress(url=_url(host)) for host in self.hosts]

    @asynccontextmanager
    async def collector(self) -> AsyncIterator[Placed]:
        num_sessions = len(self.hosts) * self.size
        async with self.kept_started(), ServersPool(self.addresses(), size=num_sessions) as pool:
            playing = PoolCollector(pool, PromptBuilder(GRAMMAR), EpisodeLimits(), collecting(SandboxSettings(num_sessions=num_sessions)))
            yield Placed(collector=playing, is_used=lambda host: pool.free_by_server().get(_url(host), self.size) < self.size)


@contextmanager
def server_nodes(num: int, size: int, step_ms: float) -> Iterator[ServerNodes]:
    """So many nodes, all of which answer; within the block this thread is on the head, and this process has their token."""
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ[TOKEN_VARIABLE] = TOKEN
    with Hosts(num + 1) as (head, *hosts):
        made = ServerNodes(head, hosts, size, step_ms)
        for host in hosts:
            made.start(host)
        with head.entered():
            asyncio.run(_all_answer(made))
            yield made


async def _all_answer(made: ServerNodes) -> None:
    async with asyncio.timeout(NODE_WAIT_S), ServersPool(made.addresses(), size=1) as pool:
        while len(pool.free_by_server()) < len(made.hosts):
            await asyncio.sleep(0.05)


class RayNodes(WaitingHosts):
    """Nodes of a Ray cluster."""

    def __init__(self, cluster: RayHosts, size: int, step_ms: float) -> None:
        super().__init__(cluster.head, cluster.others, size, step_ms)
        self._cluster = cluster

    def start(self, host: Host) -> subprocess.Popen[bytes]:
        return self._cluster.start(host)

    @asynccontextmanager
    async def collector(self) -> AsyncIterator[Placed]:
        ray = RaySettings(address=self._cluster.address, cpus=1, wait_s=NODE_WAIT_S)
        sandbox = SandboxSettings(num_sessions=self.size, ray=ray)
        acting = ActingSettings(
            tasks=TaskSettings(lists=("miniwob:smoke",), domains=("forms",)), agent=AgentSettings(grammar=GRAMMAR), sandbox=sandbox
        )
        sessions = partial(waiting_sessions, step_ms=self.step_ms)
        async with self.kept_started(), open_cluster(acting, ray, to_choose=False, open_pool=sessions) as cluster:
            async with asyncio.timeout(NODE_WAIT_S):
                while len(cluster.workers) < len(self.hosts):
                    await asyncio.sleep(0.05)

            def is_used(host: Host) -> bool:
                return any(worker.num_running for worker in cluster.workers if f" {host.address} " in worker.node)

            yield Placed(collector=RayCollector(cluster, collecting(sandbox)), is_used=is_used)


@contextmanager
def ray_cluster(num: int, size: int, step_ms: float) -> Iterator[RayNodes]:
    """So many nodes; within the block this thread is on the head."""
    with ray_hosts(num) as cluster, cluster.head.entered():
        yield RayNodes(cluster, size, step_ms)


@asynccontextmanager
async def waiting_sessions(settings: SandboxSettings, *, step_ms: float) -> AsyncIterator[WaitingPool]:
    """What an episode worker has instead of a fleet."""
    yield WaitingPool(settings.num_sessions, step_ms / 1000)


PLACEMENTS: Mapping[str, Make] = {"servers": server_nodes, "ray": ray_cluster}


def processors(made: WaitingHosts) -> Processors:
    machine, own = psutil.cpu_times(), os.times()
    own_s = own.user + own.system
    return Processors(
        nodes_s=sum(_cpu_s(host) for host in made.hosts),
        own_s=own_s,
        head_s=max(0.0, _cpu_s(made.head) - own_s),
        machine_s=sum(machine[:3]),  # user, nice, system
        clock_s=time.monotonic(),
    )


def _cpu_s(host: Host) -> float:
    """Of all that runs on a host."""
    found = 0.0
    for pid in host.pids():
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            found += times.user + times.system
    return found


def _url(host: Host) -> str:
    return f"http://{host.address}:{PORT}"
