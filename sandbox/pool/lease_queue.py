"""Who gets which slot of a pool: the waiting line, and the rule that spares page loads. What a slot is, a session in this process or in
another, is not known here.

Loading a page costs as much as several steps, so a slot that comes free goes first to who waits for the page that it has; then to who
waits for a page that no slot has. Others wait for the page that they want to come free, but no longer than MAX_WAIT_S, and not while less
than half of the slots are in use. Nobody is passed over for ever: after MAX_PASSED hand-overs for each slot the first in line is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sandbox.tasks.task_source import SessionKind

MAX_WAIT_S = 1.0
MAX_PASSED = 4

PageKey = tuple[str, str]
"""Source and name of the task whose page it is."""


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """Room for one session. `group`: what it shares a load with, a browser or a process."""

    group: Hashable
    kind: SessionKind | None = None
    """Of the session that it has; None: none yet."""
    page: PageKey | None = None
    """The page that it has loaded, or is about to load."""
    free_since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """What a lease asks for: a kind of session, and for pages which one."""

    kind: SessionKind
    page: PageKey | None = None


SlotT = TypeVar("SlotT", bound=Slot)


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter(Generic[SlotT]):
    request: SlotRequest
    slot: asyncio.Future[SlotT]
    since_s: float = field(default_factory=time.monotonic)


class LeaseQueue(Generic[SlotT]):
    """Slots, who has them, and who waits for them. Belongs to one event loop."""

    def __init__(self, max_at_once: Mapping[SessionKind, int] | None = None) -> None:
        """`max_at_once`: no more sessions of a kind than so many."""
        self._max_at_once = dict(max_at_once or {})
        self._slots: list[SlotT] = []
        self._free: list[SlotT] = []
        self._waiting: list[_Waiter[SlotT]] = []
        self._load: Counter[Hashable] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._num_passed = 0
        """Hand-overs since the first in line was served."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_use(self) -> int:
        return len(self._slots) - len(self._free)

    def shortage(self) -> tuple[int, float]:
        """How many wait for no other reason than that every slot is in use, and how many seconds the first of them has waited."""
        short = [] if self._free else [waiter for waiter in self._waiting if self._is_below_limit(waiter.request)]
        return len(short), time.monotonic() - short[0].since_s if short else 0.0

    def load(self, group: Hashable) -> int:
        """Slots of a group that are in use."""
        return self._load[group]

    def add(self, slots: Sequence[SlotT]) -> None:
        self._slots += slots
        self._free += slots
        self._serve()

    def remove(self, group: Hashable) -> None:
        """The slots of a group are gone; those in use may still be given back."""
        self._slots = [slot for slot in self._slots if slot.group is not group]
        self._free = [slot for slot in self._free if slot.group is not group]
        self._serve()

    async def take(self, request: SlotRequest) -> SlotT:
        """A slot, waiting for one. Raises what `refuse_all` was given."""
        waiter: _Waiter[SlotT] = _Waiter(request=request, slot=asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._serve()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.slot.cancelled() and waiter.slot.exception() is None:
                self.give_back(waiter.slot.result())
            raise

    def give_back(self, slot: SlotT) -> None:
        self._load[slot.group] -= 1
        if not self._load[slot.group]:
            del self._load[slot.group]
        if slot in self._slots:
            slot.free_since_s = time.monotonic()
            self._free.append(slot)
        self._serve()

    def refuse_all(self, error: Exception) -> None:
        """Everyone who waits gets the error."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.slot.done():
                waiter.slot.set_exception(error)

    def _serve(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = [waiter for waiter in self._waiting if not waiter.slot.done()]  # cancelled, but not yet notified
        while self._free and (waiter := self._next_waiter()) is not None:
            self._num_passed = 0 if waiter is self._first() else self._num_passed + 1
            self._hand_over(self._choose(waiter.request), waiter)
        if self._free and (held_back := [waiter for waiter in self._waiting if self._is_below_limit(waiter.request)]):
            due_s = max(0.0, held_back[0].since_s + MAX_WAIT_S - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(due_s + 0.01, self._serve)

    def _next_waiter(self) -> _Waiter[SlotT] | None:
        waiting = [waiter for waiter in self._waiting if self._is_below_limit(waiter.request)]
        if not waiting:
            return None
        if self._num_passed >= MAX_PASSED * len(self._slots):
            return waiting[0]
        loaded = {slot.page for slot in self._free if slot.page is not None}
        everywhere = {slot.page for slot in self._slots}
        is_idle = 2 * self.num_in_use < len(self._slots)
        return (
            next((waiter for waiter in waiting if waiter.request.page in loaded), None)
            or next((waiter for waiter in waiting if waiter.request.page is None or waiter.request.page not in everywhere), None)
            or (waiting[0] if is_idle or time.monotonic() - waiting[0].since_s > MAX_WAIT_S else None)
        )

    def _first(self) -> _Waiter[SlotT] | None:
        return next((waiter for waiter in self._waiting if self._is_below_limit(waiter.request)), None)

    def _is_below_limit(self, request: SlotRequest) -> bool:
        limit = self._max_at_once.get(request.kind)
        if limit is None:
            return True
        num_free = sum(slot.kind == request.kind for slot in self._free)
        return sum(slot.kind == request.kind for slot in self._slots) - num_free < limit

    def _choose(self, request: SlotRequest) -> SlotT:
        """The free slot that has the page, or the kind of session; else the one whose loss costs least, where the load is least."""

        def cost(slot: SlotT) -> tuple[bool, bool, int, float]:
            fits = slot.page == request.page if request.page is not None else slot.kind == request.kind and slot.page is None
            return (not fits, slot.kind is not None and not fits, self._load[slot.group], slot.free_since_s)

        return min(self._free, key=cost)

    def _hand_over(self, slot: SlotT, waiter: _Waiter[SlotT]) -> None:
        self._waiting.remove(waiter)
        self._free.remove(slot)
        slot.kind, slot.page = waiter.request.kind, waiter.request.page
        self._load[slot.group] += 1
        waiter.slot.set_result(slot)
