"""The collector of RL's episodes with a harness: the policy that learns answers a program behind a gateway. Satisfies Collector."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from agent.episode import concurrency
from agent.episode.collector import LeaseUse, Requests
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.runner import EpisodeRunner
from agent.harness.harness import Harness
from agent.harness.runner import HarnessRunner
from agent.policy.policy import Policy
from models.gateway.episode_gateway import EpisodeGateway
from models.gateway.learner import served_learner
from warehouse.core.home import Home


class HarnessCollector:
    """On the sessions of a runner's pool; a gateway and a server of the policy live as long as what is collected, and the gateway's log
    with them: the episodes have what it says."""

    def __init__(
        self,
        runner: EpisodeRunner,
        name: str,
        harness: Harness,
        *,
        folder: Path,
        num_at_once: int,
        temperature: float,
        max_tokens: int,
        timeout_s: float,
    ) -> None:
        """`folder`: of the gateway's logs. `temperature` is that at which RL samples, whatever the program asks for."""
        self._runner, self._name, self._harness, self._num_at_once = runner, name, harness, num_at_once
        self._folder = folder
        self._temperature, self._max_tokens, self._timeout_s = temperature, max_tokens, timeout_s

    @property
    def lease_use(self) -> LeaseUse:
        return LeaseUse(leased_s=self._runner.leased_s, num_sessions=self._num_at_once)

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """As Collector. Raises what a policy's engine that cannot be served raises."""
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True))
            served = served_learner(policy, temperature=self._temperature, max_tokens=self._max_tokens)
            upstream = await stack.enter_async_context(served)
            gateway = await stack.enter_async_context(EpisodeGateway.open(Home(Path(folder)), upstream))
            runner = HarnessRunner(self._runner, self._name, self._harness, gateway, timeout_s=self._timeout_s)

            def run(request: EpisodeRequest) -> Awaitable[Episode]:
                return runner.run(request, log=log)

            playing = concurrency.bounded_map(requests, run, num_workers=self._num_at_once, name="harness collector")
            async with aclosing(playing) as episodes:
                async for episode in episodes:
                    yield episode

    async def close(self) -> None:
        """The pool is whose it was."""
