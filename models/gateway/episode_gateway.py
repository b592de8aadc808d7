"""The gateway of a harness's episodes (agent/harness/runner.py): each gets its name and its end from its runner, so its calls are
recorded as always, and come back as steps.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.gateway.episodes import steps_of
from agent.gateway.log import GatewayLog, read_picture
from agent.gateway.records import Call, Outcome
from agent.harness.runner import Calls, ModelAddress, Recorded
from models.gateway.recorder import Caller, Recorder
from models.gateway.serve import Address, serving_recorder
from models.gateway.settings import GatewaySettings
from models.server.problems import ApiError, wrong
from sandbox.session import Verdict
from warehouse.core.home import Home

PROJECT = "harness"
POLL_S = 0.01
SERVER_ERROR = 500
SETTINGS = GatewaySettings(keep_personal_data=True, max_running=4096)
"""What tasks show is invented, and is judged with every other episode's where episodes are routed."""


class _KeptLog(GatewayLog):
    """A log that also holds the calls of episodes under way, by their name."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.calls: dict[str | None, list[Call]] = {}

    async def append(self, calls: Sequence[Call], pictures: Mapping[str, bytes]) -> None:
        await super().append(calls, pictures)
        for call in calls:
            self.calls.setdefault(call.name, []).append(call)


@dataclass(slots=True)
class _Running:
    """An episode under way. `failure`: why the upstream did not answer its last call, if that was the upstream's fault."""

    calls: Calls
    failure: str | None = None


class EpisodeGateway:
    """Lives in one event loop, and is the Owner of its episodes. Its log is in the home's folder, as any gateway's."""

    def __init__(self, home: Home, log: _KeptLog) -> None:
        self._home, self._log = home, log
        self._token = secrets.token_urlsafe(24)
        self._running: dict[str, _Running] = {}
        self._url = ""
        self._recorder: Recorder | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, home: Home, upstream: Address) -> AsyncIterator[EpisodeGateway]:
        """Raises EngineUnreachable or ModelError where the upstream does not answer."""
        with closing(_KeptLog(home)) as log:
            gateway = cls(home, log)
            served = serving_recorder(log, upstream, {PROJECT: gateway._token}, SETTINGS, gateway)
            async with served as (gateway._url, gateway._recorder):
                yield gateway

    @property
    def policy_id(self) -> str:
        """Of the weights that answer."""
        return self._opened.live.policy_id

    @property
    def _opened(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("the gateway is not open: `async with EpisodeGateway.open(…)`")
        return self._recorder

    def begin(self, name: str, calls: Calls) -> ModelAddress:
        self._running[name] = _Running(calls)
        return ModelAddress(url=self._url, key=f"{self._token}/{name}")

    async def admit(self, caller: Caller) -> None:
        """As Owner: 410, which clients do not send again."""
        running = self._running.get(caller.name or "")
        if running is None:
            raise wrong(f"no episode {caller.name!r} is under way", status=410, code="episode_has_ended")
        if (why := await running.calls.admit()) is not None:
            raise wrong(why, status=410, code="episode_has_ended")

    def left(self, caller: Caller, *, is_answered: bool, failure: ApiError | None) -> None:
        """As Owner."""
        if (running := self._running.get(caller.name or "")) is None:
            return
        running.calls.left(is_answered=is_answered)
        if is_answered:
            running.failure = None
        elif failure is not None and failure.status >= SERVER_ERROR:
            running.failure = str(failure)

    async def end(self, name: str, verdict: Verdict) -> Recorded:
        running = self._running.pop(name, None)
        failure = None if running is None else running.failure
        group = self._opened.grouping.find(PROJECT, name)
        if group is None:
            return Recorded(steps=(), pictures={}, failure=failure)
        while group.num_running:
            await asyncio.sleep(POLL_S)
        calls = self._log.calls.pop(name, [])
        if calls:
            await self._opened.close_episode(group, _outcome(group.episode, verdict))
        steps = await asyncio.to_thread(steps_of, calls)
        shown = {message.screenshot_id for step in steps for message in step.messages if message.screenshot_id is not None}
        return Recorded(steps=steps, pictures=await asyncio.to_thread(self._pictures, sorted(shown)), failure=failure)

    def _pictures(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: read_picture(self._home, name) for name in names}


def _outcome(episode: str, verdict: Verdict) -> Outcome:
    return Outcome(
        episode=episode,
        project=PROJECT,
        value=1 if verdict.success else 0,
        by="the task's verifier",
        origin="verifier",
        reasons=verdict.reasons,
        given_at=datetime.now(UTC).isoformat(timespec="microseconds"),
    )
