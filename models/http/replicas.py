"""Several policy servers of one model behind an engine: which of them answers, how all get new weights, what happens where one dies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.families.chat import ChatCodec
from models.http.affinity import LOST_S, Affinity
from models.http.config import Capabilities, HttpEngineConfig
from models.http.dialects import Answer, Ask
from models.http.probe import Probed
from models.http.replica import Replica
from warehouse.core.errors import ConfigError, EngineUnreachable, FlywheelError, ModelError

if TYPE_CHECKING:
    import torch

FOLLOWS = {"logprobs_follow_temperature", "logprobs_follow_top_p"}
ALIKE = set(Capabilities.model_fields) - {"model", "policy_id"}
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Weights:
    """The servers' weights, as far as their engine knows. `version` is None until the engine has sent some."""

    policy_id: str
    version: int | None = None
    is_named: bool = False
    """Whether the servers were handed them, so that one with those of its start was restarted."""


class Replicas:
    """Lives in the loop of its engine. A conversation stays on one server, where its keys and values are, for as long as that answers."""

    def __init__(self, config: HttpEngineConfig, own_model: str, token: str | None = None) -> None:
        self._every = [Replica(each, own_model, token) for each in config.each()]
        self._affinity = Affinity[Replica]()
        self._codec: ChatCodec | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self._first: Probed | None = None
        self._source: Path | None = None
        self._weights = Weights("")
        self._returning = dict[Replica, asyncio.Task[None]]()

    @property
    def gives(self) -> Capabilities:
        return self._every[0].gives if self._first is None else self._first.gives

    @property
    def num_retries(self) -> int:
        return sum(replica.client.num_retries for replica in self._every)

    async def open(self, codec: ChatCodec | None) -> Weights:
        """Ask every server what it gives; the first one's weights. Raises ConfigError where they differ, EngineUnreachable."""
        self._codec = codec
        await asyncio.gather(*(replica.open(codec) for replica in self._every))
        self._first = self._every[0].found
        for replica in self._every[1:]:
            self._check_alike(replica)
        self._weights = Weights(self.gives.policy_id, is_named=self._first.has_named_weights)
        return self._weights

    def _check_alike(self, replica: Replica) -> None:
        are_seen = self._first is None or (self._first.has_seen_sampling and replica.found.has_seen_sampling)
        first, found = (gives.model_dump(include=ALIKE if are_seen else ALIKE - FOLLOWS) for gives in (self.gives, replica.gives))
        if differing := ", ".join(f"{name}: {first[name]} and {found[name]}" for name in first if first[name] != found[name]):
            raise ConfigError(
                f"{self._every[0].config.base_url} and {replica.config.base_url} do not give the same ({differing}): "
                "replicas are servers of one kind, with one model and the same options"
            )

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

    async def ask(self, ask: Ask, wanted: Collection[str] = ()) -> Answer:
        """Of the server that has the conversation; one that is busy is retried. Where it does not answer another gets the conversation;
        where none does, EngineUnreachable after the settings' retries. The same where it was restarted, without our weights: it has
        none of those `wanted`, where any are."""
        tried = set[Replica]()
        while True:
            replica, weights = self._chosen(ask.conversation, tried), self._weights
            is_last = len(self._up() - tried) <= 1
            try:
                if replica.down_s is not None:
                    await asyncio.shield(self._bring_back(replica))
                    if replica.down_s is not None:
                        raise EngineUnreachable(replica.why_down)
                answer = await replica.ask(ask, waits_for_lost=is_last, has_named_weights=weights.is_named)
                is_other = replica.has_lost_connections and bool(wanted) and answer.policy_id not in {None, *wanted}
                if is_other or (answer.is_unnamed and weights.is_named):
                    raise EngineUnreachable(
                        f"{replica.config.base_url} answered with {answer.policy_id or 'the weights that it started with'}, not with "
                        f"{weights.policy_id}: it was restarted since. What it writes is not used; run the stage again, which hands it "
                        "its weights"
                    )
                return answer
            except EngineUnreachable as error:
                if len(self._every) > 1:
                    self._lose(replica, str(error))
                if is_last:
                    raise
                tried.add(replica)

    def _lose(self, replica: Replica, why: str) -> None:
        """Ask it nothing until it is back; logged once for each reason."""
        if replica.why_down != why:
            _LOG.warning("policy server %s is done without: %s", replica.config.base_url, why)
        replica.down_s, replica.why_down = time.monotonic(), why

    def _regain(self, replica: Replica) -> None:
        if replica.down_s is not None:
            _LOG.warning("policy server %s answers again", replica.config.base_url)
        replica.down_s, replica.why_down = None, ""

    def _up(self) -> set[Replica]:
        """All of them where none answers."""
        return {replica for replica in self._every if replica.down_s is None} or set(self._every)

    def _chosen(self, conversation: str | None, tried: set[Replica]) -> Replica:
        self._try_lost_again()
        allowed = (self._up() - tried) or self._up()
        return self._affinity.choose(conversation, [replica for replica in self._every if replica in allowed])

    def _try_lost_again(self) -> None:
        for replica in self._every:
            if replica.down_s is not None and time.monotonic() > replica.down_s + LOST_S:
                self._bring_back(replica)

    def _bring_back(self, replica: Replica) -> asyncio.Task[None]:
        if replica not in self._returning:
            self._returning[replica] = asyncio.ensure_future(self._return(replica))
            self._returning[replica].add_done_callback(lambda _: self._returning.pop(replica))
        return self._returning[replica]

    async def _return(self, replica: Replica) -> None:
        """Let a lost server answer again if it gives the same as before and has the weights, or loads them; else it is retried later.
        Not while weights are handed over, which it gets with the others."""
        try:
            async with replica.loading_lock:
                await replica.release(retries=0)
            await self._settled.wait()
            await replica.open(self._codec)
            self._check_alike(replica)
            async with replica.loading_lock:
                weights, source = self._weights, self._source
                if self._settled.is_set() and replica.gives.policy_id != weights.policy_id:
                    if source is None or not source.is_dir():
                        raise ModelError(f"{replica.config.base_url} does not have {weights.policy_id}; it gets the next weights again")
                    await replica.load(source, weights.policy_id, weights.version or 0)
            if self._settled.is_set() and self._weights is weights:
                self._regain(replica)
        except FlywheelError as error:
            self._lose(replica, str(error))

    async def load(self, source: Path | Mapping[str, torch.Tensor], weights: Weights, loaded: Callable[[], None]) -> None:
        """Hand weights to every server, also those that did not answer, which answer again when they are found to give the same as before;
        `loaded` is called when all that live have them. Raises what the first said where none took them, and ModelError where a living
        one refused."""
        self._settled.clear()
        try:
            done = await asyncio.gather(*(self._load_one(replica, source, weights) for replica in self._every), return_exceptions=True)
            failed = [(replica, error) for replica, error in zip(self._every, done, strict=True) if error is not None]
            for replica, error in failed:
                if len(failed) == len(done) or (replica.down_s is None and not isinstance(error, EngineUnreachable)):
                    raise error
                self._lose(replica, str(error))
            self._source, self._weights = source if isinstance(source, Path) else None, weights
            loaded()
        finally:
            self._settled.set()

    async def _load_one(self, replica: Replica, source: Path | Mapping[str, torch.Tensor], weights: Weights) -> None:
        """One that is known not to answer is not waited for."""
        if replica.down_s is not None:
            await replica.check_alive()
        async with replica.loading_lock:
            await replica.load(source, weights.policy_id, weights.version or 0)

    async def have_lost_them(self) -> bool:
        """Whether a server has other weights than it was handed: it was restarted, or another client loaded them. One that does not
        answer is left for later."""
        for replica in self._every:
            with suppress(EngineUnreachable):
                await replica.open(self._codec)
        return self.policy_ids() != {self._weights.policy_id}

    async def close(self) -> None:
        returning = list(self._returning.values())
        for task in returning:
            task.cancel()
        await asyncio.gather(*returning, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._every))
