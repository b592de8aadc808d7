"""What is kept between the turns of conversations: keys and values of the last prompt and answer, found again by longest common prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.engine.kv_cache import Snapshot

SHORTEST_REUSE = 8
"""A shorter common beginning is read again: putting it back would cost as much."""


@dataclass(frozen=True, slots=True)
class _Kept:
    keys: NDArray[np.int64]
    snapshot: Snapshot


class Conversations:
    """Least recently used first out, bounded by bytes. All of it belongs to one set of weights: `clear` when they change."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, conversation: str, keys: Sequence[int]) -> tuple[Snapshot, int] | None:
        """What is kept of a conversation, and how many of `keys` it begins with: never all of them, for the last must be read to be
        answered."""
        kept = self._kept.get(conversation)
        if kept is None:
            return None
        self._kept.move_to_end(conversation)
        most = min(len(keys) - 1, len(kept.keys))
        differs = kept.keys[:most] != np.asarray(keys[:most], dtype=np.int64)
        num_common = int(differs.argmax()) if differs.any() else most
        return (kept.snapshot, num_common) if num_common >= SHORTEST_REUSE else None

    def keep(self, conversation: str, keys: Sequence[int], snapshot: Snapshot) -> None:
        """Replace what was kept of this conversation; one that alone exceeds the bound is not kept."""
        self.drop(conversation)
        if snapshot.num_bytes > self._max_bytes:
            return
        self._kept[conversation] = _Kept(np.asarray(keys, dtype=np.int64), snapshot)
        self.num_bytes += snapshot.num_bytes
        while self.num_bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, conversation: str) -> None:
        kept = self._kept.pop(conversation, None)
        if kept is not None:
            self.num_bytes -= kept.snapshot.num_bytes

    def clear(self) -> None:
        self._kept.clear()
        self.num_bytes = 0
