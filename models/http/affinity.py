"""Which of several servers is asked: a conversation stays with one, where its keys and values are; a new one goes where least is under
way."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

MOST_CONVERSATIONS = 100_000
"""Whose server is remembered; the one that was asked longest ago is forgotten first."""
LOST_S = 10.0
"""How long a server that does not answer is left alone before it is retried."""


class Asked(Protocol):
    @property
    def num_running(self) -> int:
        """Answers under way."""
        ...


S = TypeVar("S", bound=Asked)


class Affinity(Generic[S]):
    """Servers by conversation. Lives in one event loop."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, S] = OrderedDict()

    def choose(self, conversation: str | None, allowed: Sequence[S]) -> S:
        """The conversation's server where it is allowed; else another, with which it stays from now on."""
        home = self._homes.get(conversation) if conversation is not None else None
        if home is None or home not in allowed:
            held = Counter(map(id, self._homes.values()))
            home = min(allowed, key=lambda each: (each.num_running, held[id(each)]))
        if conversation is not None:
            self._homes[conversation] = home
            self._homes.move_to_end(conversation)
            if len(self._homes) > MOST_CONVERSATIONS:
                self._homes.popitem(last=False)
        return home
