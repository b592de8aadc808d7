"""What every door is to fuzz_doors.py: cases by number, block by block."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

SLOWEST_S = 60.0
"""A case that takes longer has hung."""


async def nothing() -> None:
    """Before a case nothing has to be done, after a block nothing be looked at."""


@dataclass(frozen=True, slots=True)
class Player:
    """`play` carries out a case and says what came of it: `answered`, `refused`, or another word. It raises AssertionError for what must
    not be. `after` is called after each block, and raises where the door no longer does what it does for everybody. `num_at_once`: cases
    that may go on side by side, as they only wait for time-outs of their own."""

    play: Callable[[int], Awaitable[str]]
    after: Callable[[], Awaitable[None]] = nothing
    num_at_once: int = 1


class Tracebacks(logging.Handler):
    """Errors that are logged with where they came from; none of ours is meant."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not record.name.startswith("mcp"):  # its client logs what a server says wrong, and raises nothing
            self.found.append(logging.Formatter().format(record)[-3000:])

    def check(self, said: str) -> None:
        """Raises AssertionError where there were some since the last look."""
        found, self.found = self.found, []
        if found:
            raise AssertionError(f"{said}, and this was logged: {found[0]}")
