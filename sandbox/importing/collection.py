"""Collection: what a public collection of tasks or demonstrations says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collection:
    """As its own dataset card has it. `origin`: its name and address, in a line."""

    licence: str
    origin: str
