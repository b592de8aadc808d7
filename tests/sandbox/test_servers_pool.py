"""A pool over several sandbox servers: which gets a lease, which none and why, and what becomes of an episode whose server goes away. What
whole machines do that die is tests/pipelines/test_sandbox_servers.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.waiting_node import TASK as WAIT
from benchmarks.common.waiting_node import Clicking
from sandbox.actions import Click
from sandbox.http.serving import Server, api_version, on_free_port
from sandbox.http.tokens import Tokens
from sandbox.pool.pool_protocol import SessionPoolProtocol, SizedSessionPool
from sandbox.server import identity
from sandbox.server.address import ServerAddress, address_of_text
from sandbox.server.app import create_app
from sandbox.server.bodies import ServerStatus
from sandbox.server.client import SandboxClient
from sandbox.server.leases import Leases
from sandbox.server.servers_pool import ServersPool, Timeouts, other_code, other_source
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import TOKEN_VARIABLE
from sandbox.tasks.task import Task
from tests.sandbox.counting import TASK, CountingPool
from warehouse.core.errors import AccessDenied, BrowserCrashed, ConfigError, SandboxBusy, SandboxError, ServerUnreachable

TOKEN, OTHER = "token-of-the-pool-0123456789", "token-of-nobody-0123456789"
CLICK = Click(x=1, y=1)
TIMEOUTS = Timeouts(ask_every_s=0.1, silent_s=2.0, refused_s=0.3, none_s=3.0)
pytestmark = pytest.mark.usefixtures("token")


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_TOKEN", TOKEN)
    monkeypatch.setenv("OTHER_TOKEN", OTHER)


@dataclass(kw_only=True)
class Node:
    """A server in this event loop."""

    url: str
    pool: CountingPool
    leases: Leases

    @property
    def num_out(self) -> int:
        return self.pool.size - len(self.pool.free)


@asynccontextmanager
async def nodes(*sizes: int, tokens: dict[str, str] | None = None) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        made = []
        for size in sizes:
            pool, settings = CountingPool(size), ServerSettings(max_sessions=size, max_sessions_per_client=size)
            app, leases = create_app(pool, Tokens(tokens or {"default": TOKEN}), settings)
            url = await stack.enter_async_context(on_free_port(Server(app, grace_s=5, on_end=leases.begin_close)))
            made.append(Node(url=url, pool=pool, leases=leases))
        yield made


@contextmanager
def process(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that can be killed, and its address."""
    command = [sys.executable, "-m", "benchmarks.common.waiting_node", "--size", "4", "--step-ms", "50", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, TOKEN_VARIABLE: TOKEN})
    try:
        assert server.stdout is not None
        yield server, server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


def pool_of(*urls: str, size: int = 16, variable: str = "POOL_TOKEN", timeouts: Timeouts = TIMEOUTS) -> ServersPool:
    return ServersPool([ServerAddress(url=url, token_env=variable) for url in urls], size=size, timeouts=timeouts)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def episodes(pool: SessionPoolProtocol, num: int, task: Task = TASK) -> list[Episode]:
    requests = [EpisodeRequest(task=task, seed=seed, purpose="rollout", policy_id="clicking") for seed in range(num)]
    collector = PoolCollector(pool, PromptBuilder("uitars15"), EpisodeLimits(), CollectorSettings(concurrency=num))
    return [episode async for episode in collector.play(Clicking(), requests)]


def test_leases_go_where_sessions_are_free() -> None:
    async def main() -> None:
        async with nodes(2, 4) as (small, large), pool_of(small.url, large.url, size=5) as pool:
            assert isinstance(pool, SizedSessionPool) and pool.size == 5
            async with AsyncExitStack() as stack:
                for _ in range(4):
                    await stack.enter_async_context(pool.lease(TASK))
                assert (small.num_out, large.num_out) in ((1, 3), (2, 2))
                await stack.enter_async_context(pool.lease(TASK))
                with pytest.raises(TimeoutError):  # no more at once than its size
                    async with asyncio.timeout(0.3), pool.lease(TASK):
                        pass
            assert small.num_out == large.num_out == 0

    asyncio.run(main())


def test_what_other_clients_hold_is_seen() -> None:
    async def main() -> None:
        async with nodes(3, 2) as (taken, free), SandboxClient(taken.url, TOKEN) as other, AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(other.lease(TASK))
            async with pool_of(taken.url, free.url) as pool, pool.lease(TASK), pool.lease(TASK):
                assert free.num_out == 2
                waiting = asyncio.ensure_future(stack.enter_async_context(pool.lease(TASK)))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                await next(iter(other._held.values())).close()
                await waiting
                await stack.aclose()

    asyncio.run(main())


