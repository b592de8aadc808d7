"""One call from request to record: where it belongs, who answers it, what is written down before the client gets the answer's end."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol

from agent.gateway.grouping import Group, Grouping
from agent.gateway.log import GatewayLog
from agent.gateway.records import Call, Outcome, Place, Route, digests
from models.gateway.gathering import Choice, Gathering
from models.gateway.reading import Read, read, texts_in, texts_of
from models.gateway.settings import GatewaySettings
from models.gateway.upstreams import Upstreams
from models.server.problems import ApiError, busy, closing, wrong
from models.server.wire import ChatRequest
from warehouse.core.errors import RequestRefused
from warehouse.core.identity import stable_fraction
from warehouse.quality.personal_data import kinds_in

SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "stop", "response_format", "tool_choice")
"""Fields of a request that say how its answer was sampled, as far as they were given."""
TIMES = "a card number"
"""What times and counters in a name may look like: one in ten of their length has a card's check digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: the project whose token it is, and what the client calls the episode and its task."""

    project: str
    name: str | None = None
    task: str | None = None


class Owner(Protocol):
    """The owner of a gateway's episodes: names them, ends them, and says which calls are answered."""

    async def admit(self, caller: Caller) -> None:
        """Before a call begins. Raises ApiError for one that is not answered."""
        ...

    def left(self, caller: Caller, *, is_answered: bool, failure: ApiError | None) -> None:
        """An admitted call is over. `failure`: what the upstream raised."""
        ...


@dataclass(slots=True, kw_only=True)
class UnderWay:
    """A call that is being answered."""

    caller: Caller
    route: Route
    asked: ChatRequest
    read: Read
    place: Place
    found: Sequence[str]
    upstream: Upstreams
    is_candidate: bool
    body: dict[str, Any]
    began_s: float = field(default_factory=time.monotonic)
    began_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    first_token_ms: float | None = None
    failure: ApiError | None = None
    is_left: bool = False
    is_being_written: bool = False

    @property
    def episode(self) -> str:
        return self.place.episode


