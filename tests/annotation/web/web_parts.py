"""Parts for tests of the web layer: a server on a free port of this machine, and people and programs who talk to it over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher

from annotation.service.access.accounts import Accounts
from annotation.service.access.passwords import Passwords
from annotation.service.campaigns.task_priorities import TaskPriorityReader
from annotation.service.recordings.recordings import Recordings
from annotation.service.runs.runs import LiveRuns
from annotation.storage.blobs import Blobs
from annotation.storage.database import Database
from annotation.storage.migrating import open_database
from annotation.web.app import create_app
from annotation.web.guard import Guard
from annotation.web.serve import serving
from annotation.web.settings import WebSettings
from sandbox.pool.pool import SessionPool
from sandbox.pool.pool_protocol import SessionPoolProtocol
from tests.annotation import fresh
from tests.annotation.service.live_parts import OneSource, Reader

PASSWORD = "correct horse battery"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class Person:
    """A browser: its cookies, and the CSRF token of its login."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client, self.csrf = client, ""
        self.me: dict[str, Any] = {}

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """As our own pages ask: with what a browser says of where it comes from."""
        own = {"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": self.csrf}
        return await self.client.request(method, path, json=body, headers={**own, **headers})

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.send("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.send("POST", path, {} if body is None else body, **headers)

    async def log_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        return self.keep(await self.post("/api/v1/login", {"name": name, "password": password}))

    def keep(self, response: httpx.Response) -> httpx.Response:
        """The login that an answer made."""
        if response.is_success:
            self.me = response.json()
            self.csrf = self.me["csrf_token"]
        return response


class Site:
    """A running server, and what is behind it."""

    def __init__(self, address: str, database: Database, blobs: Blobs, runs: LiveRuns, guard: Guard, stack: AsyncExitStack) -> None:
        assert isinstance(runs.policies, OneSource)
        self.policies: OneSource = runs.policies
        self.address, self.database, self.blobs, self.runs, self.guard, self._stack = address, database, blobs, runs, guard, stack
        self.accounts: Accounts = guard._accounts
        self.recordings: Recordings = guard._app.state.office.recordings

    async def stranger(self) -> Person:
        client = httpx.AsyncClient(
            base_url=self.address, trust_env=False, timeout=30, verify=False
        )  # loopback: certificates take long to load
        return Person(await self._stack.enter_async_context(client))

    async def person(self, name: str, role: str = "annotator") -> Person:
        """Somebody who has just joined."""
        secret, _ = await self.accounts.invite(role, by=None)
        person = await self.stranger()
        joined = person.keep(await person.post("/api/v1/join", {"token": secret, "name": name, "password": PASSWORD}))
        assert joined.status_code == 200, joined.text
        return person

    async def program(self, name: str, role: str = "annotator") -> httpx.AsyncClient:
        token, _ = await self.accounts.add_program(name, role, "a test")
        client = httpx.AsyncClient(
            base_url=self.address, trust_env=False, timeout=30, verify=False, headers={"Authorization": f"Bearer {token}"}
        )
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def site(
    folder: Path,
    *,
    settings: WebSettings | None = None,
    url: str | None = None,
    pool: SessionPoolProtocol | None = None,
    grammar: str = "compact",
) -> AsyncIterator[Site]:
    """Without a pool nobody can begin a run: nothing is started for one."""
    database, blobs = open_database(url or fresh.sqlite_url(folder)), Blobs(folder / "screens")
    runs = LiveRuns(database, blobs, pool or SessionPool(size=1), OneSource(Reader(), grammar))
    guard = create_app(
        database,
        blobs,
        runs,
        TaskPriorityReader(None),
        settings or WebSettings(burst=5000, requests_per_s=5000),
        passwords=Passwords(CHEAP),
        session_pool=pool,
    )
    assert isinstance(guard, Guard)
    try:
        async with AsyncExitStack() as stack, serving(guard) as address:
            yield Site(address, database, blobs, runs, guard, stack)
    finally:
        database.close()
