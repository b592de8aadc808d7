"""What a run asked of its sandboxes and what came of it, on disk as it happens: requests before they start, episodes when they finish,
batches before they are learned from. No weights, no learning.

After a kill this says what to do: batches that the kept weights have not seen are learned from again, finished episodes in no batch wait
for theirs, and requests without an episode are started again, so that long episodes are lost no more often than short ones. Each file
only grows, by whole lines; a line that a kill cut off was never acknowledged and is removed. Screenshots are files named by their content.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.episode import Episode, EpisodeRequest
from warehouse.errors import ModelError
from warehouse.home import atomic_write, sync

ISSUED_FILE, BATCHES_FILE = "issued.jsonl", "batches.jsonl"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Block(_Line):
    """Requests that were admitted together, after `num_learned` batches had been learned from. `passes` is what the curriculum goes on
    from (curriculum.stream_requests)."""

    num_learned: int
    requests: tuple[EpisodeRequest, ...]
    passes: dict[str, float] = {}


class BatchLine(_Line):
    """Which episodes the batch `index` (from 1) is made of."""

    index: int
    episode_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What earlier starts of the run left: admitted blocks in order, batches by index, and the finished episodes, without screenshots,
    that are in no batch up to the one asked for."""

    blocks: list[Block]
    batches: Mapping[int, tuple[str, ...]]
    finished: Mapping[str, Episode]


LineType = TypeVar("LineType", bound=BaseModel)


class EpisodeSpool:
    """The files of one run in one folder: issued.jsonl, batches.jsonl, `round-0001.jsonl`, … (what finished while that batch was waited
    for), screenshots/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsynced: set[Path] = set()
        self._screenshots = folder / "screenshots"
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder.parent, folder.parent.parent):
            sync(parent)

    def issue(self, block: Block) -> None:
        """Write a block of requests; call this before any of them starts."""
        self._append(self._folder / ISSUED_FILE, block)

    def append(self, index: int, episode: Episode) -> None:
        """Write one episode that finished while batch `index` was waited for; it survives the death of this process once this returns."""
        for screenshot_id, data in episode.screenshots.items():
            path = self._screenshots / screenshot_id
            if not path.exists():
                self._screenshots.mkdir(exist_ok=True)
                atomic_write(path, data)
        self._append(self._folder / f"round-{index:04d}.jsonl", episode)

    def take(self, index: int, episode_ids: Sequence[str]) -> None:
        """Write which episodes a batch is made of; call this before they are learned from. All that was written so far survives a power
        cut as well once this returns, and at no moment could one leave a batch without its episodes."""
        self._sync()
        self._append(self._folder / BATCHES_FILE, BatchLine(index=index, episode_ids=tuple(episode_ids)))
        self._sync()

    def recover(self, num_learned: int) -> Recovered:
        """What there is to go on with when the kept weights have learned from `num_learned` batches. Mends files that a kill cut off;
        raises ModelError for ones that are damaged otherwise."""
        for path in self._folder.glob("*.jsonl"):
            _drop_torn_line(path)
        batches = {line.index: line.episode_ids for line in _read(self._folder / BATCHES_FILE, BatchLine)}
        done = {episode_id for index, ids in batches.items() if index <= num_learned for episode_id in ids}
        finished = {episode.episode_id: episode for episode in self._stored() if episode.episode_id not in done}
        return Recovered(blocks=list(_read(self._folder / ISSUED_FILE, Block)), batches=batches, finished=finished)

    def episodes(self) -> Iterator[Episode]:
        """Every episode of the run with its screenshots, each id once, in the order they finished; for the warehouse."""
        return (self.with_screenshots(episode) for episode in self._stored())

    def with_screenshots(self, episode: Episode) -> Episode:
        """The episode with the pictures that its steps and prompts name, as far as it had any."""
        names = {step.screenshot_id for step in episode.steps}
        names |= {message.screenshot_id for step in episode.steps for message in step.messages}
        names |= {message.screenshot_id for message in episode.final_messages}
        paths = [self._screenshots / name for name in sorted(name for name in names if name is not None)]
        return episode.model_copy(update={"screenshots": {path.name: path.read_bytes() for path in paths if path.exists()}})

    def _sync(self) -> None:
        while self._unsynced:
            sync(self._unsynced.pop())
        sync(self._folder)

    def drop_pictures(self) -> None:
        """Once the warehouse has the episodes: remove the folder where it holds screenshots, which are large, and without which nothing
        could be learned from the rest again. Without any it stays."""
        if self._screenshots.is_dir():
            gone = self._folder.with_name(f".{self._folder.name}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            self._folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _append(self, path: Path, line: BaseModel) -> None:
        with path.open("ab") as file:
            file.write(line.model_dump_json().encode() + b"\n")
        self._unsynced.add(path)

    def _stored(self) -> Iterator[Episode]:
        seen: set[str] = set()
        for path in sorted(self._folder.glob("round-*.jsonl")):
            for episode in _read(path, Episode):
                if episode.episode_id not in seen:
                    seen.add(episode.episode_id)
                    yield episode


def _drop_torn_line(path: Path) -> None:
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        with path.open("r+b") as file:
            file.truncate(complete)


def _read(path: Path, kind: type[LineType]) -> Iterator[LineType]:
    if not path.exists():
        return
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            yield kind.model_validate_json(line)
        except ValidationError as error:
            raise ModelError(
                f"line {number} of {path} is no {kind.__name__} ({error.error_count()} errors): delete the run folder to start over"
            ) from error