class Recorder:
    """All that passes through one gateway. Lives in one event loop."""

    def __init__(
        self, log: GatewayLog, live: Upstreams, candidate: Upstreams | None, settings: GatewaySettings, owner: Owner | None = None
    ) -> None:
        """Without an `owner`, callers say themselves what their episodes are."""
        self._log, self._live, self._candidate, self.settings, self._owner = log, live, candidate, settings, owner
        self.grouping: Grouping = log.grouping()
        self.running: Counter[str] = Counter()
        self.is_closing = False
        self._writing: set[asyncio.Task[None]] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Outcomes that are being written, by episode."""

    @property
    def live(self) -> Upstreams:
        return self._live

    @property
    def has_owner(self) -> bool:
        return self._owner is not None

    async def begin(self, caller: Caller, route: Route, asked: ChatRequest) -> UnderWay:
        """Raises ApiError for what is not taken. The caller ends by `record` or `leave`."""
        if self.is_closing:
            raise closing()
        if self._owner is None:
            return await self._counted(caller, route, asked)
        await self._owner.admit(caller)
        try:
            return await self._counted(caller, route, asked)
        except BaseException:
            self._owner.left(caller, is_answered=False, failure=None)
            raise

    async def _counted(self, caller: Caller, route: Route, asked: ChatRequest) -> UnderWay:
        self.refuse_personal_data("names of episodes and tasks", [caller.name or "", caller.task or ""], but=TIMES)
        if (num_running := self.running[caller.project]) >= self.settings.max_running:
            raise busy(f"{num_running} calls of the project are under way", "--max-running")
        self.running[caller.project] += 1
        try:
            return await self._begin(caller, route, asked)
        except BaseException:
            self.running[caller.project] -= 1
            raise

    async def _begin(self, caller: Caller, route: Route, asked: ChatRequest) -> UnderWay:
        read_, conversation = await asyncio.to_thread(self._read, asked)
        if self.is_closing:
            raise closing()
        try:
            place = self.grouping.begin(caller.project, caller.name, read_.agent, conversation)
        except RequestRefused as error:
            raise wrong(str(error), status=409, code="episode_has_ended") from error
        is_candidate = self._is_candidate(self.grouping.group(place.episode))
        upstream = self._candidate if is_candidate and self._candidate is not None else self._live
        body = upstream.body(asked, f"{place.episode}.{place.line}")
        return UnderWay(
            caller=caller,
            route=route,
            asked=asked,
            read=read_,
            place=place,
            found=conversation,
            upstream=upstream,
            is_candidate=is_candidate,
            body=body,
        )

    def _read(self, asked: ChatRequest) -> tuple[Read, list[str]]:
        found = read(asked, self.settings.max_image_pixels)
        return found, digests(found.messages)

    def _is_candidate(self, group: Group) -> bool:
        """An episode stays with whom its first call went to, also after a restart with another share."""
        if self._candidate is None:
            return False
        if group.is_candidate is None:
            group.is_candidate = stable_fraction("canary", group.episode) < self.settings.candidate_share
        return group.is_candidate

    async def whole(self, call: UnderWay) -> dict[str, Any]:
        """The upstream's answer, recorded."""
        try:
            data = await call.upstream.whole(call.body, call.episode)
            gathered = Gathering(call.asked.n)
            gathered.add(data)
            await self.record(call, gathered)
        except ApiError as error:
            call.failure = error
            raise
        finally:
            self.leave(call)
        return data

    async def chunks(self, call: UnderWay, gathered: Gathering) -> AsyncGenerator[dict[str, Any], None]:
        """The upstream's chunks; what ends the answer is held back until the record is durable."""
        held: list[dict[str, Any]] = []
        source = call.upstream.chunks(call.body, call.episode)
        try:
            async for chunk in source:
                gathered.add(chunk)
                if call.first_token_ms is None and gathered.first.token_ids:
                    call.first_token_ms = _ms_since(call.began_s)
                if gathered.is_ended:
                    held.append(chunk)
                else:
                    yield chunk
            await self.record(call, gathered)
            for chunk in held:
                yield chunk
        except ApiError as error:
            call.failure = error
            raise
        finally:
            await source.aclose()
            self.leave(call)

    async def record(self, call: UnderWay, gathered: Gathering) -> None:
        """Write the call down. A client that goes away meanwhile changes nothing: the call is under way until it is written."""
        call.is_being_written = True
        task = asyncio.create_task(self._record(call, gathered))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until everything that is being written, also for clients that are gone, has been."""
        await asyncio.gather(*self._writing, *self._ending.values(), return_exceptions=True)

    async def _record(self, call: UnderWay, gathered: Gathering) -> None:
        try:
            calls = await self._write(call, gathered)
            self._leave(call, is_answered=True)
            self.grouping.end(call.place, calls)
        finally:
            call.is_being_written = False
            self.leave(call)

    async def _write(self, call: UnderWay, gathered: Gathering) -> Sequence[Call]:
        latency_ms = _ms_since(call.began_s)
        num_before = self.grouping.num_before(call.place)
        calls = []
        for number, choice in sorted(gathered.choices.items()):
            place = self.grouping.beside(call.place, call.read.agent) if number else call.place
            calls.append(self._call(call, place, gathered, choice, num_before, latency_ms))
        pictures = call.read.pictures
        if not self.settings.keep_personal_data and (kinds := await self._personal_data(calls)):
            calls, pictures = [one.without_content(kinds) for one in calls], {}
        await self._log.append(calls, pictures)
        return calls

    def _call(self, call: UnderWay, place: Place, gathered: Gathering, choice: Choice, num_before: int, latency_ms: float) -> Call:
        answer = choice.said()
        own = call.found[num_before:]
        sampling = call.asked.model_dump(mode="json", include=set(SAMPLING), exclude_unset=True, exclude_none=True, by_alias=True)
        has_logprobs = len(choice.logprobs) == len(choice.token_ids) and all(map(math.isfinite, choice.logprobs))
        return Call(
            call_id=secrets.token_hex(8),
            place=place,
            project=call.caller.project,
            name=self.grouping.group(place.episode).name,
            task=call.caller.task,
            agent=call.read.agent,
            route=call.route,
            messages=call.read.messages[num_before:],
            num_before=num_before,
            tools=tuple(tool.model_dump(mode="json", exclude_none=True) for tool in call.asked.tools),
            sampling=sampling,
            answer=answer,
            finish=choice.finish,
            policy_id=choice.policy_id or call.upstream.policy_id,
            is_candidate=call.is_candidate,
            prompt_token_ids=tuple(gathered.prompt_token_ids),
            response_token_ids=tuple(choice.token_ids),
            response_logprobs=tuple(choice.logprobs) if has_logprobs else (),
            response_versions=tuple(choice.versions),
            began_at=call.began_at,
            first_token_ms=call.first_token_ms,
            latency_ms=latency_ms,
            digests=(*own, answer.digest(call.found[-1])),
        )

    async def _personal_data(self, calls: Sequence[Call]) -> tuple[str, ...]:
        """Kinds that were found in what these calls add, or in an earlier call of their episode, whose text they repeat."""
        if not calls:
            return ()
        group = self.grouping.group(calls[0].place.episode)
        if not group.withheld:
            found = await asyncio.to_thread(_kinds_in, calls)
            group.withheld = group.withheld or found
        return group.withheld

    def refuse_personal_data(self, what: str, texts: Sequence[str], *, but: str = "") -> None:
        """Raises ApiError where personal data is found in what is stored as it is, of any kind `but` this."""
        if not self.settings.keep_personal_data and (kinds := [kind for kind in kinds_in("\n".join(texts)) if kind != but]):
            message = f"{' and '.join(kinds)} in {what}, which are stored: leave it out, or start the gateway with --keep-personal-data"
            raise wrong(message, code="personal_data")

    def leave(self, call: UnderWay) -> None:
        """The call is over; one that was not recorded counts as never made. One that is being written ends when it is."""
        if not call.is_left and not call.is_being_written:
            self._leave(call, is_answered=False)
            self.grouping.give_up(call.place)

    def _leave(self, call: UnderWay, *, is_answered: bool) -> None:
        call.is_left = True
        self.running[call.caller.project] -= 1
        if self._owner is not None:
            self._owner.left(call.caller, is_answered=is_answered, failure=call.failure)

    async def close_episode(self, group: Group, outcome: Outcome) -> Outcome:
        """Give an episode its outcome; the same one may come again, and returns when it is durable. Raises ApiError."""
        self.refuse_personal_data("`by` and `reasons`", [outcome.by, *outcome.reasons])
        while (ending := self._ending.get(group.episode)) is not None:
            await asyncio.wait([ending])
        if group.outcome is None:
            if group.num_running:
                raise wrong(f"{group.num_running} calls of the episode are under way: wait for them", status=409, code="under_way")
            group.outcome = outcome  # from here on nothing begins
            ending = self._ending[group.episode] = asyncio.create_task(self._end(group, outcome))
            await asyncio.shield(ending)
        elif (group.outcome.value, group.outcome.by) != (outcome.value, outcome.by):
            raise wrong(
                f"the episode has its outcome, {group.outcome.value} by {group.outcome.by}; once an iteration has taken it, "
                "`flywheel verdict` changes V",
                status=409,
                code="episode_has_ended",
            )
        return group.outcome

    async def _end(self, group: Group, outcome: Outcome) -> None:
        try:
            await self._log.close_episode(outcome)
            self.grouping.close(outcome)
        except BaseException:
            group.outcome = None
            raise
        finally:
            del self._ending[group.episode]


def _kinds_in(calls: Sequence[Call]) -> tuple[str, ...]:
    said = kinds_in(texts_of((*calls[0].messages, *(one.answer for one in calls))))
    return tuple(dict.fromkeys((*said, *_kinds_in_settings("\n".join(texts_in([calls[0].tools, calls[0].sampling]))))))


@lru_cache(maxsize=128)
def _kinds_in_settings(text: str) -> Sequence[str]:
    """An agent sends the same tools with every call."""
    return kinds_in(text)


def _ms_since(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000
