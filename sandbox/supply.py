"""What a generator of tasks says of an instance before anything runs: the seam between sources that generate their tasks and whoever
counts, compares, lists or chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warehouse.identity import content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One generated instance. The same task and seed give the same facts on every machine."""

    instruction: str
    content: Any
    """JSON-able: all that makes the instance what it is, and nothing else. Two instances of equal content are duplicates."""
    difficulty: float
    """0 easy to 1 hard, on the source's own scale."""
    provenance: Mapping[str, str]
    """What it was made from: corpus, pages, functions, levels."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Candidates that were refused before this one, by reason."""

    @property
    def content_id(self) -> str:
        return content_id("instance", self.content)
