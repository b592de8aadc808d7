"""The client: sessions at the other end of a connection that breaks, signs of life, errors, and the calls without an event loop."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from sandbox.actions import Click, Finished, ToolCall, Wait
from sandbox.http.tokens import Tokens
from sandbox.loop_thread import LoopThread
from sandbox.server.client import SandboxClient
from sandbox.server.client_sync import SyncSandbox
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.session import Session
from tests.sandbox.counting import TASK, CountingPool
from warehouse.core.errors import AccessDenied, BrowserCrashed, LeaseLost, SandboxBusy, SandboxError, ServerUnreachable, TaskError

TOKEN = "token-of-ann-0123456789"
CLICK = Click(x=1, y=1)


@asynccontextmanager
async def served(size: int = 3, **settings: Any) -> AsyncIterator[tuple[str, CountingPool]]:
    pool = CountingPool(size)
    async with serving(pool, Tokens({"ann": TOKEN}), ServerSettings(**settings)) as url:
        yield url, pool
    assert len(pool.free) == size


class CuttingProxy:
    """Forwards connections to a server and breaks some in the middle of a request, some in the middle of an answer."""

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._dice = port, random.Random(seed)
        self.num_cut = 0
        self._connections: set[Any] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        ways = {asyncio.create_task(self._pump(reader, back, 0.08)), asyncio.create_task(self._pump(there, writer, 0.2))}
        _, other = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in other:
            way.cancel()
        await asyncio.wait(ways)
        for end in (writer, back):
            end.close()
            with suppress(ConnectionError):
                await end.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, risk: float) -> None:
        """Until one end closes, or the dice say so: then half of what came still goes on."""
        with suppress(ConnectionError):
            while data := await source.read(1 << 20):
                if self._dice.random() < risk:
                    self.num_cut += 1
                    sink.write(data[: len(data) // 2])
                    await sink.drain()
                    return
                sink.write(data)
                await sink.drain()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_broken_connection_loses_no_step_and_doubles_none(seed: int) -> None:
    async def main() -> None:
        async with served(oracles=True) as (url, pool):
            proxy = CuttingProxy(int(url.rpartition(":")[2]), seed)
            async with proxy as through, SandboxClient(through, TOKEN) as client, client.lease(TASK) as session:
                assert (await session.reset(TASK, 5)).instruction == "seed 5, count 0"
                for number in range(1, 31):
                    assert (await session.step(CLICK)).observation.instruction == f"seed 5, count {number}"
                assert (await session.evaluate()).success and await session.oracle_action() == CLICK
                assert proxy.num_cut > 3
                assert pool.size - len(pool.free) == 1, "a repeated request for a session gets the same one"

    asyncio.run(main())


def test_a_remote_session_is_a_session() -> None:
    async def main() -> None:
        async with served() as (url, pool), SandboxClient(url, TOKEN) as client:
            async with client.lease(TASK, screenshots=False) as session:
                assert isinstance(session, Session) and session.environment == ""
                assert (await session.reset(TASK, 1)).screenshot is None and session.environment == "counting 1"
                session.screenshots = True
                assert (await session.reset(TASK, 2)).screenshot is not None
                transition = await session.step(ToolCall(name="execute_bash", arguments={"command": "ls"}))
                assert transition.observation.output == "one\ntwo\n" and await session.observe() == transition.observation
                assert (await session.step(Finished())).terminated
                await session.close()
                await session.close()
                with pytest.raises(SandboxError, match="closed"):
                    await session.step(CLICK)
            assert pool.errors == [] and len(pool.free) == pool.size

    asyncio.run(main())


@pytest.mark.slow
def test_signs_of_life_keep_a_session_while_the_agent_thinks() -> None:
    async def main() -> None:
        async with served() as (url, _), SandboxClient(url, TOKEN, ttl_s=5) as client, client.lease(TASK) as session:
            await session.reset(TASK, 1)
            await asyncio.sleep(6)
            assert (await session.step(CLICK)).observation.instruction == "seed 1, count 1"

    asyncio.run(main())


def test_errors_are_those_of_a_local_session() -> None:
    async def main() -> None:
        async with served() as (url, pool), SandboxClient(url, TOKEN) as client:
            with pytest.raises(BrowserCrashed, match="went away"):
                async with client.lease(TASK) as session:
                    await session.reset(TASK, 1)
                    await session.step(ToolCall(name="crash"))
            assert pool.errors == ["BrowserCrashed"]
            async with client.lease(TASK) as session:
                with pytest.raises(TaskError, match="nowhere"):
                    await session.reset(TASK.model_copy(update={"source": "nowhere"}), 1)
                with pytest.raises(SandboxError, match="reset"):
                    await session.step(CLICK)
                await session.reset(TASK, 3)
                assert (await session.step(CLICK)).observation.instruction == "seed 3, count 1", "the numbers are right again"
                with pytest.raises(AccessDenied, match="--oracles"):
                    await session.oracle_action()
            with pytest.raises(ZeroDivisionError):
                async with client.lease(TASK) as session:
                    raise ZeroDivisionError
            assert pool.errors == ["BrowserCrashed", "_Distrusted"]
        async with SandboxClient(url, TOKEN, retry_s=0.3) as client:
            with pytest.raises(ServerUnreachable, match="flywheel sandbox serve"):
                await client.open()

    asyncio.run(main())


def test_a_wrong_token_and_a_full_server() -> None:
    async def main() -> None:
        async with served(size=1, max_sessions=1) as (url, _):
            async with SandboxClient(url, "wrong-token-0123456789") as stranger:
                with pytest.raises(AccessDenied, match="token"):
                    await stranger.open()
            async with SandboxClient(url, TOKEN, wait_s=0.3) as client, client.lease():
                with pytest.raises(SandboxBusy):
                    await client.open()

    asyncio.run(main())


@pytest.mark.slow
def test_a_session_that_was_reclaimed_is_lost() -> None:
    async def main() -> None:
        async with served(max_lifetime_s=2.0) as (url, pool), SandboxClient(url, TOKEN) as client:
            session = await client.open(TASK)
            await session.reset(TASK, 1)
            await pool.is_whole()
            with pytest.raises(LeaseLost, match="lifetime"):
                await session.step(CLICK)
            await session.close()

    asyncio.run(main())


def test_leaving_in_the_middle_of_a_step_releases_at_once() -> None:
    async def main() -> None:
        async with served() as (url, pool), SandboxClient(url, TOKEN) as client:
            with pytest.raises(TimeoutError):
                async with client.lease(TASK) as session:
                    await session.reset(TASK, 1)
                    async with asyncio.timeout(0.3):
                        await session.step(Wait(seconds=60))
            assert len(pool.free) == pool.size and pool.errors == ["CancelledError"]

    asyncio.run(main())


@contextmanager
def served_elsewhere() -> Iterator[str]:
    """A server in a thread, for a client that waits."""
    thread = LoopThread("server")
    server = served()
    try:
        yield thread.run(server.__aenter__())[0]
    finally:
        thread.run(server.__aexit__(None, None, None))
        thread.close()


def test_without_an_event_loop() -> None:
    with served_elsewhere() as url, SyncSandbox(url, TOKEN) as sandbox:
        with sandbox.lease(TASK) as session:
            assert session.reset(TASK, 4).instruction == "seed 4, count 0"
            assert session.step(CLICK).observation == session.observe()
            assert not session.evaluate().success and session.environment == "counting 1"
            assert [one["session_id"] for one in sandbox.sessions()] == [session.session_id]
        assert sandbox.sessions() == []
        assert {task.source for task in sandbox.tasks("miniwob:quickstart")} == {"miniwob"}
        with pytest.raises(BrowserCrashed), sandbox.lease(TASK) as session:
            session.reset(TASK, 1)
            session.step(ToolCall(name="crash"))
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.sessions()


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with SyncSandbox(url, TOKEN, retry_s=0.2) as sandbox, pytest.raises(ServerUnreachable):
        sandbox.sessions()
