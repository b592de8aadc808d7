"""An annotation server put together: database, pictures, live sessions, the home's policies, and the web in front of them. The parts are
annotation/; here is only what belongs to this process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.markup import escape

from annotation.service.access.accounts import Accounts
from annotation.service.campaigns.policies import NEWEST
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.runs.runs import LiveRuns
from annotation.storage import accounts as stored
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.migrating import open_database
from annotation.storage.one_server import only_server
from annotation.web.app import create_app
from annotation.web.serve import serve
from annotation.web.settings import WebSettings
from pipelines.annotation_server import address as annotation_address
from pipelines.annotation_server.policy_source import ReleasedPolicies
from pipelines.cli.options import console
from sandbox.http.serving import address_of, bind, is_loopback
from sandbox.server.address import address_of_text
from warehouse.core.errors import ConfigError, FlywheelError
from warehouse.core.home import Home

if TYPE_CHECKING:
    from assets.settings.profile import ActingSettings
    from sandbox.pool.pool_protocol import SessionPoolProtocol

FORGOTTEN_S = 7800.0
"""A session that nobody touched for so long is taken back: a little more than the longest lease of an assignment."""
MOST_ON_SERVERS = 1000
"""Sessions at once on sandbox servers, which have limits of their own."""
FIRST_INVITATION_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What the command line asked for."""

    host: str
    port: int
    url: str
    sandbox: str | None
    """Address of a sandbox server; None: those of the profile, else sessions of one's own."""
    num_sessions: int
    num_workers: int | None
    behind_proxy: bool
    public_url: str | None
    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may ask for, beside those of `host` and `public_url`, loopback names and IP addresses."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.host, urlsplit(self.public_url or "").hostname or "", *self.allowed_hosts)


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raises ConfigError for an address that other machines reach, unless that was asked for by name."""
    if not is_loopback(host) and not allow_remote:
        raise ConfigError(
            f"{host} can be reached from other machines, and traffic, passwords too, is not encrypted. Listen on 127.0.0.1 and "
            "put a proxy that ends TLS in front (then add --behind-proxy), or tunnel (`ssh -L`); --allow-remote where the network itself "
            "is trusted."
        )


async def run_server(home: Home, acting: ActingSettings, plan: ServerPlan) -> None:
    """Serve until SIGINT or SIGTERM. Whatever ends it, runs go on in the next server. Raises ConfigError, DatabaseUnusable, also where
    the database went away so that another server may have begun."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind(plan.host, plan.port))
        database = open_database(plan.url)
        stack.callback(database.close)
        alone = stack.enter_context(only_server(database))
        policies = ReleasedPolicies(home, acting)
        stack.push_async_callback(policies.close)
        session_pool = await stack.enter_async_context(_pool(plan, acting))
        runs = LiveRuns(database, Blobs.of_home(home), session_pool, policies)
        settings = WebSettings(behind_proxy=plan.behind_proxy)
        app = create_app(database, Blobs.of_home(home), runs, TaskPriorityReader(home), settings, session_pool=session_pool)
        first = await first_invitation(database)
        stack.enter_context(annotation_address.announced(home, address_of(listener), plan.public_url, database.name))
        warming = asyncio.create_task(_warm(policies), name="the newest release")
        stack.callback(warming.cancel)
        await serve(
            app,
            listener,
            lambda: _print_address(listener, plan, database, first),
            on_end=runs.end_streams,
            watch=alone.watch,
            hosts=plan.hosts,
        )
    console.print("everybody's work is kept; restart to go on")


@asynccontextmanager
async def _pool(plan: ServerPlan, acting: ActingSettings) -> AsyncIterator[SessionPoolProtocol]:
    servers = acting.sandbox.servers if plan.sandbox is None else (address_of_text(plan.sandbox),)
    if servers:
        from sandbox.server.servers_pool import ServersPool

        async with ServersPool(servers, size=MOST_ON_SERVERS) as pool:
            pool.require_one()  # a wrong address fails here, not at the first annotator's page
            yield pool
        return
    from sandbox.fleet.manager import Fleet
    from sandbox.fleet.settings import FleetSettings

    workers = min(plan.num_workers or os.cpu_count() or 1, plan.num_sessions)
    settings = FleetSettings(max_workers=workers, sessions_per_worker=-(-plan.num_sessions // workers), lease_ttl_s=FORGOTTEN_S)
    async with Fleet(settings) as fleet:
        yield fleet


async def first_invitation(database: Database) -> str | None:
    """Where nobody may administer yet: the secret of a link that makes the first account."""
    users = await database.reading(stored.users)
    if any(user.role == "admin" and user.disabled_at_s is None and user.password_hash is not None for user in users):
        return None
    accounts = Accounts(database)
    secret, _ = await accounts.invite("admin", by=None, ttl_s=FIRST_INVITATION_S)
    accounts.passwords.close()
    return secret


async def _warm(policies: ReleasedPolicies) -> None:
    """Open the newest release before anybody waits for it, and say which it is."""
    try:
        served = await policies.get(NEWEST)
    except FlywheelError as error:
        console.print(f"[yellow]no policy proposes yet: {escape(str(error))}[/]", soft_wrap=True)
    else:
        console.print(f"proposes: {served.policy_id}", soft_wrap=True, highlight=False)
    sys.stdout.flush()


def _print_address(listener: socket.socket, plan: ServerPlan, database: Database, first: str | None) -> None:
    address = address_of(listener)
    console.print(f"annotation server: {address}", soft_wrap=True)
    console.print(f"database: {database.name}", soft_wrap=True, highlight=False)
    if first is not None:
        link = f"{plan.public_url or address}/join#{first}"
        console.print(f"nobody may administer yet; within a day this link makes the first account: {link}", soft_wrap=True, highlight=False)
    if not is_loopback(plan.host):
        console.print(f"[yellow]{plan.host} can be reached from other machines, and traffic is not encrypted.[/]")
    sys.stdout.flush()


def serve_annotation(home: Home, acting: ActingSettings, plan: ServerPlan) -> None:
    asyncio.run(run_server(home, acting, plan))
