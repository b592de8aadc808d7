"""A large run, simulated event by event: nodes with sessions, a policy server, a trainer that learns in rounds or streaming, nodes that
die. It shows before anything is rented how many nodes are worth their price, where work queues up, and how stale learning becomes.

Episodes are drawn whole from recorded ones (recorded_episodes), so that long ones are as frequent and as slow as they were. A step waits
for its turn at the policy server (`answers_per_s`), then for a processor of its node (`step_cpu_s`), then for what is left of its recorded
time. Admission is the trainer's own (models/rl/rollouts/curriculum.py); batches take the oldest admitted, and a crashed episode is asked
for once more, as models/rl/rollouts/pool.py has it. Tries that failed before an episode ended are as frequent as they were; where they
broke off is not recorded, so that each ends after some of the steps, as many are as likely as few. Not simulated: groups of attempts, the
network, a trainer that dies.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb
import simpy

from models.rl.rollouts.curriculum import num_to_admit

Events = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """`steps_s`: seconds of each step, from prompt to executed action. `num_retries`: tries that the infrastructure failed before this one.
    `is_crashed`: it failed the last one too, and another episode is run instead. Of such no steps are recorded: one stands for all its
    tries, with the waits for sessions between them."""

    steps_s: tuple[float, ...]
    num_retries: int = 0
    is_crashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes that run episodes. `answers_per_s`: what the policy servers give all together; None: as many as are asked for.
    `step_cpu_s`: of one of a node's `cores_per_node`. `hours_between_deaths`: mean, of one node; None: nodes do not die."""

    num_nodes: int
    sessions_per_node: int
    cores_per_node: int = 1
    step_cpu_s: float = 0.0
    answers_per_s: float | None = None
    hours_between_deaths: float | None = None
    recovery_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What takes the episodes. `batches_ahead` 0 is learning in rounds: nothing runs while it learns."""

    batch_episodes: int
    num_batches: int
    update_s: float = 0.0
    batches_ahead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Of a whole run. Shares and queues are means over its time; staleness is of steps, in updates, as in training_metrics."""

    seconds: float
    num_episodes: int
    num_steps: int
    num_run_again: int
    """Tries that a dead node or a failure ended, and that were run again."""
    staleness_mean: float
    staleness_max: int
    sessions_busy: float
    """Share of the sessions' time that an episode had them; sessions of dead nodes count as idle."""
    trainer_idle: float
    """Share of the trainer's time in which it waited for episodes."""
    server_busy: float
    queue_waiting: float
    """Episodes admitted that wait for a session."""
    queue_server: float
    """Prompts that wait for their turn at the policy server."""
    queue_finished: float
    """Episodes that wait to be learned from."""

    @property
    def episodes_per_h(self) -> float:
        return 3600 * self.num_episodes / self.seconds

    @property
    def steps_per_s(self) -> float:
        return self.num_steps / self.seconds


def recorded_episodes(con: duckdb.DuckDBPyConnection) -> list[RecordedEpisode]:
    """All that policies played in a home, as `connect` of warehouse/storage/sql/query.py opens it; in the order of their ids."""
    rows = con.execute(
        "select outcome = 'crashed' as is_crashed, num_retries, "
        "case when is_crashed then [duration_ms / 1000] else list(latency_ms / 1000 order by step_index) end "
        "from episodes left join steps using (iteration, stage, episode_id) "
        "where episodes.policy_id <> 'oracle' and (is_crashed or latency_ms is not null) "
        "group by episode_id, outcome, num_retries, duration_ms order by episode_id"
    ).fetchall()
    return [RecordedEpisode(steps_s=tuple(steps), num_retries=num, is_crashed=crashed) for crashed, num, steps in rows]


def simulate(episodes: Sequence[RecordedEpisode], cluster: Cluster, learning: Learning, *, seed: int = 0) -> Simulated:
    """A run of all batches. The same seed draws the same episodes, whatever the cluster. Raises ValueError where no episode can end."""
    if not any(not episode.is_crashed for episode in episodes):
        raise ValueError(f"of {len(episodes)} recorded episodes none ended by itself: there is nothing to draw from")
    return _Run(episodes, cluster, learning, seed).result()


