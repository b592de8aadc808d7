"""EpisodeCluster: runs episodes on the nodes of a Ray cluster, a worker a node. Callers use it as an EpisodeRunner.

Every node that has the resources gets a worker, up to `workers`, also one that joins later; where there is an autoscaler, it is asked for
more nodes while all places are taken. A node with other code than this process is refused and named. One that is short of disk gets no
episodes until it has space again; one whose steps take much longer than the others' is named. The episodes of a lost node, or of one whose
disk is full, run again elsewhere; one that lost more nodes than `max_retries` is recorded as crashed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any

from agent.episode.collector import LeaseUse
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.runner import LeaseMeter, Live, crashed_episode
from agent.policy.action_source import ActionSource
from assets.settings.execution import RaySettings, SandboxSettings
from assets.settings.profile import ActingSettings
from pipelines.cluster.connection import connected
from pipelines.cluster.episode_worker import EpisodeActor, OpenPool
from pipelines.cluster.node_worker import GivenBack, NodeWorker
from pipelines.cluster.sessions import num_waiting, open_pool
from pipelines.cluster.wire import About, WorkerSettings, own_code
from sandbox.server.identity import plugin_ids
from sandbox.slowness import Slowness
from warehouse.core.errors import ConfigError, FlywheelError, SandboxBusy, SandboxError
from warehouse.core.plugins import environment

_LOG = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at the cluster's nodes."""
START_LIMIT_S = 120.0
"""A worker that is not ready by then, e.g. on a busy machine, is waited for, and another node may take its place among `workers`."""
SILENT_LIMIT_S = 600.0
"""A worker that answers nothing for so long while it starts is ended and restarted."""
GROWTH = 2
"""While all places are taken, so many times as many nodes are asked for."""
ASK_AGAIN_S = 10.0
"""Between two requests to the autoscaler for the same."""
MAX_CALLS = 100
"""Calls of a worker that may be under way at once."""


@asynccontextmanager
async def open_cluster(
    acting: ActingSettings, settings: RaySettings, *, to_choose: bool, open_pool: OpenPool = open_pool
) -> AsyncIterator[EpisodeCluster]:
    """Runs episodes until the block ends, on the sessions that `open_pool` opens on each node. Raises what `connected` raises, and as
    EpisodeCluster.run where there is no node."""
    worker_settings = WorkerSettings(acting=acting, to_choose=to_choose, plugins=environment(), plugin_ids=plugin_ids())
    connection = connected(settings)
    ray = await asyncio.to_thread(connection.__enter__)
    try:
        cluster = EpisodeCluster(ray, settings, worker_settings, open_pool)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.close()
    finally:
        await asyncio.to_thread(connection.__exit__, None, None, None)


