"""AndroidInstance: how one task instance lives on a device: what to set up, what to check, what its oracle would do. Task sources
make them, sessions (session.py) run them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandbox.actions import Action
from sandbox.session import Observation

_ROW = re.compile(r"^Row: \d+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A command whose output shows the device's state. It holds where `expected` is all of the output, white space at the ends
    aside; for `is_part`, a part of it; for `is_rows`, the rows of a `content query`, all of them and in any order."""

    command: str
    expected: str
    is_part: bool = False
    is_rows: bool = False
    is_negated: bool = False

    def holds(self, output: str) -> bool:
        if self.is_rows:
            is_so = sorted(_ROW.sub("", line) for line in output.splitlines() if line) == sorted(self.expected.splitlines())
        else:
            is_so = self.expected in output if self.is_part else self.expected.strip() == output.strip()
        return is_so is not self.is_negated


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidStepContext:
    """What an oracle may look at: the last observation, and whether every check holds by now."""

    observation: Observation
    is_solved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidInstance:
    """One instance. `packages` are the apps whose data is cleared before it: all that the source's tasks use. `setup` runs after that.
    `answer` is what a task that asks for one wants in `finished`."""

    instruction: str
    packages: tuple[str, ...]
    setup: tuple[str, ...]
    checks: tuple[Check, ...]
    answer: str | None
    oracle_action: Callable[[AndroidStepContext], Action | None]


def says_the_same(answer: str, expected: str) -> bool:
    """Whether two answers agree: letters and digits count, case, spaces and punctuation do not."""
    return _bare(answer) == _bare(expected)


def _bare(text: str) -> Sequence[str]:
    return [character for character in text.casefold() if character.isalnum()]
