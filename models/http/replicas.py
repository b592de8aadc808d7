"""Several policy servers of one model behind an engine: which of them answers, how all get new weights, what happens where one dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.families.chat import ChatCodec
from models.http.config import Capabilities, HttpEngineConfig
from models.http.dialects import Answer, Ask
from models.http.replica import Replica
from warehouse.core.errors import ConfigError, EngineUnreachable, FlywheelError

if TYPE_CHECKING:
    import torch

MOST_CONVERSATIONS = 100_000
"""Whose server is remembered; the one that was asked longest ago is forgotten first."""
LOST_S = 10.0
"""How long a server that does not answer is left alone before it is tried again."""
ALIKE = {"server", "max_context", "loads", "weights", "prompt_token_ids", "token_ids", "logprobs", "versions"}


@dataclass(frozen=True, slots=True)
class Weights:
    """The servers' weights, as far as their engine knows. `version` is None until the engine has sent some."""

    policy_id: str
    version: int | None = None


class Replicas:
    """Lives in the loop of its engine. A conversation stays on one server, where its keys and values are, for as long as that answers."""

    def __init__(self, config: HttpEngineConfig, own_model: str) -> None:
        self._every = [Replica(each, own_model) for each in config.each()]
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._codec: ChatCodec | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self._source: Path | None = None
        self._weights = Weights("")
        self._returning = set[asyncio.Task[None]]()

    @property
    def gives(self) -> Capabilities:
        return self._every[0].gives

    @property
    def num_retries(self) -> int:
        return sum(replica.client.num_retries for replica in self._every)

    async def open(self, codec: ChatCodec | None) -> str:
        """Ask every server what it gives; the id of the first one's weights. Raises ConfigError where they differ, EngineUnreachable."""
        self._codec = codec
        await asyncio.gather(*(replica.open(codec) for replica in self._every))
        for replica in self._every[1:]:
            if (found := replica.gives.model_dump(include=ALIKE)) != (first := self.gives.model_dump(include=ALIKE)):
                differing = ", ".join(f"{name}: {first[name]} and {found[name]}" for name in first if first[name] != found[name])
                raise ConfigError(
                    f"{self._every[0].config.base_url} and {replica.config.base_url} do not give the same ({differing}): "
                    "replicas are servers of one kind, with one model and the same options"
                )
        self._weights = Weights(self.gives.policy_id)
        return self.gives.policy_id

    def policy_ids(self) -> set[str]:
        """Whose weights the servers had when they were asked what they give."""
        return {replica.gives.policy_id for replica in self._every}

    async def closed_to(self, folder: Path) -> list[str]:
        """Servers that may not load from below a folder, as far as they say."""
        may = await asyncio.gather(*(replica.may_load_from(folder) for replica in self._every))
        return [replica.config.base_url for replica, is_open in zip(self._every, may, strict=True) if not is_open]

    async def none_is_loading(self) -> None:
        """Of several servers none answers with new weights before all have them; one alone changes in the middle of answers."""
        if len(self._every) > 1:
            await self._settled.wait()

    async def ask(self, ask: Ask) -> Answer:
        """Of the server that has the conversation. Where it does not answer another gets the conversation; where none does,
        EngineUnreachable after the settings' retries."""
        tried = set[Replica]()
        while True:
            replica = self._chosen(ask.conversation, tried)
            is_last = len(self._up() - tried) <= 1
            try:
                return await replica.ask(ask, retries=None if is_last else 0)
            except EngineUnreachable:
                if len(self._every) > 1:
                    replica.down_s = time.monotonic()
                if is_last:
                    raise
                tried.add(replica)

    def _up(self) -> set[Replica]:
        """All of them where none answers."""
        return {replica for replica in self._every if replica.down_s is None} or set(self._every)

    def _chosen(self, conversation: str | None, tried: set[Replica]) -> Replica:
        self._try_lost_again()
        allowed = (self._up() - tried) or self._up()
        home = self._homes.get(conversation) if conversation is not None else None
        if home is None or home not in allowed:
            held = Counter(self._homes.values())
            home = min((each for each in self._every if each in allowed), key=lambda each: (each.num_running, held[each]))
        if conversation is not None:
            self._homes[conversation] = home
            self._homes.move_to_end(conversation)
            if len(self._homes) > MOST_CONVERSATIONS:
                self._homes.popitem(last=False)
        return home

    def _try_lost_again(self) -> None:
        for replica in self._every:
            if replica.down_s is not None and time.monotonic() > replica.down_s + LOST_S:
                replica.down_s = time.monotonic()
                task = asyncio.ensure_future(self._return(replica))
                self._returning.add(task)
                task.add_done_callback(self._returning.discard)

    async def _return(self, replica: Replica) -> None:
        """Let a lost server answer again if it has the weights, or loads them; else it is tried again later."""
        try:
            await replica.open(self._codec)
            if replica.gives.policy_id != self._weights.policy_id:
                if self._source is None or not self._source.is_dir():
                    return
                await replica.load(self._source, self._weights.policy_id, self._weights.version or 0)
        except FlywheelError:
            return
        if self._settled.is_set():
            replica.down_s = None

    async def load(self, source: Path | Mapping[str, torch.Tensor], weights: Weights, loaded: Callable[[], None]) -> None:
        """Hand weights to every server, also those that did not answer; `loaded` is called when all that live have them. Raises what the
        first said where none took them, and ModelError where a living one refused."""
        self._settled.clear()
        try:
            each = (replica.load(source, weights.policy_id, weights.version or 0) for replica in self._every)
            done = await asyncio.gather(*each, return_exceptions=True)
            failed = [(replica, error) for replica, error in zip(self._every, done, strict=True) if error is not None]
            for replica, error in failed:
                if len(failed) == len(done) or not isinstance(error, EngineUnreachable):
                    raise error
                replica.down_s = time.monotonic()
            for replica in set(self._every) - {replica for replica, _ in failed}:
                replica.down_s = None
            self._source, self._weights = source if isinstance(source, Path) else None, weights
            loaded()
        finally:
            self._settled.set()

    async def have_lost_them(self) -> bool:
        """Whether a server has other weights than it was handed: it was started again, or another client loaded them. One that does not
        answer is left for later."""
        for replica in self._every:
            with suppress(EngineUnreachable):
                await replica.open(self._codec)
        return self.policy_ids() != {self._weights.policy_id}

    async def close(self) -> None:
        for task in list(self._returning):
            task.cancel()
        await asyncio.gather(*self._returning, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._every))
