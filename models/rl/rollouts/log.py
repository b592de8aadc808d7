"""The rollout log of a run, on disk as it happens: requests and forks before they start, episodes when they finish, batches before they are
learned from. No weights, no learning.

A killed run resumes from it: batches that the saved weights have not seen are learned from again, finished episodes in no batch wait for
theirs, and requests without an episode go on at their last step, so that long episodes are lost no more often than short ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog

ISSUED_FILE, FORKED_FILE = "issued.jsonl", "forked.jsonl"
BATCHES_FILE, LEARNED_FILE = "batches.jsonl", "learned.jsonl"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Block(_Line):
    """Requests that were admitted together, after `num_learned` batches had been learned from. `passes` is what the curriculum goes on
    from (curriculum.stream_requests)."""

    num_learned: int
    requests: tuple[EpisodeRequest, ...]
    passes: dict[str, float] = {}


class Forks(_Line):
    """The forks of one episode, all of them."""

    parent_id: str
    requests: tuple[EpisodeRequest, ...]


class BatchLine(_Line):
    """Which episodes the batch `index` (from 1) is made of."""

    index: int
    episode_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What earlier starts of the run left: admitted blocks in order, forks by their parent's id, batches by index, and the finished
    episodes, without screenshots, that are in no batch up to the one asked for."""

    blocks: list[Block]
    forks: Mapping[str, tuple[EpisodeRequest, ...]]
    batches: Mapping[int, tuple[str, ...]]
    finished: Mapping[str, Episode]


class RolloutLog(EpisodeLog):
    """The episode log of one run, with issued.jsonl, forked.jsonl, batches.jsonl and learned.jsonl."""

    def issue(self, block: Block) -> None:
        """Write a block of requests; call this before any of them starts."""
        self.write_line(ISSUED_FILE, block)

    def forked(self, forks: Forks) -> None:
        """Write the forks of an episode; call this before any of them begins."""
        self.write_line(FORKED_FILE, forks)

    def take(self, index: int, episode_ids: Sequence[str]) -> None:
        """Write which episodes a batch is made of; call this before they are learned from. Its episodes were written before, so a
        power cut can never leave a batch without them."""
        self.write_line(BATCHES_FILE, BatchLine(index=index, episode_ids=tuple(episode_ids)))

    def learned(self, index: int, episode_ids: Sequence[str]) -> None:
        """Write which episodes of a batch were learned from: of one that is learned from again the last line counts."""
        self.write_line(LEARNED_FILE, BatchLine(index=index, episode_ids=tuple(episode_ids)))

    def learned_from(self, num_batches: int) -> tuple[str, ...]:
        """The episodes that the first batches taught, in their order. Of a batch that an earlier version learned from all of it."""
        taught = {line.index: line.episode_ids for name in (BATCHES_FILE, LEARNED_FILE) for line in self.lines(name, BatchLine)}
        return tuple(episode_id for index, ids in sorted(taught.items()) if index <= num_batches for episode_id in ids)

    def recover(self, num_learned: int) -> Recovered:
        """What the run resumes with when the saved weights have learned from `num_learned` batches. Repairs files that a kill cut off;
        raises ModelError for ones that are damaged otherwise."""
        self.repair()
        batches = {line.index: line.episode_ids for line in self.lines(BATCHES_FILE, BatchLine)}
        done = {episode_id for index, ids in batches.items() if index <= num_learned for episode_id in ids}
        finished = {episode.episode_id: episode for episode in self.without_screenshots() if episode.episode_id not in done}
        forks = {line.parent_id: line.requests for line in self.lines(FORKED_FILE, Forks)}
        return Recovered(blocks=list(self.lines(ISSUED_FILE, Block)), forks=forks, batches=batches, finished=finished)

    def drop_screenshots(self) -> None:
        """Once the warehouse has the episodes: remove the folder if it holds screenshots, which are large; the rest is of no use without
        them. A folder without screenshots stays."""
        shutil.rmtree(self._under_way, ignore_errors=True)
        if self._screenshots.is_dir():
            self.remove()
