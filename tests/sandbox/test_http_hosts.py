"""The names under which a server answers: what DNS rebinding needs is refused before anything behind it runs."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from starlette.responses import PlainTextResponse

from sandbox.http.hosts import KnownHosts
from sandbox.http.serving import Server, address_of, bind, running

OURS = [
    "localhost",
    "LOCALHOST:80",
    "localhost.:8431",
    "127.0.0.1",
    "127.0.0.1:8431",
    "[::1]:8431",
    "[::1]",
    "10.1.2.3:80",
    "Wheel.example:80",
]
OTHERS = [
    "",
    "evil.example",
    "evil.example:8431",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:80@localhost",
    "[::1",
    "[::1]evil",
    "[evil.example]:80",
    "localhost:80:80",
    "localhost:x",
    "127.0.0.1/",
    ":8431",
    "wheel.example.evil",
    "localhost\x00",
    "localhos\u0301t",
    "localhost, evil.example",
    "xn--localhost-",
    "localhost:\u0663",
]


@pytest.mark.parametrize("host", OURS)
def test_own_names_and_addresses_are_answered(host: str) -> None:
    assert KnownHosts(PlainTextResponse("in"), ["wheel.example."]).allows(host)


@pytest.mark.parametrize("host", OTHERS)
def test_other_names_are_not(host: str) -> None:
    assert not KnownHosts(PlainTextResponse("in"), ["wheel.example"]).allows(host)


def test_a_server_answers_for_its_own_names_only() -> None:
    """Over a socket: by name, by several `Host` lines, by none (HTTP/1.0)."""

    async def main() -> tuple[list[int], str, list[bytes]]:
        with bind("127.0.0.1", 0) as listener:
            server = Server(PlainTextResponse("in"), grace_s=1, lifespan="off", hosts=["wheel.example"])
            async with running(server, listener), httpx.AsyncClient(base_url=address_of(listener), trust_env=False) as client:
                hosts = ["localhost", "wheel.example:443", "evil.example", f"evil.example:{listener.getsockname()[1]}"]
                answers = [await client.get("/", headers={"host": host}) for host in hosts]
                heads = [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"]
                raw = [await asyncio.to_thread(_first_line, listener.getsockname(), head) for head in heads]
        return [answer.status_code for answer in answers], answers[-1].text, raw

    statuses, text, raw = asyncio.run(main())
    assert statuses == [200, 200, 421, 421]
    assert "evil.example" in text and "--allow-host" in text
    assert all(line.split()[1] in (b"400", b"421") for line in raw), raw


def _first_line(address: tuple[str, int], head: bytes) -> bytes:
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head)
        return connection.makefile("rb").readline()
