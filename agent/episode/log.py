"""Episodes on disk as they finish, so that a killed worker resumes from them, and so that they need not all be in memory.

A file is append-only JSON lines; a line that a kill cut off was never acknowledged and is removed. Screenshots are files named by their
content.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agent.episode.episode import Episode, Outcome
from warehouse.core.durable import make_folder, sync
from warehouse.core.errors import ModelError
from warehouse.core.home import atomic_write

LineType = TypeVar("LineType", bound=BaseModel)

BLOCK_BYTES = 1024**2


class EpisodeLog:
    """The episodes of one stage or run in one folder: `round-0001.jsonl`, … and screenshots/, and other files of lines about them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._screenshots = folder / "screenshots"
        make_folder(folder)

    def append(self, index: int, episode: Episode) -> None:
        """Write one episode that finished in round `index`; it survives the death of this process, and a power cut, once this returns."""
        for screenshot_id, data in episode.screenshots.items():
            path = self._screenshots / screenshot_id
            if not path.exists():
                atomic_write(path, data)
        self.write_line(f"round-{index:04d}.jsonl", episode)

    def write_line(self, name: str, line: BaseModel) -> None:
        """Append to the file `name`, which ends in .jsonl; the line and the file's name survive a power cut once this returns."""
        path = self._folder / name
        is_new = not path.exists()
        with path.open("ab") as file:
            file.write(line.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync(self._folder)

    def lines(self, name: str, kind: type[LineType]) -> Iterator[LineType]:
        """The complete lines of a file, none where there is no file. Raises ModelError for a line that is not a `kind`."""
        return _read_lines(self._folder / name, kind)

    def repair(self) -> None:
        """Remove lines that a kill cut off; call this before reading or appending again."""
        for path in self._folder.glob("*.jsonl"):
            _drop_torn_line(path)

    def drop_crashed(self) -> None:
        """Forget the episodes that the infrastructure ended, so that they are played again. A kill meanwhile loses none of the others."""
        for path in self._folder.glob("round-*.jsonl"):
            if any(episode.outcome is Outcome.CRASHED for episode in _read_lines(path, Episode)):
                _drop_lines_of_crashed(path)

    def episodes(self) -> Iterator[Episode]:
        """Every episode with its screenshots, each id once, in the order they finished; for the warehouse. Raises ModelError for a file
        that is damaged."""
        return (self.with_screenshots(episode) for episode in self.without_screenshots())

    def without_screenshots(self) -> Iterator[Episode]:
        seen: set[str] = set()
        for path in sorted(self._folder.glob("round-*.jsonl")):
            for episode in _read_lines(path, Episode):
                if episode.episode_id not in seen:
                    seen.add(episode.episode_id)
                    yield episode

    def with_screenshots(self, episode: Episode) -> Episode:
        """The episode with the screenshots that its steps and prompts name, as far as it had any."""
        names = {step.screenshot_id for step in episode.steps}
        names |= {message.screenshot_id for step in episode.steps for message in step.messages}
        names |= {message.screenshot_id for message in episode.final_messages}
        paths = [self._screenshots / name for name in sorted(name for name in names if name is not None)]
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


def _drop_lines_of_crashed(path: Path) -> None:
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        for episode in _read_lines(path, Episode):
            if episode.outcome is not Outcome.CRASHED:
                file.write(episode.model_dump_json().encode() + b"\n")
    sync(aside)
    aside.replace(path)
    sync(path.parent)


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
