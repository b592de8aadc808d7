"""The one store of a running stage: its finished episodes, and the steps of those that still run, so that a killed worker resumes from
them, and so that they need not all be in memory.

A file is append-only JSON lines; a line that a kill cut off was never acknowledged and is removed. Screenshots are files named by their
content.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.episode.episode import Episode, EpisodeRequest, Fork, Outcome, Step
from warehouse.core.durable import make_folder, sync
from warehouse.core.errors import ModelError
from warehouse.core.home import atomic_write

LineType = TypeVar("LineType", bound=BaseModel)

_LOG = logging.getLogger(__name__)
EPISODES_FILE, REFUSED_FILE = "episodes.jsonl", "refused_forks.jsonl"
BLOCK_BYTES = 1024**2


@dataclass(slots=True)
class ResumeCounts:
    """How episodes that had been cut off went on, in this start. `num_steps`: recorded steps that were replayed and not decided again;
    `num_episodes`: episodes that went on after their last step; `num_restarted`: those whose environment did not repeat, and that started
    again.

    Of forks: how many began at their parent's state, after so many replayed steps together, and how many were refused."""

    num_steps: int = 0
    num_episodes: int = 0
    num_restarted: int = 0
    num_forks: int = 0
    num_fork_steps: int = 0
    num_refused: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """For the result of a stage; nothing where no episode had been cut off or forked."""
        counts = {
            "resumed/episodes": self.num_episodes,
            "resumed/steps": self.num_steps,
            "resumed/restarted": self.num_restarted,
            "forked/episodes": self.num_forks,
            "forked/steps": self.num_fork_steps,
            "forked/refused": self.num_refused,
        }
        return {name: count for name, count in counts.items() if count}


