"""The KV cache: keys and values of every layer for all rows that are written now, and how a row's part is kept and put back.

Row r's token t lies at place r, slot t, whatever its neighbours do: rows join and leave without moving the others' tokens, and what is
beyond a row's last token is never attended to. Shapes: R places, S slots, H heads, K head size, B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.engine.rows import Row

SLOT_STEP = 64
"""Slots come in such steps, so that rows stay aligned in memory."""
MOST_SPARE_SLOTS = 512
"""A growing KV cache doubles its slots, but never has more than so many to spare: growing copies everything."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keys and values of one row's first tokens, layer by layer: each (H, T, K)."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def num_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (*self.keys, *self.values))


class Target:
    """Where one forward pass writes and what it reads: rows at `places`, their new tokens from slot `starts[b]` on, keys up to slot
    `num_read`. Indices are made once and used by every layer."""

    def __init__(self, kv_cache: KVCache, places: Sequence[int], starts: Sequence[int], num_tokens: int, num_read: int) -> None:
        self._kv_cache, self.places, self.starts, self.num_tokens, self.num_read = kv_cache, places, starts, num_tokens, num_read
        first, count = places[0], len(places)
        self._is_run = list(places) == list(range(first, first + count))
        self.is_fresh = not any(starts)
        self._rows: slice | Tensor = slice(first, first + count) if self._is_run else torch.tensor(places, device=kv_cache.device)
        self._flat: dict[int, Tensor] = {}
        self._slots: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of_pending(cls, kv_cache: KVCache, rows: Sequence[Row], places: Sequence[int]) -> Target:
        """For a pass that reads all pending tokens of these rows, which the KV cache makes room for."""
        num_tokens, starts = max(row.num_pending for row in rows), [row.num_cached for row in rows]
        kv_cache.reserve(max(places) + 1, max(starts) + num_tokens)
        return cls(kv_cache, places, starts, num_tokens, max(len(row.tokens) for row in rows))

    def exchange(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, H, T, K) of a layer; returns all that the pass may read of it, each (B, H, num_read, K)."""
        keys, values = self._kv_cache.layer(layer, key, value)
        for store, new in ((keys, key), (values, value)):
            if self.is_fresh:
                store[self._rows, :, : self.num_tokens] = new
            elif self.num_tokens == 1:
                self._flat_view(store).index_copy_(0, self._flat_index(store), new.reshape(-1, new.shape[-1]))
            else:
                rows, slots = self._slot_index()
                store[rows, :, slots] = new.transpose(1, 2)
        if self.is_fresh and self.num_tokens == self.num_read:
            return key, value
        return keys[self._rows, :, : self.num_read], values[self._rows, :, : self.num_read]

    @staticmethod
    def _flat_view(store: Tensor) -> Tensor:
        return store.view(-1, store.shape[-1])

    def _flat_index(self, store: Tensor) -> Tensor:
        num_heads, num_slots = store.shape[1], store.shape[2]
        if num_heads not in self._flat:
            heads = range(num_heads)
            pairs = zip(self.places, self.starts, strict=True)
            index = [(place * num_heads + head) * num_slots + slot for place, slot in pairs for head in heads]
            self._flat[num_heads] = torch.tensor(index, device=store.device)
        return self._flat[num_heads]

    def _slot_index(self) -> tuple[Tensor, Tensor]:
        if self._slots is None:
            device = self._kv_cache.device
            starts = torch.tensor(self.starts, device=device).unsqueeze(1)
            self._slots = (torch.tensor(self.places, device=device).unsqueeze(1), starts + torch.arange(self.num_tokens, device=device))
        return self._slots


class KVCache:
    """Grows as it must, in places and in slots; layers come into being with their first keys. `bytes_per_slot` is what one token of one
    row takes in all layers."""

    def __init__(self, device: torch.device, bytes_per_slot: int) -> None:
        self.device, self.bytes_per_slot = device, bytes_per_slot
        self.num_places = self.num_slots = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        return self.num_places * self.num_slots * self.bytes_per_slot

    def reserve(self, num_places: int, num_slots: int) -> None:
        """Make room. What is stored stays where it is."""
        if num_places <= self.num_places and num_slots <= self.num_slots:
            return
        places, slots = max(self.num_places, num_places), self.num_slots
        if num_slots > slots:
            more = max(num_slots, min(2 * slots, num_slots + MOST_SPARE_SLOTS))
            slots = -(-more // SLOT_STEP) * SLOT_STEP
        grown = [[self._grown(part, places, slots) for part in parts] for parts in (self._keys, self._values)]
        self._keys, self._values = grown
        self.num_places, self.num_slots = places, slots

    @staticmethod
    def _grown(part: Tensor, places: int, slots: int) -> Tensor:
        wider = part.new_zeros(places, part.shape[1], slots, part.shape[3])
        wider[: part.shape[0], :, : part.shape[2]] = part
        return wider

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.num_places = self.num_slots = 0
        self._keys, self._values = [], []

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The stores (R, H, S, K) of a layer; made in the shape and type of its first keys and values. They hold numbers everywhere: slots
        that nobody may attend to are read too, with weight 0."""
        while len(self._keys) <= index:
            self._keys.append(key.new_zeros(self.num_places, key.shape[1], self.num_slots, key.shape[3]))
            self._values.append(value.new_zeros(self.num_places, value.shape[1], self.num_slots, value.shape[3]))
        return self._keys[index], self._values[index]

    def save(self, place: int, num_tokens: int) -> Snapshot:
        """A copy of the first tokens at a place."""
        return Snapshot(
            [part[place, :, :num_tokens].clone() for part in self._keys], [part[place, :, :num_tokens].clone() for part in self._values]
        )

    def load(self, place: int, snapshot: Snapshot, num_tokens: int) -> None:
        """Put the first tokens of a snapshot at a place. Its layers come into being again where the KV cache was cleared meanwhile."""
        for index, (key, value) in enumerate(zip(snapshot.keys, snapshot.values, strict=True)):
            keys, values = self.layer(index, key.unsqueeze(0), value.unsqueeze(0))
            keys[place, :, :num_tokens] = key[:, :num_tokens]
            values[place, :, :num_tokens] = value[:, :num_tokens]

    def wipe(self, place: int) -> None:
        """Forget what a row that failed has written: NaNs would reach the next row in that place, even with weight 0."""
        for part in (*self._keys, *self._values):
            part[place] = 0

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Write the first tokens at one place over those at another."""
        for part in (*self._keys, *self._values):
            part[target, :, :num_tokens] = part[source, :, :num_tokens]
