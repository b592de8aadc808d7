"""Sessions of one machine, be it the stage's own or a node of a Ray cluster: how the profile's sandbox settings become a pool of sessions,
and the limits of the episodes that run on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from sandbox.server.servers_pool import ServersPool

UNFINISHED_AFTER = 2.0
"""An episode that has not ended after so many times the limit of its decisions is an infrastructure failure, in every stage that acts."""
FORGOTTEN_AFTER = 10.0
"""A lease that nobody touched for so many times the limit of an episode is taken back."""


def num_waiting(settings: SandboxSettings) -> int:
    """Episodes under way or waiting for a session: more than there are sessions, so that most find one with their page loaded."""
    return 6 * settings.num_sessions


def limits(acting: ActingSettings) -> EpisodeLimits:
    return EpisodeLimits(policy_timeout_s=acting.sandbox.episode_timeout_s, max_new_tokens=acting.agent.max_new_tokens)


@asynccontextmanager
async def open_pool(settings: SandboxSettings) -> AsyncIterator[Fleet | ServersPool]:
    """A pool of live sessions as the profile asks for: on its sandbox servers, else in processes of their own."""
    if settings.servers:
        async with ServersPool(settings.servers, size=settings.num_sessions) as servers:
            yield servers
        return
    fleet = FleetSettings(
        kind=settings.session,
        max_workers=settings.num_workers,
        sessions_per_worker=-(-settings.num_sessions // settings.num_workers),
        browsers_per_worker=settings.num_browsers,
        lease_ttl_s=FORGOTTEN_AFTER * settings.episode_timeout_s,
    )
    async with Fleet(fleet) as pool:
        yield pool


def collecting(settings: SandboxSettings) -> CollectorSettings:
    return CollectorSettings(
        concurrency=num_waiting(settings),
        max_retries=settings.max_retries,
        episode_timeout_s=UNFINISHED_AFTER * settings.episode_timeout_s,
        fixed_batch=settings.fixed_batch,
    )
