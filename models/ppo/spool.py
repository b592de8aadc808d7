"""Finished episodes of a run on disk, one JSON line each and one file a round, written as they arrive. No screenshots, no learning.

A killed run loses no finished episode: on resume the spool says which requests of the unfinished round are already answered. Ids are fixed
by content, so an episode is counted once however often its round is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from agent.episode import Episode
from warehouse.errors import ModelError


class EpisodeSpool:
    """Append-only files `round-0001.jsonl`, … in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, round_index: int) -> Path:
        return self._folder / f"round-{round_index:04d}.jsonl"

    def append(self, round_index: int, episode: Episode) -> None:
        """Write one episode; it survives the death of this process once this returns."""
        with self._path(round_index).open("ab") as file:
            file.write(episode.model_dump_json().encode() + b"\n")

    def recover(self, round_index: int) -> dict[str, Episode]:
        """Episodes of a round by id. A last line that a kill cut off is removed from the file: that episode was never acknowledged."""
        path = self._path(round_index)
        if not path.exists():
            return {}
        data = path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            with path.open("r+b") as file:
                file.truncate(complete)
        return {episode.episode_id: episode for episode in _parse(path, data[:complete])}

    def episodes(self) -> Iterator[Episode]:
        """Every episode of every round, each id once, in the order they finished; for the warehouse."""
        seen: set[str] = set()
        for path in sorted(self._folder.glob("round-*.jsonl")):
            data = path.read_bytes()
            for episode in _parse(path, data[: data.rfind(b"\n") + 1]):
                if episode.episode_id not in seen:
                    seen.add(episode.episode_id)
                    yield episode


def _parse(path: Path, data: bytes) -> Iterator[Episode]:
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            yield Episode.model_validate_json(line)
        except ValidationError as error:
            raise ModelError(
                f"line {number} of {path} is not an episode ({error.error_count()} errors): delete the run folder to start over"
            ) from error