class EpisodeCluster:
    """Belongs to the event loop in which it was started."""

    def __init__(self, ray: Any, settings: RaySettings, worker_settings: WorkerSettings, open_pool: OpenPool = open_pool) -> None:
        self._ray, self._settings, self._worker_settings, self._open_pool = ray, settings, worker_settings, open_pool
        sandbox = worker_settings.acting.sandbox
        self._max_retries = sandbox.max_retries
        self.places_per_node, self._sessions_per_node = num_waiting(sandbox), sandbox.num_sessions
        self._bundle = needs_of_node(sandbox)
        self._workers: dict[str, NodeWorker] = {}
        """By the id of its node."""
        self._fitting: set[str] = set()
        """Ids of the nodes that have the resources and are not refused."""
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._slow: dict[str, str] = {}
        """By the id of the node, of workers that should have been ready: the warning about them."""
        self._slowness = Slowness("Ray:", _LOG)
        self._ending: set[asyncio.Task[None]] = set()
        self._refused: dict[str, str] = {}
        """By the id of the node, why it gets no work."""
        self._changed = asyncio.Condition()
        self._num_waiting = 0
        self._num_asked_for, self._asked_s = 0, 0.0
        self._asking = threading.Lock()
        self._without_s = time.monotonic()
        """Since when no worker has been able to get episodes; None while one is."""
        self._has_lost = False
        """Whether a node went away that had a worker."""
        self._meter = LeaseMeter()
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def workers(self) -> list[NodeWorker]:
        return list(self._workers.values())

    @property
    def _usable(self) -> list[NodeWorker]:
        """Those that may get episodes now."""
        return list(islice((worker for worker in self._workers.values() if not worker.trouble), self._settings.workers))

    @property
    def num_nodes(self) -> int:
        """Nodes that have a worker or may get one, as last seen."""
        return len(self._workers.keys() | self._fitting)

    @property
    def num_places(self) -> int:
        """Episodes that its nodes take at once."""
        return sum(worker.num_places for worker in self._usable)

    @property
    def lease_use(self) -> LeaseUse:
        return LeaseUse(leased_s=self._meter.leased_s, num_sessions=len(self._workers) * self._sessions_per_node)

    async def start(self) -> None:
        """Returns once it has a worker."""
        self._watch = asyncio.create_task(self._look(), name="cluster")
        await self._until(lambda: bool(self._workers))

    async def close(self) -> None:
        """Cancels the episodes under way; may be called twice."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*(worker.close() for worker in self.workers), return_exceptions=True)
        await asyncio.gather(*self._starting.values(), *self._ending, *filter(None, [self._watch]), return_exceptions=True)
        if self._num_asked_for:
            await asyncio.to_thread(self._ask_for, 0)

    async def free_slot(self, num_running: Callable[[], int]) -> None:
        """Wait until there is a place for one more episode than are running."""
        await self._until(lambda: num_running() < self.num_places)

    async def run(
        self, request: EpisodeRequest, source: ActionSource, *, live: Live = nullcontext, log: EpisodeLog | None = None
    ) -> Episode:
        """As EpisodeRunner.run, on some node. Raises SandboxBusy where there has been none for `wait_s`, and ConfigError where no node may
        be used."""
        started_s, num_lost = time.monotonic(), 0

        @contextmanager
        def in_slot() -> Iterator[None]:
            with live(), self._meter.leased():
                yield

        while True:
            worker = await self._free_worker()
            try:
                episode = await worker.run(request, source, in_slot)
                break
            except GivenBack as given:
                num_lost += given.was_begun
                failure = SandboxError(str(given))
            except SandboxError as error:
                if worker.loss is not None:
                    num_lost += 1
                elif error.is_retryable:
                    raise
                else:
                    self._refuse(worker, str(error))
                failure = error
            finally:
                await self._notify()
            if num_lost > self._max_retries:
                episode = crashed_episode(request, failure, duration_ms=(time.monotonic() - started_s) * 1000)
                break
        episode = episode.model_copy(update={"num_retries": episode.num_retries + min(num_lost, self._max_retries)})
        if log is not None:
            await asyncio.to_thread(log.append, episode)
        return episode

    async def _free_worker(self) -> NodeWorker:
        """The one with most places left, as soon as there is one."""
        self._num_waiting += 1
        try:
            await self._until(lambda: any(worker.num_running < worker.num_places for worker in self._usable))
        finally:
            self._num_waiting -= 1
        return max(self._usable, key=lambda worker: worker.num_places - worker.num_running)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with self._changed:
            while not is_so():
                if not self._usable:
                    self._require_hope()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._changed.wait()

    def _require_hope(self) -> None:
        """Raises where no node can be expected: at once where all there are were refused, unless one was lost and may come again."""
        waited_s = time.monotonic() - self._without_s
        short = [f"{worker.node}: {worker.trouble}" for worker in self._workers.values()]
        refused = "".join(f"\n  {why}" for why in [*self._refused.values(), *self._slow.values(), *short])
        if self._refused and not self._workers and not self._has_lost and not self._starting and waited_s > 2 * LOOK_S:
            raise ConfigError(f"no node of the Ray cluster may run episodes:{refused}")
        if waited_s > self._settings.wait_s:
            needs = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
            raise SandboxBusy(
                f"for {waited_s:.0f} s the Ray cluster has had no node that runs episodes; each needs {needs}.{refused}\nStart nodes with "
                "`ray start --address`, or ask for less by sandbox.ray.cpus and sandbox.ray.resources"
            )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _look(self) -> None:
        """Start a worker wherever one is missing, and ask for nodes."""
        while True:
            with suppress(self._ray.exceptions.RayError, RuntimeError, OSError):
                self._start_on(await asyncio.to_thread(self._ray.nodes))
            await self._grow()
            await asyncio.sleep(LOOK_S)

    def _start_on(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Start a worker on each of these that lacks one."""
        alive = {node["NodeID"]: node for node in nodes if node["Alive"]}
        self._refused = {node_id: why for node_id, why in self._refused.items() if node_id in alive}
        self._fitting = {node_id for node_id, node in alive.items() if fits(node, self._bundle)} - self._refused.keys()
        for node_id in self._fitting - self._workers.keys() - self._starting.keys():
            at_most = self._settings.workers
            if at_most is not None and len(self._usable) + len(self._starting.keys() - self._slow.keys()) >= at_most:
                break
            self._starting[node_id] = asyncio.create_task(self._start(node_id, _name(alive[node_id])), name=f"start-{node_id}")

    async def _start(self, node_id: str, name: str) -> None:
        """A worker on the node; one that cannot be had now is retried by the next look."""
        actor: Any = None
        try:
            actor = await asyncio.to_thread(self._place, node_id)
            about = await self._opened(actor, node_id, name)
            if about.code != own_code():
                self._refuse_node(node_id, _other_code(name, about))
            elif self._settings.workers is None or len(self._usable) < self._settings.workers:
                self._workers[node_id] = NodeWorker(
                    self._ray,
                    actor,
                    node=name,
                    num_places=self.places_per_node,
                    lost_after_s=self._settings.lost_after_s,
                    on_lost=lambda worker: self._lost(node_id, worker),
                    on_trouble=self._note_trouble,
                    on_step=lambda worker, seconds: self._slowness.note(worker.node, seconds),
                )
                actor = None
                _LOG.info("episodes run on %s", name)
        except TimeoutError:
            _LOG.warning("the episode worker on %s has answered nothing for %g s; it is restarted", name, SILENT_LIMIT_S)
        except self._ray.exceptions.RayTaskError as error:
            why = f"{name}: {type(error.cause).__name__}: {error.cause}"
            if isinstance(error.cause, FlywheelError) and error.cause.is_retryable:
                _LOG.warning("the episode worker on %s; it is restarted", why)
            else:
                self._refuse_node(node_id, why)
        except self._ray.exceptions.RayActorError as error:
            if "creation task" in str(error):  # it cannot load our code
                self._refuse_node(node_id, f"{name} has other code than this process, or none: {str(error).strip().splitlines()[-1]}")
        except self._ray.exceptions.RayError as error:
            _LOG.warning("the episode worker on %s could not be started: %s", name, error)
        finally:
            del self._starting[node_id]
            self._slow.pop(node_id, None)
            if actor is not None:
                with suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.kill(actor)
        await self._notify()

    async def _opened(self, actor: Any, node_id: str, name: str) -> About:
        """What the worker is, once it is ready, or as soon as its code is another. A slow one keeps what it has done. Raises TimeoutError
        for one that is silent, and what the worker raises."""
        opening = asyncio.create_task(self._open(actor), name=f"open-{node_id}")
        try:
            while not (await asyncio.wait({opening}, timeout=START_LIMIT_S))[0]:
                if node_id not in self._slow:
                    self._slow[node_id] = f"{name}: its episode worker was not ready after {START_LIMIT_S:g} s"
                    _LOG.warning("%s; it is waited for", self._slow[node_id])
                async with asyncio.timeout(SILENT_LIMIT_S):  # it answers beside its work, unless it hangs
                    await actor.about.remote()
            return opening.result()
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    async def _open(self, actor: Any) -> About:
        about: About = await actor.about.remote()
        if about.code == own_code():
            await actor.open.remote(self._worker_settings.model_dump_json())
        return about

    def _place(self, node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        made = self._ray.remote(EpisodeActor)
        return made.options(
            num_cpus=self._bundle["CPU"],
            resources=self._settings.resources,
            max_restarts=0,
            max_concurrency=MAX_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(self._open_pool)

    def _note_trouble(self, worker: NodeWorker) -> None:
        if worker.trouble:
            self._without_s = time.monotonic()
            _LOG.warning("%s gets no episodes: %s", worker.node, worker.trouble)
        else:
            _LOG.warning("%s gets episodes again: its disk has space", worker.node)

    def _lost(self, node_id: str, worker: NodeWorker) -> None:
        if self._workers.get(node_id) is not worker:
            return
        del self._workers[node_id]
        self._slowness.forget(worker.node)
        self._without_s = time.monotonic()
        self._has_lost = self._has_lost or node_id not in self._refused
        if not self._is_closed:
            _LOG.warning("%s; its %d episodes run again elsewhere", worker.loss, worker.num_running)
            task = asyncio.create_task(self._end(worker), name=f"end-{node_id}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, worker: NodeWorker) -> None:
        await asyncio.to_thread(worker.kill)
        await self._notify()

    def _refuse(self, worker: NodeWorker, why: str) -> None:
        for node_id, other in list(self._workers.items()):
            if other is worker:
                self._refuse_node(node_id, why)
                worker.lose(why)

    def _refuse_node(self, node_id: str, why: str) -> None:
        self._refused[node_id] = why
        _LOG.warning("a node of the Ray cluster gets no episodes: %s", why)

    async def _grow(self) -> None:
        """Ask the autoscaler for more nodes while all places are taken, and again and again for those asked for, since it knows only what
        was last asked for in the whole cluster. Without one this says what nobody reads."""
        usable = self._usable
        if not usable:
            wanted = 1
        elif self._num_waiting or sum(worker.num_running for worker in usable) >= self.num_places:
            wanted = GROWTH * len(usable)
        else:
            wanted = 0
        if wanted:  # those that get no episodes count for the autoscaler
            num_idle = len(self._workers) - len(usable)
            wanted = min(wanted, self._settings.workers or wanted) + len(self._refused) + num_idle
        wanted = max(self._num_asked_for, wanted)
        if wanted > self._num_asked_for or (wanted and time.monotonic() - self._asked_s > ASK_AGAIN_S):
            self._num_asked_for, self._asked_s = wanted, time.monotonic()
            await asyncio.to_thread(self._ask_for, wanted)

    def _ask_for(self, num_nodes: int) -> None:
        """Blocks for a moment. Nothing is asked for after the stage has asked for none."""
        from ray.autoscaler.sdk import request_resources

        with self._asking, suppress(self._ray.exceptions.RayError, RuntimeError, OSError):
            if not (num_nodes and self._is_closed):
                request_resources(bundles=[self._bundle] * num_nodes)


def needs_of_node(sandbox: SandboxSettings) -> dict[str, float]:
    """What an episode worker takes of its node."""
    settings = sandbox.ray or RaySettings()
    return {"CPU": settings.cpus or float(sandbox.num_workers), **settings.resources}


def fits(node: Mapping[str, Any], needs: Mapping[str, float]) -> bool:
    """Whether a node, as Ray describes it, has so much at all."""
    return all(node["Resources"].get(name, 0.0) >= amount for name, amount in needs.items())


def _name(node: Mapping[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"


def _other_code(name: str, about: About) -> str:
    return f"{name} has other code than this process ({about.code} and {own_code()}): install the same release on every node"