def test_a_server_that_is_killed_costs_its_episodes_a_retry_and_none_its_reward() -> None:
    async def main(dying: subprocess.Popen[str], *urls: str) -> None:
        async with pool_of(*urls) as pool:
            working = asyncio.create_task(episodes(pool, 30, WAIT))
            await until(lambda: pool.free_by_server().get(urls[0]) == 0)
            await asyncio.sleep(0.15)  # so that they are under way
            dying.kill()
            found = await working
            assert sorted(episode.request.seed for episode in found) == list(range(30))
            assert {episode.outcome for episode in found} == {"success"} and {episode.reward for episode in found} == {1.0}
            assert Counter(episode.num_retries for episode in found)[1] >= 1
            assert list(pool.free_by_server()) == [urls[1]]

    with process() as (dying, first), process() as (_, second):
        asyncio.run(main(dying, first, second))


@pytest.mark.slow
def test_a_server_that_comes_back_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with process() as (server, url):
            async with pool_of(url, timeouts=replace(TIMEOUTS, none_s=60.0)) as pool:  # as long as a server may take to start
                async with pool.lease(WAIT) as session:
                    await session.reset(WAIT, 1)
                    server.kill()
                    with pytest.raises(ServerUnreachable, match="does not answer any more"):
                        await session.step(CLICK)
                waiting = asyncio.create_task(episodes(pool, 1, WAIT))
                await until(lambda: "No sandbox server can be used; waiting" in caplog.text)
                with process(int(url.rpartition(":")[2])):
                    assert (await waiting)[0].is_success
                assert "is not used: it does not answer" in caplog.text and "is used again" in caplog.text

    asyncio.run(main())


def test_while_no_server_answers_leases_wait_and_then_the_stage_fails() -> None:
    async def main() -> None:
        async with pool_of("http://127.0.0.1:9") as pool:
            with pytest.raises(ServerUnreachable, match="No sandbox server can be used"):
                pool.require_one()
            with pytest.raises(ServerUnreachable, match="No sandbox server can be used") as raised:
                await episodes(pool, 1)
            assert not raised.value.is_retryable

    asyncio.run(main())


def test_a_server_that_drains_gets_no_lease_and_ends_those_that_it_has() -> None:
    async def main() -> None:
        async with nodes(2, 2) as (draining, other), pool_of(draining.url, other.url) as pool, SandboxClient(draining.url, TOKEN) as client:
            async with pool.lease(TASK) as first, pool.lease(TASK) as second:
                for session in (first, second):
                    await session.reset(TASK, 1)
                assert (await client.drain()).is_draining and draining.num_out == 1
                await until(lambda: list(pool.free_by_server()) == [other.url])
                async with pool.lease(TASK):
                    assert other.num_out == 2
                for session in (first, second):
                    assert (await session.step(CLICK)).observation.instruction.endswith("count 1")
                with pytest.raises(SandboxBusy, match="draining"):
                    await client.open(TASK, wait_s=0)
            assert (await client.status()).num_leased == 0
            await client.drain(False)
            await until(lambda: len(pool.free_by_server()) == 2)

    asyncio.run(main())


def test_only_who_may_drains_a_server() -> None:
    async def main() -> None:
        async with (
            nodes(1, tokens={"ann": TOKEN, "admin": OTHER}) as (node,),
            SandboxClient(node.url, TOKEN) as ann,
            SandboxClient(node.url, OTHER) as admin,
        ):
            with pytest.raises(AccessDenied, match="admin"):
                await ann.drain()
            assert (await admin.drain()).is_draining

    asyncio.run(main())


def test_a_server_without_disk_lends_nothing_and_its_episodes_go_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with nodes(2, 2) as (full, other), pool_of(full.url, other.url) as pool:
            async with pool.lease(TASK), pool.lease(TASK) as session:
                await session.reset(TASK, 1)
                for node in (full, other):
                    node.leases.disk.min_free_mib = 1e12  # more than any disk has
                with pytest.raises(SandboxError, match="nearly full") as raised:
                    await session.step(CLICK)
                assert raised.value.is_retryable
            other.leases.disk.min_free_mib = 0
            await until(lambda: list(pool.free_by_server()) == [other.url])
            assert [episode.reward for episode in await episodes(pool, 4)] == [0.4] * 4
            assert f"{full.url} is not used: it has only" in caplog.text
            async with SandboxClient(full.url, TOKEN) as client:
                assert (await client.status()).is_disk_short
                with pytest.raises(SandboxBusy, match="nearly full"):
                    await client.open(TASK, wait_s=0)

    asyncio.run(main())


