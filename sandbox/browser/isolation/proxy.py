"""Proxy: the only way out of a web session's browser. An HTTP proxy on loopback, one a session, that asks for credentials only that
session has, and connects to nothing but what the session's policy names. What is allowed is decided in policy.py.

Names are resolved here and nowhere else, and every address is looked at before it is connected to, so a name that leads to this machine
or into a private network is refused whatever the policy says of the name, unless the task itself names that host and port. Plain HTTP is
forwarded one request a connection; everything else (https, WebSockets) comes as CONNECT and is passed on byte by byte.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sandbox.browser.isolation.policy import NetworkPolicy, Way, is_public
from sandbox.tasks.page_task import Connect

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

MAX_HEAD_BYTES = 64 * 1024
CHUNK_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 15.0

_HOP_HEADERS = {"connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "upgrade"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a session's browser must show to its proxy."""

    username: str
    password: str

    @property
    def header(self) -> str:
        return "Basic " + b64encode(f"{self.username}:{self.password}".encode()).decode()


class Outside:
    """The way to other machines."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """Addresses of a host. Raises OSError for an unknown name."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    async def dial(self, address: str, port: int) -> Stream:
        """Raises OSError."""
        return await asyncio.open_connection(address, port)


class _Refused(Exception):
    """A request that gets an error answer: (status, why)."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


class Proxy:
    """`await start()`, hand `port` and `credentials` to the browser, `await close()`. `on_refused` hears of every refused address."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        connect: Connect | None = None,
        on_refused: Callable[[str], None] | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.credentials = Credentials(username=secrets.token_hex(8), password=secrets.token_hex(16))
        self.port = 0
        self._policy = policy
        self._connect = connect
        self._on_refused = on_refused or (lambda _: None)
        self._outside = outside or Outside()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket, which is the browser's loopback."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_HEAD_BYTES)
        self.port = int(listener.getsockname()[1])

    async def close(self) -> None:
        """End every connection; may be called twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                if hmac.compare_digest(request.header("proxy-authorization").encode(), self.credentials.header.encode()):
                    await self._answer(request, (reader, writer))
                    return
                writer.write(_response("407 Proxy Authentication Required", 'Proxy-Authenticate: Basic realm="session"\r\n'))
                await writer.drain()
        except _Refused as refusal:
            with suppress(OSError):
                writer.write(_response(refusal.status, "Connection: close\r\n", refusal.why.encode()))
                await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # a client or server that went away: the page sees a broken connection
        finally:
            writer.close()

    async def _answer(self, request: _Request, client: Stream) -> None:
        is_tunnel = request.method == "CONNECT"
        address = f"//{request.target}" if is_tunnel else request.target
        try:
            parts = urlsplit(address)
            host, port = parts.hostname or "", parts.port or (443 if is_tunnel else 80)
        except ValueError as error:
            raise _Refused("400 Bad Request", "The address is malformed.") from error
        if not host or (not is_tunnel and parts.scheme != "http"):
            raise _Refused("400 Bad Request", "The address has no host.")
        way = self._policy.way(host, port)
        if way is Way.SITE and not is_tunnel:
            answer = self._policy.site_answer(request.target)
            head = f"Content-Type: {answer.content_type}\r\nCache-Control: max-age=3600\r\nConnection: close\r\n"
            client[1].write(_response("200 OK" if answer.status == 200 else "404 Not Found", head, answer.body))
            await client[1].drain()
            return
        upstream = await self._dial(way, host, port)
        try:
            if is_tunnel:
                client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _relay(client, upstream)
            else:
                await _forward(request, client, upstream)
        finally:
            upstream[1].close()

    async def _dial(self, way: Way, host: str, port: int) -> Stream:
        name = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if way is Way.TERMINAL and self._connect is not None:
                    return await self._connect(port)
                if way in (Way.OUTSIDE, Way.NAMED):
                    addresses = await self._outside.resolve(host, port)
                    if addresses and (way is Way.NAMED or all(is_public(address) for address in addresses)):
                        return await self._outside.dial(addresses[0], port)
        except (OSError, TimeoutError) as error:
            raise _Refused("502 Bad Gateway", f"{name} does not answer.") from error
        self._on_refused(name)
        raise _Refused("403 Forbidden", f"{name} is not allowed in this session.")


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    """The head of a request; None at the end of the stream. Raises _Refused where it is not one."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    except asyncio.LimitOverrunError as error:
        raise _Refused("431 Request Header Fields Too Large", "The request's head is too long.") from error
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused("400 Bad Request", "The request line is malformed.")
    headers = tuple((key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines))
    return _Request(method=words[0], target=words[1], headers=headers)


async def _forward(request: _Request, client: Stream, upstream: Stream) -> None:
    """One request and its answer. The client's next request may be for another host, so the connection ends with this one."""
    if request.header("transfer-encoding"):
        raise _Refused("411 Length Required", "A request's body needs a length.")
    parts = urlsplit(request.target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [f"{key}: {value}" for key, value in request.headers if key.lower() not in _HOP_HEADERS]
    upstream[1].write("\r\n".join([f"{request.method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1"))
    length = request.header("content-length")
    sending = asyncio.ensure_future(_copy(client[0], upstream[1], int(length) if length.isdigit() else 0))
    try:
        head = await upstream[0].readuntil(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        kept = [line for line in lines if line.partition(":")[0].strip().lower() not in _HOP_HEADERS]
        client[1].write("\r\n".join([status, *kept, "Connection: close", "", ""]).encode("latin-1"))
        lengths = [line.partition(":")[2].strip() for line in kept if line.lower().startswith("content-length:")]
        await _copy(upstream[0], client[1], int(lengths[0]) if lengths and lengths[0].isdigit() else None)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise _Refused("502 Bad Gateway", "The answer is not HTTP.") from error
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _relay(first: Stream, second: Stream) -> None:
    """Bytes in both directions until either side ends."""
    copies = [asyncio.ensure_future(_copy(first[0], second[1])), asyncio.ensure_future(_copy(second[0], first[1]))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, num_bytes: int | None = None) -> None:
    """So many bytes, or all there are."""
    left = num_bytes
    while left is None or left > 0:
        chunk = await reader.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
        if not chunk:
            return
        writer.write(chunk)
        await writer.drain()
        left = None if left is None else left - len(chunk)


def _response(status: str, headers: str = "", body: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body