class RefusedFork(BaseModel):
    """Why an episode that is under way is played from its first step on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    episode_id: str
    reason: str


class EpisodeLog:
    """The episodes of one stage or run in one folder: episodes.jsonl, screenshots/, and other files of lines about them; under_way/ has a
    file for each episode that has not ended, its request and then its steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._under_way = folder / "under_way"
        self._screenshots = folder / "screenshots"
        self._lock = threading.Lock()
        self.resumed = ResumeCounts()
        make_folder(folder)

    def append(self, episode: Episode) -> None:
        """Write an episode that has ended; it survives the death of this process, and a power cut, once this returns. May be called from
        several threads."""
        self.keep_screenshots(episode.screenshots)
        self.write_line(EPISODES_FILE, episode)
        self.drop_steps(episode.request)

    def keep_screenshots(self, screenshots: Mapping[str, bytes]) -> None:
        """Write pictures that are not there yet, by their ids; they survive a power cut."""
        for screenshot_id, data in screenshots.items():
            path = self._screenshots / screenshot_id
            if not path.exists():
                atomic_write(path, data)

    def append_step(self, request: EpisodeRequest, step: Step) -> None:
        """Write a step of an episode that goes on; it survives the death of this process. After a power cut steps may be missing, and are
        made again."""
        path = self._steps_of(request)
        if step.step_index == 0 and not (request.fork is not None and path.exists()):
            self._under_way.mkdir(exist_ok=True)
            path.write_bytes(request.model_dump_json().encode() + b"\n")
        with path.open("ab") as file:
            file.write(step.model_dump_json().encode() + b"\n")

    def steps(self, request: EpisodeRequest) -> list[Step]:
        """The steps of an episode that was cut off; none where there is no such episode, or one of another request under the same id, or
        where they cannot be read (a power cut, another version of the program): then they are made again."""
        path = self._steps_of(request)
        if not path.exists():
            return []
        _drop_torn_line(path)
        first, *lines = path.read_bytes().splitlines() or [b""]
        if first != request.model_dump_json().encode():
            return []
        try:
            return [Step.model_validate_json(line) for line in lines]
        except ValidationError:
            _LOG.warning("the steps of %s in %s cannot be read, and are made again", request.episode_id, path)
            return []

    def begin_fork(self, request: EpisodeRequest, steps: Sequence[Step]) -> None:
        """Write what a fork begins with, unless it has begun: its parent's steps up to the one that it leaves at, and that one, whose state
        it must come to. They survive a power cut."""
        path = self._steps_of(request)
        if not path.exists() and self.fork_refused(request) is None:
            self._under_way.mkdir(exist_ok=True)
            atomic_write(path, b"".join(each.model_dump_json().encode() + b"\n" for each in (request, *steps)))

    def refuse_fork(self, request: EpisodeRequest, reason: str) -> None:
        """From here on, also after a kill, the episode is played from its first step on."""
        self.write_line(REFUSED_FILE, RefusedFork(episode_id=request.episode_id, reason=reason))
        self.drop_steps(request)

    def fork_refused(self, request: EpisodeRequest) -> str | None:
        return next((line.reason for line in self.lines(REFUSED_FILE, RefusedFork) if line.episode_id == request.episode_id), None)

    def drop_steps(self, request: EpisodeRequest) -> None:
        self._steps_of(request).unlink(missing_ok=True)

    def _steps_of(self, request: EpisodeRequest) -> Path:
        return self._under_way / f"{request.episode_id}.jsonl"

    def write_line(self, name: str, line: BaseModel) -> None:
        """Append to the file `name`, which ends in .jsonl; the line and the file's name survive a power cut once this returns. May be
        called from several threads. A line that could not be written whole (a full disk) is taken back, so that the next begins a line."""
        self.write_lines(name, [line])

    def write_lines(self, name: str, lines: Iterable[BaseModel]) -> None:
        """As `write_line`, with several at the cost of one; after a failure none is there."""
        path, data = self._folder / name, b"".join(line.model_dump_json().encode() + b"\n" for line in lines)
        with self._lock:
            is_new = not path.exists()
            with path.open("ab", buffering=0) as file:
                size = file.tell()
                try:
                    while data:
                        data = data[file.write(data) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
            if is_new:
                sync(self._folder)

    def lines(self, name: str, kind: type[LineType]) -> Iterator[LineType]:
        """The complete lines of a file, none where there is no file. Raises ModelError for a line that is not a `kind`."""
        return _read_lines(self._folder / name, kind)

    def replace_lines(self, name: str, lines: Iterable[BaseModel]) -> None:
        """These in place of a file's lines. Nothing else may write the log meanwhile."""
        _write_again(self._folder / name, (line.model_dump_json().encode() + b"\n" for line in lines))

    def remove_screenshots(self, screenshot_ids: Iterable[str]) -> None:
        for screenshot_id in screenshot_ids:
            (self._screenshots / screenshot_id).unlink(missing_ok=True)

    def repair(self) -> None:
        """Remove lines that a kill cut off, and steps of episodes that have ended; call this before reading or appending again."""
        for path in self._folder.glob("*.jsonl"):
            _drop_torn_line(path)
        if under_way := {path.stem for path in self._under_way.glob("*.jsonl")}:
            for episode in self.without_screenshots():
                if episode.episode_id in under_way:
                    self.drop_steps(episode.request)

    def drop_crashed(self) -> None:
        """Forget the episodes that the infrastructure ended, so that they are played again. A kill meanwhile loses none of the others."""
        for path in self._files():
            if any(episode.outcome is Outcome.CRASHED for episode in _read_lines(path, Episode)):
                _keep_lines(path, lambda episode: episode.outcome is not Outcome.CRASHED)

    def holds(self, episode_ids: Collection[str]) -> set[str]:
        """Which of these episodes, and of the forks that begin with their steps, it has, finished or under way."""
        there = {episode.episode_id for episode in self.without_screenshots()}
        return (there | {path.stem for path in self._under_way.glob("*.jsonl")}) & self._with_forks(episode_ids)

    def _with_forks(self, episode_ids: Collection[str]) -> set[str]:
        """These episodes, and the log's that begin with steps of theirs."""
        ids, parents = set(episode_ids), {each.episode_id: each.fork.parent_id for each in self.without_screenshots() if each.fork}
        for path in self._under_way.glob("*.jsonl"):
            with path.open("rb") as file:
                fork = _fork_in(file.readline())
            if fork is not None:
                parents[path.stem] = fork.parent_id
        while found := {id_ for id_, parent in parents.items() if parent in ids} - ids:
            ids |= found
        return ids

    def forget(self, episode_ids: Collection[str]) -> None:
        """Take these episodes, and the forks that begin with their steps, out for good, with the screenshots that no other episode names,
        and out of the lines about them; a stage that goes on does not play them again. May be done twice. Nothing else may write the log
        meanwhile."""
        ids = self._with_forks(episode_ids)
        for path in (*self._folder.glob("*.jsonl"), *self._under_way.glob("*.jsonl")):
            _drop_torn_line(path)
        # The marks that they were here (`holds`) go last, so that what a kill cuts off is done again.
        self._keep_screenshots(ids)
        for path in self._folder.glob("*.jsonl"):
            if path not in self._files():
                forget_in_lines(path, ids)
        for path in self._files():
            if path.exists():
                _keep_lines(path, lambda episode: episode.episode_id not in ids)
        for episode_id in ids:
            (self._under_way / f"{episode_id}.jsonl").unlink(missing_ok=True)

    def _keep_screenshots(self, forgotten: set[str]) -> None:
        """Those alone that other episodes name, finished or under way."""
        shown: set[str] = set()
        for path in self._files():
            shown |= {name for each in _read_lines(path, Episode) if each.episode_id not in forgotten for name in _names(each)}
        for path in self._under_way.glob("*.jsonl"):
            if path.stem not in forgotten:
                shown |= {name for line in path.read_bytes().splitlines()[1:] for name in _names_in_step(line)}
        for path in self._screenshots.glob("*"):
            if path.name not in shown:
                path.unlink()

    def episodes(self) -> Iterator[Episode]:
        """Every episode with its screenshots, each id once, in the order they finished; for the warehouse. Raises ModelError for a file
        that is damaged."""
        return (self.with_screenshots(episode) for episode in self.without_screenshots())

    def without_screenshots(self) -> Iterator[Episode]:
        seen: set[str] = set()
        for path in self._files():
            for episode in _read_lines(path, Episode):
                if episode.episode_id not in seen:
                    seen.add(episode.episode_id)
                    yield episode

    def _files(self) -> list[Path]:
        """Where episodes are; an earlier version of the program had a file for each round."""
        return [*sorted(self._folder.glob("round-*.jsonl")), self._folder / EPISODES_FILE]

    def with_screenshots(self, episode: Episode) -> Episode:
        """The episode with the screenshots that its steps and prompts name, as far as it had any."""
        paths = [self._screenshots / name for name in sorted(_names(episode))]
        return episode.model_copy(update={"screenshots": {path.name: path.read_bytes() for path in paths if path.exists()}})

    def remove(self) -> None:
        """Remove the log once the warehouse has the episodes. A kill meanwhile leaves nothing that would be taken for a log."""
        gone = self._folder.with_name(f".{self._folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        self._folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _read_lines(path: Path, kind: type[LineType]) -> Iterator[LineType]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                raise ModelError(
                    f"line {number} of {path} is not a {kind.__name__} ({error.error_count()} errors): delete its folder to start over"
                ) from error


def _keep_lines(path: Path, is_kept: Callable[[Episode], bool]) -> None:
    _write_again(path, (episode.model_dump_json().encode() + b"\n" for episode in _read_lines(path, Episode) if is_kept(episode)))


def forget_in_lines(path: Path, ids: Collection[str]) -> None:
    """Take episodes out of a file of lines about episodes: a line about one of them (notes, what a judge says) goes, a line about several
    (requests that were issued, batches) loses them. A last line that a kill cut off goes too."""
    _drop_torn_line(path)
    lines = []
    for line in path.read_bytes().splitlines():
        said = json.loads(line)
        if said.get("episode_id") in ids:
            continue
        if "episode_ids" in said:
            said["episode_ids"] = [id_ for id_ in said["episode_ids"] if id_ not in ids]
        if "requests" in said:
            said["requests"] = [each for each in said["requests"] if EpisodeRequest.model_validate(each).episode_id not in ids]
        lines.append(json.dumps(said, separators=(",", ":")).encode() + b"\n")
    _write_again(path, lines)


def names_in_lines(path: Path, ids: Collection[str]) -> bool:
    """Whether a file of lines, each about one episode, has lines about some of these, a last one that a kill cut off included."""
    with path.open("rb") as file:
        return any(_episode_of(line) in ids or (not line.endswith(b"\n") and any(id_.encode() in line for id_ in ids)) for line in file)


def _episode_of(line: bytes) -> str | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said.get("episode_id") if isinstance(said, dict) else None


def _write_again(path: Path, lines: Iterable[bytes]) -> None:
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        file.writelines(lines)
    sync(aside)
    aside.replace(path)
    sync(path.parent)


def _fork_in(line: bytes) -> Fork | None:
    """Of a request as it was written; one that cannot be read is made again from its first step."""
    try:
        return EpisodeRequest.model_validate_json(line).fork
    except ValidationError:
        return None


def _names(episode: Episode) -> set[str]:
    """The screenshots that its steps and prompts name."""
    names = {step.screenshot_id for step in episode.steps}
    names |= {message.screenshot_id for step in episode.steps for message in step.messages}
    names |= {message.screenshot_id for message in episode.final_messages}
    return {name for name in names if name is not None}


def _names_in_step(line: bytes) -> set[str]:
    try:
        step = Step.model_validate_json(line)
    except ValidationError:
        return set()
    return {name for name in (step.screenshot_id, *(message.screenshot_id for message in step.messages)) if name is not None}


def _drop_torn_line(path: Path) -> None:
    """Read from the end, block by block: a file may be larger than memory."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = file.seek(max(0, end - BLOCK_BYTES))
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                file.truncate(begin + newline + 1)
                return
            end = begin
        file.truncate(0)
