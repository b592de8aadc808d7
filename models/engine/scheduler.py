"""Continuous batching: which rows are read, written and let go at each step. No threads, no text; models/engine/embedded.py has those.

A step admits waiting requests as far as there is room, reads their prompts (what a conversation has kept is put back, only the rest is
read), and writes one token of every row. A finished row leaves at once and the last row takes its place.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from models.engine.backend import Backend, groups
from models.engine.conversations import Conversations
from models.engine.kv_cache import Snapshot
from models.engine.rows import Request, Row
from models.engine.sampling import choose
from models.engine.settings import EngineSettings
from warehouse.core.errors import ModelError, RequestRefused

MIB = 2**20


@dataclass(slots=True)
class Counts:
    """What the scheduler has done: for logs, tests and benchmarks."""

    steps: int = 0
    tokens_written: int = 0
    tokens_read: int = 0
    tokens_reused: int = 0
    swaps: int = 0


class Scheduler:
    """The rows of one backend. Every method is called from the same thread."""

    def __init__(self, backend: Backend, settings: EngineSettings, *, policy_id: str, version: int) -> None:
        self.backend, self.settings, self.policy_id, self.version = backend, settings, policy_id, version
        self.conversations = Conversations(settings.conversations_mib * MIB)
        self.counts = Counts()
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._swap: Callable[[], None] | None = None
        """The change of weights that waits for what has begun to end."""
        self._behind: list[Row] = []
        """Rows that came since: they wait for it."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running and not self._behind

    @property
    def max_context(self) -> int:
        return min(self.backend.max_positions, self.settings.max_context or self.backend.max_positions)

    def fits(self, request: Request) -> bool:
        """Whether prompt and longest answer have room in the model's context."""
        return bool(request.prompt) and len(request.prompt) + request.max_new_tokens <= self.max_context

    def add(self, row: Row) -> None:
        (self._waiting if self._swap is None else self._behind).append(row)

    @torch.inference_mode()
    def cancel(self, row: Row) -> None:
        """Let a row go that is waiting or running. What was computed for its conversation stays: whoever has read enough of an answer, up
        to a text that ends it, say, goes on from there."""
        if row in self._running:
            place = self._running.index(row)
            self._keep(place)
            self._leave(place)
        elif row in self._waiting:
            self._waiting.remove(row)
        elif row in self._behind:
            self._behind.remove(row)

    def reset(self) -> None:
        """Forget all rows and all that was computed for them."""
        self._waiting.clear()
        self._running.clear()
        self._behind.clear()
        self.conversations.clear()
        self.backend.kv_cache.clear()

    def swap(self, state: Mapping[str, Tensor], *, policy_id: str, version: int) -> None:
        """Go on with other weights. Raises ModelError, and changes nothing, when they do not fit."""
        try:
            self.backend.load(state)
        except ModelError as error:
            raise ModelError(f"weights of {policy_id} do not fit the engine's model: {error}") from error
        self.policy_id, self.version = policy_id, version
        self.conversations.clear()
        self.counts.swaps += 1
        for row in self._running:
            if self.settings.running_rows == "recompute":
                row.num_cached = 0
            else:
                row.crossed_swap = True

    def swap_after(self, swap: Callable[[], None]) -> None:
        """Have `swap` change the weights at once, or, where answers under way are to finish with those that they began with
        (`running_rows`), when these have ended; `end_swap` sees to that. Of two that wait the later goes behind the earlier."""
        if self._swap is None:
            self._swap = swap
        else:
            first = self._swap

            def both() -> None:
                first()
                swap()

            self._swap = both
        self.end_swap()

    def end_swap(self) -> None:
        """Change the weights, where that waits for nothing any more, and let those in that waited for it."""
        if self._swap is not None and (self.settings.running_rows != "finish" or (not self._running and not self._waiting)):
            swap, self._swap = self._swap, None
            self._waiting.extend(self._behind)
            self._behind.clear()
            swap()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Write a token of every row; the rows that are done, among them those that failed (`Row.error`)."""
        done = self._admit()
        done += self._read_prompts()
        if self._running:
            self._pass(self._running, range(len(self._running)), partial(self.backend.step, self._running))
            done += self._let_go()
        self.counts.steps += 1
        if self.is_idle and self.backend.kv_cache.num_bytes > self.settings.running_mib * MIB // 4:
            self.backend.kv_cache.clear()  # a burst of long prompts must not hold its memory for ever
        return done

    def _admit(self) -> list[Row]:
        """Rows that are read together are placed side by side. Returns rows that do not fit into memory."""
        first = len(self._running)
        kept: dict[Row, Snapshot] = {}
        while self._waiting and len(self._running) < self.settings.max_rows and self._fits(self._waiting[0]):
            row = self._waiting.popleft()
            found = self.conversations.find(row.request.conversation, row.keys) if row.request.conversation is not None else None
            if found is not None:
                kept[row], row.num_cached = found
            self._running.append(row)
        admitted = [self._running[first + index] for group in groups(self._running[first:]) for index in group]
        self._running[first:] = admitted
        failed = self._reserve(admitted)
        for place, row in enumerate(admitted, start=first):
            if row in kept:
                self.backend.kv_cache.load(place, kept[row], row.num_cached)
                self.counts.tokens_reused += row.num_cached
        return failed

    def _reserve(self, admitted: list[Row]) -> list[Row]:
        """Make room for new rows; rows that do not fit into memory, the longest first, are removed again and returned."""
        failed = []
        while admitted:
            try:
                self.backend.kv_cache.reserve(len(self._running), max(row.reach for row in admitted))
            except (RuntimeError, MemoryError) as error:  # torch's OutOfMemoryError is a RuntimeError
                longest = max(admitted, key=lambda row: row.reach)
                longest.error = RequestRefused(f"not enough memory for {longest.reach} tokens: {error}", "max_tokens")
                failed.append(longest)
                admitted.remove(longest)
                self._running.remove(longest)
            else:
                break
        return failed

    def _fits(self, row: Row) -> bool:
        longest = max([row.reach, *(other.reach for other in self._running)])
        num_bytes = (len(self._running) + 1) * longest * self.backend.kv_cache.bytes_per_slot
        return not self._running or num_bytes <= self.settings.running_mib * MIB

    def _read_prompts(self) -> list[Row]:
        """Read what is pending beyond the newest token of a row: prompts, and whole rows after a change of weights."""
        places = [place for place, row in enumerate(self._running) if row.num_pending > 1 or not row.num_cached]
        rows = [self._running[place] for place in places]
        for group in groups(rows):
            members, their_places = [rows[index] for index in group], [places[index] for index in group]
            self.counts.tokens_read += sum(row.num_pending for row in members)
            self._pass(members, their_places, partial(self.backend.read, members, their_places))
        return self._let_go() if places else []

    def _pass(self, rows: Sequence[Row], places: Sequence[int], forward: Callable[[], Tensor]) -> None:
        """Run a forward pass and write a token of each of its rows. Where the pass fails, each row is read by itself, so that only those at
        fault fail."""
        try:
            logits = forward()
        except Exception as error:  # whatever a model or a tensor library raises
            if len(rows) == 1:
                rows[0].error = error
                return
            for row, place in zip(rows, places, strict=True):
                self._pass([row], [place], partial(self.backend.read, [row], [place]))
        else:
            self._write(rows, logits)

    def _write(self, rows: Sequence[Row], logits: Tensor) -> None:
        chosen, logprobs, tops = choose(logits, rows, self.backend.never_token_ids, self._allowed(rows))
        for row, token, logprob, top in zip(rows, chosen, logprobs, tops, strict=True):
            if row.error is not None:
                continue
            row.num_cached = len(row.tokens)
            if not math.isfinite(logprob):
                row.error = ModelError("the model's logits are not finite: its weights have diverged; load an earlier checkpoint")
                continue
            if not row.versions:
                row.policy_id = self.policy_id
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            if row.request.num_top:
                row.tops.append(top)
            if row.constraint is not None:
                row.constraint.take(token)
            row.is_done = token in self.backend.eos_token_ids or len(row.logprobs) >= row.request.max_new_tokens
        self.counts.tokens_written += len(rows)

    @staticmethod
    def _allowed(rows: Sequence[Row]) -> dict[int, Tensor]:
        """What may come next in the rows that are held to a grammar, by their number. One that cannot go on fails."""
        allowed = {}
        for index, row in enumerate(rows):
            if row.constraint is not None:
                try:
                    allowed[index] = row.constraint.allowed()
                except RequestRefused as error:
                    row.error = error
        return allowed

    def _let_go(self) -> list[Row]:
        done = []
        for place in range(len(self._running) - 1, -1, -1):
            row = self._running[place]
            if row.error is not None:
                self.backend.kv_cache.wipe(place)
            elif row.is_done:
                self._keep(place)
            if row.error is not None or row.is_done:
                done.append(row)
                self._leave(place)
        return done

    def _keep(self, place: int) -> None:
        """Keep what was computed for a row that belongs to a conversation, unless other weights computed a part of it."""
        row = self._running[place]
        if row.request.conversation is not None and self.settings.conversations_mib and row.num_cached and not row.crossed_swap:
            snapshot = self.backend.kv_cache.save(place, row.num_cached)
            self.conversations.keep(row.request.conversation, [*row.keys, *row.answer][: row.num_cached], snapshot)

    def _leave(self, place: int) -> None:
        """Take a row out; the last one moves to its place."""
        last = self._running.pop()
        if place < len(self._running):
            self.backend.kv_cache.move(len(self._running), place, last.num_cached)
            self._running[place] = last
