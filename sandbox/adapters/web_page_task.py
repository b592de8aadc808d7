"""A task in a page that is not ours, and its instance: what web_page_source.py makes a source of, and web_page_session.py plays."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sandbox.actions import Action
from sandbox.session import Verdict
from warehouse.core.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from sandbox.adapters.page_view import PageView

VERSION = "1"
"""Of how pages are opened and judged."""
Values = Mapping[str, Any]
_PORTS = {"http": 80, "https": 443}
MAX_WIDTH = 1000
"""Characters that a field in an instruction or an address may be filled up to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The argument of `reset`: the instance's facts, and the task's database, if it has one."""

    task: str
    seed: int
    facts: Values
    database: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPageTask:
    """A task in a page.

    `facts` draws an instance, as JSON; `url` and `instruction` are filled with it (`str.format`). `reset` puts the application into the
    state in which an episode begins; where it raises, the infrastructure has failed. `verifier` says whether the page, the requests or the
    database are as they should be: True, False or a Verdict. Where it raises, the task is not solved. `oracle`: the next action, None where
    it has no idea. All of these are plain functions and run in threads. `hosts`: other public hosts that the page may load from.
    `is_shared`: several sessions may play it at once, since it is only read; else they take turns, by the address's host and port.
    """

    name: str
    url: str
    instruction: str
    verifier: Callable[[PageView], bool | Verdict]
    facts: Callable[[random.Random], Values] | None = None
    reset: Callable[[Start], None] | None = None
    oracle: Callable[[PageView], Action | None] | None = None
    database: Path | None = None
    hosts: tuple[str, ...] = ()
    is_shared: bool = False
    size_px: tuple[int, int] = (800, 640)
    real_time: bool = False
    """For a page that needs the wall clock. Nothing is reproducible then."""
    domain: str = "web"
    max_steps: int = 20

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in _PORTS and bool(parts.hostname) and not set(parts.netloc) & set("{}@") and parts.port != 0
        except ValueError:  # a port or an IPv6 address that is none
            is_address = False
        if not is_address:
            raise ConfigError(
                f"{self.url!r} is not the address of a page: write http:// or https:// and a host, as http://localhost:8000/notes, without "
                "a user or password. Fields of `facts` may stand behind the host only."
            )

    @property
    def origin(self) -> str:
        """HOST:PORT."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"


class _Filling(string.Formatter):
    """`str.format`, without the few characters that ask for gigabytes."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if any(int(number) > MAX_WIDTH for number in re.findall(r"\d{1,20}", format_spec)):
            raise ValueError(f"a width of more than {MAX_WIDTH} in {format_spec!r}")
        return str(super().format_field(value, format_spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInstance:
    """A task and the seed's facts. Satisfies Candidate."""

    task: WebPageTask
    content: Values

    @property
    def instruction(self) -> str:
        return self._filled(self.task.instruction, self.content)

    @property
    def url(self) -> str:
        return self._filled(self.task.url, {name: quote(str(value), safe="") for name, value in self.content.items()})

    def _filled(self, text: str, values: Values) -> str:
        """Raises TaskError."""
        if self.task.facts is None:
            return text
        try:
            return _Filling().vformat(text, (), values)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise TaskError(
                f"{text!r} of the task {self.task.name!r} cannot be filled with its facts {dict(values)}: {type(error).__name__}: {error}."
            ) from error
