"""What every composed task comes with beside its instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox.supply import Facts
from sandbox.terminal.tasks import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A candidate of a generator."""

    instance: Instance
    content: Mapping[str, Any]
    difficulty: float
    provenance: Mapping[str, str]

    def facts(self, dropped: Mapping[str, int]) -> Facts:
        return Facts(
            instruction=self.instance.instruction, content=self.content, difficulty=round(self.difficulty, 3), provenance=self.provenance,
            dropped=dropped,
        )  # fmt: skip
