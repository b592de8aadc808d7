"""A demonstration as every importer makes it: what was asked, and step by step the screen, the thought, the actions and whether the step
was a good one. Formats are modules of their own, which pyproject.toml registers; rows of it are rows.py's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from agent.grammars.base import Grammar
from sandbox.actions import Action
from sandbox.importing.collection import Collection
from sandbox.importing.fields import BadRecord
from sandbox.session import Element, Observation
from warehouse.core.errors import ConfigError, UnreadablePicture
from warehouse.core.identity import bytes_id
from warehouse.storage.screenshots import pictures


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A screenshot as it will be stored. Raises BadRecord when it is first looked at and is not a picture."""

    data: bytes

    @cached_property
    def screenshot_id(self) -> str:
        return bytes_id("screen", self.data)

    @cached_property
    def _header(self) -> pictures.Header:
        try:
            return pictures.header(self.data)
        except UnreadablePicture as error:
            raise BadRecord(f"a screenshot of it cannot be stored: {error}") from None

    @property
    def size_px(self) -> tuple[int, int]:
        return self._header.width_px, self._header.height_px

    @property
    def row(self) -> dict[str, Any]:
        """Of the table screenshots. Raises BadRecord."""
        found = self._header
        return {
            "screenshot_id": self.screenshot_id,
            "format": found.format,
            "width_px": found.width_px,
            "height_px": found.height_px,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstratedStep:
    """`is_good` False: wrong or superfluous, so context and CT, never SFT. A step without a picture is of a page with known elements."""

    picture: Picture | None
    size_px: tuple[int, int]
    actions: tuple[Action, ...]
    thought: str | None = None
    is_good: bool = True
    elements: tuple[Element, ...] = ()
    output: str = ""
    """What the tools printed that were called before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """`completed` and `domain` are None where a record does not say. `load` reads pictures and code, the costly part; raises BadRecord."""

    task_id: str
    instruction: str
    completed: bool | None
    quality: Mapping[str, Any]
    judged_by: str
    """Whose word `completed` is: an origin of the table verdicts."""
    load: Callable[[], Sequence[DemonstratedStep]]
    lost: Counter[str] = field(default_factory=Counter)
    """What of it no row says, by name; `load` adds what its actions could not say."""
    domain: str | None = None
    verdict: Mapping[str, Any] | None = None
    """Columns of its row of `verdicts`, where somebody else than the record says whether it was completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation that is kept as it is: messages of the catalogue's layout, and the pictures they show."""

    messages: list[dict[str, Any]]
    pictures: Callable[[], Sequence[Picture]]
    sample_id: str | None = None
    origin: str | None = None
    domain: str | None = None
    verdict: bool | None = None


@dataclass(slots=True, kw_only=True)
class Entry:
    """One record of a file. `digest` is of all that it says."""

    where: str
    digest: str
    text: str
    """As it was read, for what has to be kept aside."""
    made: Demonstration | Chat | None = None
    why_not: str = ""
    unknown: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """What of a chat no row says."""
    names: tuple[str, ...] = ()
    """What others call this record: ids that it gives itself."""


def answered_in(grammar: Grammar, answer: str, picture: Picture | None, instruction: str) -> tuple[Picture, str | None, list[Action]]:
    """The screen, and thought and actions of an answer to it that is written in a grammar. Raises BadRecord."""
    if picture is None:
        raise BadRecord("comes before any picture")
    width_px, height_px = picture.size_px
    seen = Observation(instruction=instruction, elements=(), screenshot=picture.data, width_px=width_px, height_px=height_px, time_ms=0.0)
    parsed = grammar.parse(answer, seen)
    if parsed.invalid is not None:
        raise BadRecord(f"does not follow the grammar {grammar.name}: {parsed.invalid.reason}")
    return picture, parsed.thought, list(parsed.actions)


class Pictures:
    """Screenshots by the names that records give them, below folders of ours."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]

    def read(self, *names: str) -> Picture:
        """The first that is there. Raises BadRecord."""
        found = self.find(*names)
        if found is None:
            raise BadRecord(f"its screenshot {names[0]} is not below {', '.join(map(str, self._folders))}: name the folder with --images")
        return found

    def find(self, *names: str) -> Picture | None:
        for path in self.paths(*names):
            with suppress(OSError):  # a file that may not be read
                return Picture(data=path.read_bytes())
        return None

    def paths(self, *names: str) -> Iterator[Path]:
        """Files of these names, folder by folder."""
        for folder in self._folders:
            for name in names:
                with suppress(OSError, ValueError):  # a name that no file can have
                    path = (folder / name).resolve()
                    if path.is_relative_to(folder) and path.is_file():
                        yield path


class EntryReader(Protocol):
    """Entries of one file, in order. `on_bytes` is called with the number of bytes read so far."""

    def __call__(self, path: Path, pictures: Pictures, on_bytes: Callable[[int], None]) -> Iterator[Entry]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """A format of demonstrations. Raises ConfigError for a name that tables cannot carry."""

    name: str
    """What `flywheel import demonstrations` is given, and `Task.source` of what it imports."""
    entries: EntryReader
    answers: Callable[[Grammar], EntryReader] | None = None
    """Reads chats whose answers are written in a grammar as trajectories, for a format of chats."""
    acted_by: str = "unknown"
    """Who acted, where the import does not say, e.g. human."""
    collection: Callable[[Sequence[Path]], Collection | None] = lambda paths: None
    """Which public collection these files are of, as far as their names tell: its licence counts where `--licence` gives none."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", self.name):
            raise ConfigError(f"the importer's name is {self.name!r}: use lower-case letters, digits, _ and -, beginning with a letter")
