"""Clients that are slow: none of them holds a server's connection, and none that comes along is cut off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sandbox.http import connection as http_connection
from sandbox.http.serving import Server, bind, running

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
SHORT_S = 0.3
PATIENCE_S = 60.0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads a body, and answers with its length; on /much, with more than the buffers hold; on /early, before it reads."""
    request = Request(scope, receive)
    if scope["path"] == "/early":
        return await Response("early", 401)(scope, receive, send)
    if scope["path"] == "/much":
        return await StreamingResponse(b"x" * 2**20 for _ in range(256))(scope, receive, send)  # type: ignore[func-returns-value]
    body = b"".join([part async for part in request.stream()])
    await Response(str(len(body)))(scope, receive, send)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    with bind("127.0.0.1", 0) as listener:
        server = Server(app, grace_s=1, lifespan="off")
        async with running(server, listener):
            yield server, listener.getsockname()


async def gone(server: Server) -> None:
    """Once no connection is left."""
    async with asyncio.timeout(PATIENCE_S):
        while server.server_state.connections:
            await asyncio.sleep(0.01)


async def answer(address: tuple[str, int], *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What a client reads until the server closes, which sends parts with pauses between them."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "BODY_S", "UNREAD_S"):
        monkeypatch.setattr(http_connection, name, SHORT_S)
    monkeypatch.setattr(http_connection, "BODY_BYTES_PER_S", 1000.0)


SLOW = {
    "nothing at all": [],
    "half a head": [b"GET / HTTP/1.1\r\nHo"],
    "a head by bytes": [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 500],
    "no request after the first": [HEAD + b"Content-Length: 0\r\n\r\n", b"\r\n"],
    "half a body": [HEAD + b"Content-Length: 9\r\n\r\n12"],
    "a body by bytes": [HEAD + b"Content-Length: 600\r\n\r\n", *[b"x"] * 500],
    "a body by chunks": [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 500],
    "a body that nobody wants": [b"POST /early HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600\r\n\r\n", *[b"x"] * 500],
}


@pytest.mark.parametrize("what", SLOW)
def test_a_slow_client_is_let_go(what: str, in_haste: None) -> None:
    async def main() -> bytes:
        async with served() as (server, address):
            said = await answer(address, *SLOW[what], pause_s=0.01)
            await gone(server)
        return said

    said = asyncio.run(main())
    assert b"408" in said or not said or what == "no request after the first", said


def test_an_answer_that_nobody_reads_is_given_up(in_haste: None) -> None:
    async def main() -> None:
        async with served() as (server, address):
            connection = socket.create_connection(address)
            connection.sendall(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            await gone(server)
            connection.close()

    asyncio.run(main())


def test_a_head_has_a_limit() -> None:
    async def main() -> list[bytes]:
        async with served() as (server, address):
            endless = [b"X-%d: %s\r\n" % (number, b"x" * 8000) for number in range(40)]
            said = [await answer(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n", *endless)]
            said.append(await answer(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-One: ", *[b"x" * 8000] * 40))
            await gone(server)
        return said

    assert all(b"431" in one or not one for one in asyncio.run(main()))


def test_who_comes_along_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that takes many times the limit, but keeps up the pace; several requests of one connection; a body behind an early answer."""
    monkeypatch.setattr(http_connection, "BODY_S", 0.2)
    monkeypatch.setattr(http_connection, "BODY_BYTES_PER_S", 1000.0)

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 65536
            await asyncio.sleep(0.02)

    async def main() -> list[tuple[int, str]]:
        async with served() as (_, (host, port)), httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
            answers = [await client.post("/", content=slowly())]
            answers += [await client.post("/", content=b"y" * size) for size in (0, 1, 300_000)]
            answers += [await client.post("/early", content=b"y" * 300_000), await client.get("/")]
        return [(one.status_code, one.text) for one in answers]

    assert asyncio.run(main()) == [(200, str(30 * 65536)), (200, "0"), (200, "1"), (200, "300000"), (401, "early"), (200, "0")]


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Nagle's algorithm is off on the connections of a listener: with it a request over a connection that is kept takes 40 ms."""

    async def main() -> int:
        seen: list[int] = []

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()
        return seen[0]

    assert asyncio.run(main()) == 1
