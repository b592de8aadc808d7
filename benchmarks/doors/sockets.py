"""What is not a request of HTTP's: messages of OpenEnv's protocol to a sandbox server, and bytes that are hardly HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks.doors.inputs import MARKS, NO_OBJECTS, PATHS, as_text, bomb, changed
from benchmarks.doors.player import SLOWEST_S, Player
from benchmarks.doors.requests import OTHER, SOCKET_EVERY, TOKEN
from benchmarks.doors.servers import quick_pool
from sandbox.http.hosts import KnownHosts

ENVIRONMENT = "/openenv/miniwob/click-test"
KINDS = ("observation", "state", "error")
CODES = ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR")


class Line:
    """A WebSocket to an application in this process."""

    def __init__(self, app: Any, path: str, headers: dict[str, str]) -> None:
        self._to: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "subprotocols": [],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        self._to.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(scope, self._to.get, self._from.put))

    async def heard(self) -> dict[str, Any] | None:
        """The next message of the application; None once it has ended. Raises what it raised, and TimeoutError."""
        coming = asyncio.ensure_future(self._from.get())
        await asyncio.wait({coming, self.task}, timeout=SLOWEST_S, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
        coming.cancel()
        if not self.task.done():
            raise TimeoutError
        self.task.result()
        return None if self._from.empty() else self._from.get_nowait()

    def say(self, content: str | bytes) -> None:
        self._to.put_nowait({"type": "websocket.receive", "text" if isinstance(content, str) else "bytes": content})

    async def end(self) -> None:
        self._to.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await asyncio.wait_for(self.task, SLOWEST_S)


def _messages() -> list[dict[str, Any]]:
    actions = (
        {"kind": "click", "x": 3, "y": 4},
        {"kind": "type", "text": "a"},
        {"kind": "tool", "name": "execute_bash", "arguments": {"command": "ls"}},
        {"kind": "hotkey", "keys": ["ctrl", "a"]},
    )
    resets: list[dict[str, Any]] = [{"seed": 3}, {"instance": 7, "screenshots": False}, {"episode_id": "e", "split": "train"}]
    return [*({"type": "step", "data": each} for each in actions), *({"type": "reset", "data": each} for each in resets), {"type": "state"}]


MESSAGES = _messages()


@asynccontextmanager
async def openenv_server(folder: Path) -> AsyncIterator[Player]:
    """Tasks of a sandbox server, offered as OpenEnv's. Nine in ten cases are messages on a connection that goes on from case to case."""
    from sandbox.http.serving import Server, on_free_port
    from sandbox.http.tokens import Tokens
    from sandbox.server.app import create_app
    from sandbox.server.settings import ServerSettings

    settings = ServerSettings(max_wait_s=1, ttl_s=600, max_sessions_per_client=4)
    app, leases = create_app(quick_pool(6), Tokens({"ours": TOKEN, "theirs": OTHER}), settings)
    async with on_free_port(Server(app, grace_s=1, socket_bytes=1 << 20)) as url:
        played = _OpenEnv(KnownHosts(app), leases, url)
        try:
            yield Player(played.play, played.after)
        finally:
            await played.end()


class _OpenEnv:
    def __init__(self, app: Any, leases: Any, url: str) -> None:
        self._app, self._leases, self._url = app, leases, url
        self._line: Line | None = None

    async def play(self, number: int) -> str:
        dice = random.Random(f"openenv server {number}")
        if number % SOCKET_EVERY == 0:
            return await self._connects(number, dice)
        line = await self._open()
        content = self._content(dice)
        (lease,) = self._leases.of("ours")
        num_steps, said = lease.journal.num_steps, f"openenv server {number}: {content[:300]!r}"
        line.say(content)
        try:
            answer = await line.heard()
        except TimeoutError:
            raise AssertionError(f"{said}: no answer in {SLOWEST_S:g} s") from None
        except Exception:
            self._line = None
            raise AssertionError(f"{said}: {traceback.format_exc()[-2500:]}") from None
        if answer is None or answer["type"] == "websocket.close":
            self._line = None
            if '"close"' not in str(content):
                raise AssertionError(f"{said}: the connection was closed by {answer}")
            await line.task
            return "answered"
        what = checked(said, answer["text"])
        if what == "refused" and lease.journal.num_steps != num_steps:
            raise AssertionError(f"{said}: refused, and yet it was a step: {answer['text'][:300]}")
        return what

    async def _open(self) -> Line:
        if self._line is None:
            self._line = Line(self._app, f"{ENVIRONMENT}/ws", {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}"})
            accepted = await self._line.heard()
            if accepted is None or accepted["type"] != "websocket.accept":
                raise AssertionError(f"a plain connection is answered with {accepted}")
            self._line.say('{"type": "reset", "data": {"seed": 1}}')
            started = await self._line.heard()
            if started is None or '"observation"' not in started["text"][:40]:
                raise AssertionError(f"a plain reset is answered with {str(started)[:300]}")
        return self._line

    def _content(self, dice: random.Random) -> str | bytes:
        match dice.randrange(20):
            case 0:
                data = bomb(dice)[: 1 << 20]
                return data if dice.random() < 0.3 else data.decode("latin-1")
            case 1:
                return dice.choice((*NO_OBJECTS, *MARKS))
        message = json.loads(json.dumps(dice.choice(MESSAGES)))
        text = as_text(dice, changed(dice, message))
        return text.encode() if dice.random() < 0.05 else text

    async def _connects(self, number: int, dice: random.Random) -> str:
        """A connection of its own, through the socket."""
        place = dice.choice((ENVIRONMENT, ENVIRONMENT, *(f"/openenv/{dice.choice(PATHS)}/{dice.choice(PATHS)}" for _ in range(2))))
        wrong = ("", "Bearer", f"Bearer {TOKEN[:-1]}", "Basic " + base64.b64encode(b"any:none").decode(), "Basic \xff")
        right = (f"Bearer {TOKEN}", "Basic " + base64.b64encode(f"any:{TOKEN}".encode()).decode())
        is_let_in = dice.random() < 0.6
        headers = {"authorization": dice.choice(right if is_let_in else wrong)}
        if dice.random() < 0.1:
            headers["host"], is_let_in = "evil.example", False
        content, said = self._content(dice), f"openenv server {number}: {place[:200]} {headers}"
        try:
            address = f"{self._url.replace('http', 'ws', 1)}{place}/ws"
            async with asyncio.timeout(SLOWEST_S), connect(address, additional_headers=headers, proxy=None) as socket:
                await socket.send(content)
                answer = str(await socket.recv())
        except TimeoutError:
            raise AssertionError(f"{said}: no answer in {SLOWEST_S:g} s") from None
        except (WebSocketException, OSError, ValueError, UnicodeError):
            return "refused"
        if not is_let_in:
            raise AssertionError(f"{said}: let in, and answered {answer[:300]}")
        return checked(said, answer)

    async def after(self) -> None:
        await self.end()
        await self._open()
        await self.end()
        for _ in range(200):
            if not self._leases.of("ours"):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"leases of connections that have ended: {[lease.session_id for lease in self._leases.of('ours')]}")

    async def end(self) -> None:
        line, self._line = self._line, None
        if line is not None and not line.task.done():
            await line.end()