class _Mean:
    """The mean of a level over time."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._since, self._sum, self.level = env, 0.0, 0.0, 0

    def add(self, change: int) -> None:
        self._sum += self.level * (self._env.now - self._since)
        self._since = self._env.now
        self.level += change

    @contextmanager
    def one(self) -> Iterator[None]:
        self.add(1)
        try:
            yield
        finally:
            self.add(-1)

    def mean(self) -> float:
        self.add(0)
        return self._sum / self._env.now if self._env.now else 0.0


@dataclass(slots=True, eq=False)
class _Node:
    processors: simpy.Resource
    running: dict[simpy.Process, None] = field(default_factory=dict)
    """In the order in which they started: a set's would not be the same again."""
    is_up: bool = True


@dataclass(slots=True, eq=False)
class _Attempt:
    """At an episode, the `number`-th that was admitted. `num_failed`: its tries that failed so far. `versions`: of the weights behind each
    step."""

    number: int
    episode: RecordedEpisode
    is_second: bool = False
    num_failed: int = 0
    versions: list[int] = field(default_factory=list)


class _Run:
    def __init__(self, episodes: Sequence[RecordedEpisode], cluster: Cluster, learning: Learning, seed: int) -> None:
        self._episodes, self._cluster, self._learning = episodes, cluster, learning
        self._env = env = simpy.Environment()
        self._seed, self._drawn, self._deaths = seed, random.Random(seed), random.Random(seed + 1)
        self._nodes = [_Node(simpy.Resource(env, cluster.cores_per_node)) for _ in range(cluster.num_nodes)]
        self._server = simpy.Resource(env, 1)
        self._free = deque(node for _ in range(cluster.sessions_per_node) for node in self._nodes)
        self._waiting: deque[_Attempt] = deque()
        self._finished: list[tuple[int, _Attempt]] = []
        """A heap: the oldest admitted first."""
        self._changed = env.event()
        self._version, self._num_admitted = 0, 0
        self._num_steps, self._num_again, self._idle_s = 0, 0, 0.0
        self._lags: list[int] = []
        self._busy, self._served = _Mean(env), _Mean(env)
        self._queue_waiting, self._queue_server, self._queue_finished = _Mean(env), _Mean(env), _Mean(env)

    def result(self) -> Simulated:
        if self._cluster.hours_between_deaths is not None:
            for node in self._nodes:
                self._env.process(self._die(node, 3600 * self._cluster.hours_between_deaths))
        self._env.run(until=self._env.process(self._learn()))
        seconds, learning = self._env.now, self._learning
        num_sessions = self._cluster.num_nodes * self._cluster.sessions_per_node
        return Simulated(
            seconds=seconds,
            num_episodes=learning.num_batches * learning.batch_episodes,
            num_steps=self._num_steps,
            num_run_again=self._num_again,
            staleness_mean=sum(self._lags) / max(1, len(self._lags)),
            staleness_max=max(self._lags, default=0),
            sessions_busy=self._busy.mean() / num_sessions,
            trainer_idle=self._idle_s / seconds,
            server_busy=self._served.mean(),
            queue_waiting=self._queue_waiting.mean(),
            queue_server=self._queue_server.mean(),
            queue_finished=self._queue_finished.mean(),
        )

    def _learn(self) -> Events:
        """The trainer, as models/rl/trainer.py: admit, wait for a batch, learn from it, hand the weights over."""
        learning, size = self._learning, self._learning.batch_episodes
        for index in range(learning.num_batches):
            more = num_to_admit(
                self._num_admitted, index, batch_size=size, batches_ahead=learning.batches_ahead, num_batches=learning.num_batches
            )
            for number in range(self._num_admitted, self._num_admitted + more):
                self._waiting.append(_Attempt(number, self._drawn.choice(self._episodes)))
            self._num_admitted += more
            self._queue_waiting.add(more)
            self._start()
            since = self._env.now
            while len(self._finished) < size:
                self._changed = self._env.event()
                yield self._changed
            self._idle_s += self._env.now - since
            batch = [heapq.heappop(self._finished)[1] for _ in range(size)]
            self._queue_finished.add(-size)
            self._lags += [index - version for attempt in batch for version in attempt.versions]
            yield self._env.timeout(learning.update_s)
            self._version += 1

    def _start(self) -> None:
        while self._waiting and self._free:
            node = self._free.popleft()
            if not node.is_up:
                continue  # its sessions come back with it
            self._queue_waiting.add(-1)
            process = self._env.process(self._run(node, self._waiting.popleft()))
            node.running[process] = None
            process.callbacks.append(node.running.pop)

    def _run(self, node: _Node, attempt: _Attempt) -> Events:
        """On a session of a node."""
        attempt.versions.clear()
        is_lost = False
        try:
            with self._busy.one():
                yield from self._failed_tries(node, attempt)
                for step_s in attempt.episode.steps_s:
                    yield from self._step(node, step_s)
                    attempt.versions.append(self._version)
        except simpy.Interrupt:
            is_lost = True
        if node.is_up:
            self._free.append(node)
        if is_lost:
            self._wait_again(attempt, first=True)  # the runner takes another session for it
        elif attempt.episode.is_crashed and not attempt.is_second:
            instead = self._chance(attempt, "instead").choice(self._episodes)
            self._wait_again(_Attempt(attempt.number, instead, is_second=True), first=False)
        else:
            self._finish(attempt)
        self._start()

    def _failed_tries(self, node: _Node, attempt: _Attempt) -> Events:
        """Those before the last, of which a crash's own time has them."""
        episode = attempt.episode
        while attempt.num_failed < episode.num_retries:
            if not episode.is_crashed:
                num_steps = self._chance(attempt, attempt.num_failed).randint(1, len(episode.steps_s))
                for step_s in episode.steps_s[:num_steps]:
                    yield from self._step(node, step_s)
            attempt.num_failed += 1
            self._num_again += 1

    def _chance(self, attempt: _Attempt, what: str | int) -> random.Random:
        """The same for an attempt whatever else happens before it."""
        return random.Random(f"{self._seed}/{attempt.number}/{attempt.is_second}/{what}")

    def _wait_again(self, attempt: _Attempt, *, first: bool) -> None:
        self._num_again += 1
        self._queue_waiting.add(1)
        if first:
            self._waiting.appendleft(attempt)
        else:
            self._waiting.append(attempt)

    def _finish(self, attempt: _Attempt) -> None:
        """A second crash counts, and teaches nothing."""
        if attempt.episode.is_crashed:
            attempt.versions.clear()
        self._num_steps += len(attempt.versions)
        heapq.heappush(self._finished, (attempt.number, attempt))
        self._queue_finished.add(1)
        if not self._changed.triggered:
            self._changed.succeed()

    def _step(self, node: _Node, step_s: float) -> Events:
        cluster = self._cluster
        if cluster.answers_per_s is not None:
            with self._server.request() as turn:
                with self._queue_server.one():
                    yield turn
                with self._served.one():
                    yield self._env.timeout(1 / cluster.answers_per_s)
        if cluster.step_cpu_s:
            with node.processors.request() as turn:
                yield turn
                yield self._env.timeout(cluster.step_cpu_s)
        answer_s = 0.0 if cluster.answers_per_s is None else 1 / cluster.answers_per_s
        yield self._env.timeout(max(0.0, step_s - answer_s - cluster.step_cpu_s))

    def _die(self, node: _Node, mean_s: float) -> Events:
        """Again and again: a node is lost with all that runs on it, and another takes its place."""
        while True:
            yield self._env.timeout(self._deaths.expovariate(1 / mean_s))
            node.is_up = False
            for process in list(node.running):
                process.interrupt()
            yield self._env.timeout(self._cluster.recovery_s)
            node.is_up = True
            self._free = deque(one for one in self._free if one is not node)
            self._free.extend([node] * self._cluster.sessions_per_node)
            self._start()
