"""Episodes of a harness: a program drives each session, and what it asks is answered behind a gateway of the stage's own.

The log of that gateway lies in the stage's folder, and goes with it once the episodes are stored.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.runner import EpisodeRunner
from agent.harness.registry import HARNESSES
from agent.harness.runner import HarnessRunner
from assets.settings.agent import HarnessSettings
from assets.settings.profile import ActingSettings
from models.engine.choice import EngineChoice
from models.gateway.episode_gateway import EpisodeGateway
from models.gateway.harness_collector import HarnessCollector
from models.gateway.serve import Address
from models.gateway.served import served_checkpoint
from models.gateway.settings import GatewaySettings
from models.gateway.upstream import Upstream
from models.http.client import token_in
from models.http.engine import HttpEngine
from pipelines.cluster.sessions import collecting, limits
from pipelines.stages.engines import open_servers, placed
from pipelines.stages.sandboxes import EpisodeService
from sandbox.pool.pool import SessionPool
from sandbox.pool.slots import RecyclePolicy
from warehouse.core.home import Home

ONCE = RecyclePolicy(recycle_resets=1)
"""A browser that a program has driven is nobody else's: it may hold anything."""


class HarnessService(EpisodeService):
    """Of episodes that a harness plays. `policy`: the folder of the checkpoint that answers, unless the settings name an upstream."""

    def __init__(self, acting: ActingSettings, settings: HarnessSettings, policy: Path, log: EpisodeLog, folder: Path) -> None:
        super().__init__(acting, log)
        self._settings, self._policy, self._folder = settings, policy, folder
        self._runner: HarnessRunner

    async def _open(self) -> None:
        sandbox = self._acting.sandbox
        upstream = await self._stack.enter_async_context(open_upstream(self._settings, self._acting.engine, self._policy))
        gateway = await self._stack.enter_async_context(EpisodeGateway.open(Home(self._folder), upstream))
        pool = await self._stack.enter_async_context(_opened_pool(self._settings))
        runner = EpisodeRunner(pool, self._acting.agent.builder(), limits(self._acting), collecting(sandbox))
        name = self._settings.name
        self._runner = HarnessRunner(runner, name, HARNESSES[name], gateway, timeout_s=sandbox.episode_timeout_s)
        self.num_at_once = self._settings.num_at_once

    async def _play(self, request: EpisodeRequest) -> Episode:
        return await self._runner.run(request, log=self._log)


@asynccontextmanager
async def open_harness_collector(
    acting: ActingSettings, settings: HarnessSettings, *, temperature: float, folder: Path
) -> AsyncIterator[HarnessCollector]:
    """For RL: the policy that learns answers, sampled at this temperature. It plays no instance that is only reported. The gateway's logs
    lie in the folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    async with _opened_pool(settings) as pool:
        runner = EpisodeRunner(pool, acting.agent.builder(), limits(acting), collecting(acting.sandbox), to_choose=True)
        yield HarnessCollector(
            runner,
            settings.name,
            HARNESSES[settings.name],
            folder=folder,
            num_at_once=settings.num_at_once,
            temperature=temperature,
            max_tokens=settings.max_tokens,
            timeout_s=acting.sandbox.episode_timeout_s,
        )


def _opened_pool(settings: HarnessSettings) -> SessionPool:
    """Sessions without a DevTools address are those of any collection."""
    size = settings.num_at_once
    return SessionPool(kind="devtools", size=size, num_browsers=size, recycle=ONCE) if settings.devtools else SessionPool(size=size)


@asynccontextmanager
async def open_upstream(settings: HarnessSettings, choice: EngineChoice, policy: Path) -> AsyncIterator[Address]:
    """Where the model answers, for as long as the block lasts. Raises CheckpointError, ConfigError,
    ModelError."""
    if settings.upstream is not None:
        yield address_of(settings)
    elif choice.kind != "embedded":
        with closing(_servers(policy, choice)) as engine:  # which makes the server load it
            url, *replicas = engine.urls
            loaded = {"policy_id": engine.policy_id, "model": engine.capabilities().model}
            yield Address(url=url, replicas=tuple(replicas), token=engine.token, **loaded)
    else:
        dtype, device = placed(choice)
        served = served_checkpoint(policy, dtype=dtype, device=device, settings=choice.settings, max_tokens=settings.max_tokens)
        async with served as address:
            yield address


def _servers(policy: Path, choice: EngineChoice) -> HttpEngine:
    return open_servers(policy, choice) if choice.http is None else HttpEngine.of_checkpoint(choice.http, policy)


def address_of(settings: HarnessSettings) -> Address:
    return Address(url=settings.upstream or "", token=_token(settings.token_env))


async def upstream_policy(settings: HarnessSettings) -> str:
    """Whose weights a named upstream has. Raises ConfigError, EngineUnreachable, ModelError."""
    address = address_of(settings)
    upstream = Upstream(address.url, address.token, timeout_s=GatewaySettings().timeout_s)
    try:
        await upstream.open()
    finally:
        await upstream.close()
    return upstream.policy_id


def _token(variable: str | None) -> str | None:
    return None if variable is None else token_in(variable)