def checked(said: str, text: str) -> str:
    """What an answer of OpenEnv's protocol says. Raises AssertionError for one that is none."""
    answer = json.loads(text)
    if answer["type"] not in KINDS or not isinstance(answer["data"], dict) or "Traceback" in text or "root:x:0" in text:
        raise AssertionError(f"{said}: {text[:500]}")
    if answer["type"] != "error":
        return "answered"
    if answer["data"]["code"] not in CODES or not answer["data"]["message"].strip():
        raise AssertionError(f"{said}: {text[:500]}")
    return "refused"


HEADS = (
    b"GET / HTTP/1.1",
    b"POST /x HTTP/1.1",
    b"GET /\x00 HTTP/1.1",
    b"GET http://evil.example/ HTTP/1.1",
    b"GET //evil.example/../x HTTP/1.1",
    b"G\xc3\x89T / HTTP/1.1",
    b"GET / HTTP/9.9",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"CONNECT 127.0.0.1:22 HTTP/1.1",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /",
    b"",
)
FIELDS = (
    b"content-length: 5",
    b"content-length: 6",
    b"content-length: -1",
    b"content-length: 99999999999999999999",
    b"content-length: 5, 5",
    b"transfer-encoding: chunked",
    b"transfer-encoding: chunked, identity",
    b"transfer-encoding: x",
    b"connection: upgrade\r\nupgrade: websocket",
    b"connection: upgrade\r\nupgrade: h2c",
    b"expect: 100-continue",
    b"x: " + b"y" * 70_000,
    b": empty",
    b"no colon",
    b" folded: x",
    b"x\x00: y",
    b"host: evil.example",
    b"authorization: Bearer \xff\xfe",
    b"cookie: " + b"a=b; " * 2000,
    b"x-forwarded-host: evil.example",
)
BODIES = (
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nx",
    b"-1\r\nx\r\n",
    b"5;" + b"e" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"",
)


@asynccontextmanager
async def http_itself(folder: Path) -> AsyncIterator[Player]:
    """Bytes to a socket of ours, behind which an application reads every body and answers."""
    from sandbox.http.serving import Server, on_free_port

    async def answer(request: Request) -> Response:
        try:
            return PlainTextResponse(f"{len(await request.body())} bytes")
        except ClientDisconnect:
            return PlainTextResponse("the body did not come", 400)

    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])])
    async with on_free_port(Server(app, grace_s=1, lifespan="off")) as url, httpx.AsyncClient(trust_env=False, verify=False) as client:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are a line for each case
        host, port = url.removeprefix("http://").split(":")

        async def play(number: int) -> str:
            dice = random.Random(f"http itself {number}")
            data = raw_request(dice)
            said = f"http itself {number}: {data[:200]!r}"
            try:
                async with asyncio.timeout(SLOWEST_S):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(data)
                    writer.write_eof()
                    answer = await reader.read(1 << 20)
                    writer.close()
            except TimeoutError:
                raise AssertionError(f"{said}: neither answered nor closed in {SLOWEST_S:g} s") from None
            except OSError:
                return "closed"
            if not answer:
                return "closed"
            status = int(answer.split()[1])
            if not answer.startswith(b"HTTP/1.") or status >= 500 or b"evil.example" in answer[: answer.find(b"\r\n\r\n")]:
                raise AssertionError(f"{said}: {answer[:300]!r}")
            return "answered" if status < 400 else "refused"

        async def after() -> None:
            if (plain := await client.get(f"{url}/x")).text != "0 bytes":
                raise AssertionError(f"a plain request is answered with {plain.text[:300]!r}")

        yield Player(play, after)


def raw_request(dice: random.Random) -> bytes:
    fields = [*dice.sample(FIELDS, dice.randrange(4))]
    if dice.random() < 0.8:
        fields.insert(dice.randrange(len(fields) + 1), b"host: 127.0.0.1")
    head = dice.choice(HEADS[:2]) if dice.random() < 0.5 else dice.choice(HEADS)
    data = bytearray(b"\r\n".join([head, *fields]) + b"\r\n\r\n" + dice.choice(BODIES))
    for _ in range(dice.choice((0, 0, 0, 1, 8)) if data else 0):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.1 else data)
