"""The pool of rollouts: episodes that run in the background while the policy learns, and batches of those that have finished.

Requests are admitted block by block (what is in a block is curriculum.py's business, when one is due the trainer's), handed to the
Collector as its sessions become free, and written to the rollout log before they start and when they finish. An episode that the
infrastructure crashed is requested once more, and one that has ended is forked where the run forks: its forks are of its group, so that a
batch has all of them. No weights and no gradient here.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from agent.episode.collector import Collector, LeaseUse, MeasuresLeases
from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.fork import begin
from agent.policy.policy import Policy
from models.rl.rollouts.forks import ForkEpisode
from models.rl.rollouts.log import Block, Forks, RolloutLog
from warehouse.core.errors import ModelError, SandboxError

Group = tuple[str, int]
"""Task id and seed: the attempts at one instance are learned from together."""
AGAIN = 10_000
"""Added to the attempt number of what is asked once more; groups are smaller."""


class RolloutPool:
    """Runs what it is offered through one call of the Collector, as long as `async with` lasts; leaving cancels what is under way.

    It begins with what the rollout log holds of earlier starts: finished episodes wait for their batch, and requests that were admitted and
    never finished go on, first of all, whatever their length. Where the saved weights are older than the rollout log, requests
    admitted later are held back until the weights have caught up by learning from the same batches again.
    """

    def __init__(
        self, collector: Collector, policy: Policy, rollout_log: RolloutLog, *, num_learned: int, fork: ForkEpisode | None = None
    ) -> None:
        """`fork`: which forks an episode gets once it has ended; none by default."""
        self._collector, self._policy, self._log, self._fork = collector, policy, rollout_log, fork
        recovered = rollout_log.recover(num_learned)
        self.blocks: list[Block] = recovered.blocks
        """Everything admitted so far, also by earlier starts."""
        self._forks = dict(recovered.forks)
        self._batches = dict(recovered.batches)
        self._learned = {episode_id for index, ids in self._batches.items() if index <= num_learned for episode_id in ids}
        self._promised = {episode_id for index, ids in self._batches.items() if index > num_learned for episode_id in ids}
        self._finished: dict[str, Episode] = dict(recovered.finished)
        found = {episode_id: retry_of(episode) for episode_id, episode in recovered.finished.items() if episode_id not in self._promised}
        self._instead = {episode_id: request for episode_id, request in found.items() if request is not None}
        """By the id of a crashed episode: what is asked in its place. It is in no batch."""
        for episode_id in self._instead:
            del self._finished[episode_id]
        known = {request.episode_id for block in self.blocks for request in block.requests}
        known |= {request.episode_id for request in self._instead.values()}
        known |= {request.episode_id for requests in self._forks.values() for request in requests}
        if not self._finished.keys() | self._learned <= known:
            raise ModelError("the rollout log lacks the requests of finished episodes: delete the run folder to start over")
        if num_learned not in {0, *self._batches}:
            raise ModelError(f"the rollout log lacks batch {num_learned}, which was learned from: delete the run folder to start over")
        self._held = deque(self.blocks)
        self._waited_for = num_learned + 1
        self._admitted: dict[str, int] = {}
        """Place of each episode in the order of admission."""
        self._outstanding: set[str] = set()
        self._sizes: Counter[Group] = Counter()
        self._requests = _Stream()
        self._changed = asyncio.Event()
        self._under_way: asyncio.Task[None] | None = None
        self._num_steps = 0
        self._num_retried = 0

    async def __aenter__(self) -> Self:
        self._under_way = asyncio.create_task(self._collect(), name="rollouts")
        self._under_way.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._requests.end()
        if self._under_way is not None:
            if self._outstanding or kind is not None:
                self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    @property
    def num_admitted(self) -> int:
        """Episodes admitted so far, those of earlier starts included."""
        return sum(len(block.requests) for block in self.blocks)

    @property
    def num_env_steps(self) -> int:
        """Environment steps of the episodes that finished in this start."""
        return self._num_steps

    @property
    def num_retried(self) -> int:
        """Episodes that crashed in this start and were tried once more."""
        return self._num_retried

    @property
    def queues(self) -> dict[str, float]:
        """`queue_waiting`: admitted and not yet taken by the collector; `queue_running`: taken and not finished (waiting for a session or
        on one); `queue_finished`: finished and in no batch."""
        return {
            "queue_waiting": float(len(self._requests)),
            "queue_running": float(len(self._outstanding) - len(self._requests)),
            "queue_finished": float(len(self._finished)),
        }

    @property
    def lease_use(self) -> LeaseUse | None:
        """How the collector's sessions are used, where it knows."""
        return self._collector.lease_use if isinstance(self._collector, MeasuresLeases) else None

    def admit(self, requests: Sequence[EpisodeRequest], passes: Mapping[str, float] | None = None) -> None:
        """Let more episodes start, after the batches learned from so far. They are on disk before this returns."""
        self._release()
        block = Block(num_learned=self._waited_for - 1, requests=tuple(requests), passes=dict(passes or {}))
        self._log.issue(block)
        self.blocks.append(block)
        self._enqueue(block)

    def _release(self) -> None:
        """Let what was admitted by an earlier start go on, as far as as much was learned as then."""
        while self._held and self._held[0].num_learned < self._waited_for:
            self._enqueue(self._held.popleft())

    def _enqueue(self, block: Block) -> None:
        for asked in block.requests:
            self._enqueue_one(asked)

    def _enqueue_one(self, asked: EpisodeRequest, parent: Episode | None = None) -> None:
        """`parent`: of a fork."""
        request = self._instead.get(asked.episode_id, asked)
        if request.episode_id in self._learned:
            return
        self._admitted[request.episode_id] = len(self._admitted)
        self._sizes[_group(request)] += 1
        if request.episode_id in self._finished:
            self._enqueue_forks(self._finished[request.episode_id])
            return
        if parent is not None:
            begin(request, parent, self._log)
        self._outstanding.add(request.episode_id)
        self._requests.put(request)

    def _enqueue_forks(self, parent: Episode) -> None:
        """Let the forks of an episode start. They are on disk before this returns."""
        if self._fork is None:
            return
        if parent.episode_id not in self._forks:
            requests = tuple(self._fork(parent))
            if not requests:
                return
            self._log.forked(Forks(parent_id=parent.episode_id, requests=requests))
            self._forks[parent.episode_id] = requests
        for request in self._forks[parent.episode_id]:
            self._enqueue_one(request, parent)

    async def batch(self, index: int, size: int) -> list[Episode]:
        """The episodes of batch `index`, in the order they were admitted, as soon as `size` are finished in whole groups, forks apart. The
        oldest are taken first. A batch that an earlier start of the run learned from without keeping the result is the same again.

        Raises what the Collector raises, SandboxError when it ends before its requests are answered, ModelError where the rollout log
        lacks an episode of the batch.
        """
        self._waited_for = index
        self._release()
        if index not in self._batches:
            while not (ready := self._ready(size)):
                await self._change()
            await asyncio.to_thread(self._log.take, index, ready)
            self._batches[index] = tuple(ready)
        chosen = self._batches[index]
        missing = [episode_id for episode_id in chosen if episode_id not in self._finished]
        if missing:
            raise ModelError(f"episode {missing[0]} of batch {index} is not in the rollout log: delete the run folder to start over")
        self._waited_for = index + 1
        self._promised.difference_update(chosen)
        episodes = [self._finished.pop(episode_id) for episode_id in chosen]
        return await asyncio.to_thread(self._with_screenshots, episodes)

    def _with_screenshots(self, episodes: Sequence[Episode]) -> list[Episode]:
        return [self._log.with_screenshots(episode) if episode.request.screenshots else episode for episode in episodes]

    def _ready(self, size: int) -> list[str]:
        """Ids of the oldest finished whole groups that together reach `size`; none when they do not."""
        free = [episode_id for episode_id in self._finished if episode_id in self._admitted and episode_id not in self._promised]
        if self._num_asked_for(free) < size:
            return []
        free.sort(key=self._admitted.__getitem__)
        groups: dict[Group, list[str]] = {}
        for episode_id in free:
            groups.setdefault(_group(self._finished[episode_id].request), []).append(episode_id)
        chosen: list[str] = []
        for group, members in groups.items():
            if len(members) == self._sizes[group] and self._num_asked_for(chosen) < size:
                chosen += members
        return sorted(chosen, key=self._admitted.__getitem__) if self._num_asked_for(chosen) >= size else []

    def _num_asked_for(self, episode_ids: Sequence[str]) -> int:
        """How many of these finished episodes are none of the forks."""
        return sum(self._finished[episode_id].request.fork is None for episode_id in episode_ids)

    async def _change(self) -> None:
        """Wait until an episode finishes. Raises when none can any more."""
        if self._under_way is not None and self._under_way.done():
            self._under_way.result()
            left = sorted(self._outstanding)
            raise SandboxError(f"the collector returned no episode for {len(left)} requests, first {left[:1]}: fix the collector")
        self._changed.clear()
        await self._changed.wait()

    async def _collect(self) -> None:
        episodes = self._collector.collect(self._policy, self._requests, log=self._log)
        try:
            async for episode in episodes:
                if episode.episode_id not in self._outstanding:
                    raise SandboxError(
                        f"the collector returned episode {episode.episode_id}, which was not requested or came before: fix the collector"
                    )
                self._outstanding.remove(episode.episode_id)
                self._num_steps += len(episode.steps)
                if retry := retry_of(episode):
                    self._retry(episode, retry)
                else:
                    self._finished[episode.episode_id] = episode.model_copy(update={"screenshots": {}})
                    self._enqueue_forks(episode)
                    self._changed.set()
        finally:
            close = getattr(episodes, "aclose", None)
            if close is not None:
                await close()

    def _retry(self, crashed: Episode, request: EpisodeRequest) -> None:
        """Request a replacement for a crashed episode, behind what waits already. Nothing is written but what a fork begins with: the
        rollout log has the crash."""
        if request.fork is not None:
            begin(request, self._finished[request.fork.parent_id], self._log)
        self._instead[crashed.episode_id] = request
        self._admitted[request.episode_id] = self._admitted.pop(crashed.episode_id)
        self._outstanding.add(request.episode_id)
        self._num_retried += 1
        self._requests.put(request)


def retry_of(episode: Episode) -> EpisodeRequest | None:
    """The request in place of an episode whose infrastructure failed, another attempt at the same instance; None for one that ended by
    itself, and for one that was a retry itself: that crash counts."""
    if episode.outcome is not Outcome.CRASHED or episode.request.attempt >= AGAIN:
        return None
    return episode.request.model_copy(update={"attempt": episode.request.attempt + AGAIN})


def _group(request: EpisodeRequest) -> Group:
    return request.task.task_id, request.seed


class _Stream(AsyncIterator[EpisodeRequest]):
    """Requests that can still be added to while they are taken."""

    def __init__(self) -> None:
        self._waiting: deque[EpisodeRequest] = deque()
        self._changed = asyncio.Event()
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: EpisodeRequest) -> None:
        self._waiting.append(request)
        self._changed.set()

    def end(self) -> None:
        """No more will come: callers that wait for one get StopAsyncIteration."""
        self._is_ended = True
        self._changed.set()

    async def __anext__(self) -> EpisodeRequest:
        while not self._waiting:
            if self._is_ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()