def test_a_server_that_refuses_the_token_or_runs_other_code_is_named_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with nodes(1, 1) as (node, other):
            mixed = [ServerAddress(url=node.url, token_env="OTHER_TOKEN"), ServerAddress(url=other.url, token_env="POOL_TOKEN")]
            async with ServersPool(mixed, size=4, timeouts=TIMEOUTS) as pool:
                assert [episode.reward for episode in await episodes(pool, 3)] == [0.4] * 3
                assert list(pool.free_by_server()) == [other.url]
            assert f"{node.url} is not used: it refuses the token" in caplog.text
            with pytest.raises(ConfigError, match="refuses the token"):
                async with pool_of(node.url, other.url, variable="OTHER_TOKEN"):
                    pass
            with pytest.raises(ConfigError, match="NO_SUCH_TOKEN"):
                pool_of(node.url, variable="NO_SUCH_TOKEN")

    asyncio.run(main())


def test_a_lease_that_one_server_cannot_open_goes_to_another() -> None:
    async def main() -> None:
        async with nodes(4, 1) as (broken, other), pool_of(broken.url, other.url) as pool:

            @asynccontextmanager
            async def fails(*_: object, **__: object) -> AsyncIterator[None]:
                raise BrowserCrashed("no browser starts here")
                yield

            broken.pool.lease = fails  # type: ignore[assignment, method-assign]
            async with pool.lease(TASK) as session:
                assert (await session.reset(TASK, 1)).instruction
                assert other.num_out == 1
            other.pool.lease = fails  # type: ignore[assignment, method-assign]
            with pytest.raises(BrowserCrashed):
                async with pool.lease(TASK):
                    pass

    asyncio.run(main())


def test_a_server_of_other_code_or_other_task_sources_says_so() -> None:
    here = {"version": api_version(), "code": identity.code_id(), "sources": identity.source_ids()}
    rest = {"num_sessions": 1, "num_leased": 0, "num_waiting": 0, "num_free": 1, "oracles": False, "is_draining": False}
    status = ServerStatus.model_validate({**here, **rest, "free_disk_mib": 1000.0, "is_disk_short": False})
    assert other_code(status) == "" == other_source(status, "miniwob") == other_source(status, "counting")
    assert "runs other code" in other_code(status.model_copy(update={"code": "code-0"}))
    assert "does not know" in other_source(status.model_copy(update={"sources": {}}), "miniwob")
    assert "another task source" in other_source(status.model_copy(update={"sources": {"miniwob": "mine:SOURCE"}}), "miniwob")


def test_a_server_is_watched_while_it_releases_what_was_given_up() -> None:
    async def main() -> None:
        async with nodes(2) as (node,), pool_of(node.url) as pool, SandboxClient(node.url, TOKEN) as client:
            lend, may_end = node.pool.lease, asyncio.Event()

            @asynccontextmanager
            async def ends_late(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
                async with lend(*arguments, **options) as session:
                    try:
                        yield session
                    finally:
                        await may_end.wait()

            node.pool.lease = ends_late  # type: ignore[assignment, method-assign]
            async with pool.lease(TASK):
                pool._servers[0].client.give_up(ServerUnreachable("as if it had been silent"))
            await client.drain()
            await until(lambda: not pool.free_by_server())
            await client.drain(False)
            await until(pool.free_by_server)
            assert node.num_out == 1
            may_end.set()
            await until(lambda: node.num_out == 0)

    asyncio.run(main())


def test_a_token_that_cannot_be_sent_is_reported_by_its_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with nodes(1) as (node,):
            monkeypatch.setenv("POOL_TOKEN", f"{TOKEN}\n")  # as a mounted secret has it
            async with pool_of(node.url) as pool:
                pool.require_one()
            for unfit in (f"{TOKEN}\n{OTHER}", f"{TOKEN}é", f"{TOKEN} {OTHER}"):
                monkeypatch.setenv("POOL_TOKEN", unfit)
                with pytest.raises(ConfigError, match="variable POOL_TOKEN is not usable") as refused:
                    pool_of(node.url)
                assert TOKEN not in str(refused.value)
            async with SandboxClient(node.url, TOKEN) as client:
                client._token = f"{TOKEN}\n"
                with pytest.raises(ServerUnreachable, match="LocalProtocolError") as raised:
                    await client.status(timeout_s=1)
                assert TOKEN not in "".join(traceback.format_exception(raised.value))

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["10.0.0.2:8421", "ftp://a", "http://", "http://a:port", "http://ann:secret@a:1", "http://a:1/v1", "http://a?x"]
)
def test_a_wrong_address_of_a_server_is_reported(url: str) -> None:
    with pytest.raises(ConfigError, match=r"address|password"):
        address_of_text(url)
    assert address_of_text("http://[::1]:8421/").url == "http://[::1]:8421"
