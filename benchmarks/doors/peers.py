"""Servers of others whose answers come in: an OpenEnv server that is a task source, and an MCP server whose tools an agent calls. Here they
are hostile. Nine in ten cases need no socket."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import random
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request as SocketRequest
from websockets.http11 import Response as SocketResponse
from websockets.protocol import State

from benchmarks import fuzz_imports
from benchmarks.doors.inputs import NO_OBJECTS, as_text, bomb, changed
from benchmarks.doors.player import SLOWEST_S, Player
from benchmarks.doors.requests import SOCKET_EVERY
from sandbox import wire
from sandbox.actions import Action, Click, Finished, Hotkey, ToolCall, TypeText
from sandbox.adapters.adapted_session import AdaptedSession, AdaptedTask
from sandbox.adapters.mcp_source import listed
from sandbox.adapters.openenv_source import OpenEnvironment, OpenEnvTask
from sandbox.tasks.task import Task
from sandbox.terminal.mcp import McpServer, described
from sandbox.terminal.mcp_connection import McpConnection
from sandbox.terminal.output import cut
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import FlywheelError

ANSWER_S = 0.5
"""So long an answer is waited for. Some never come."""


def hostile(dice: random.Random, answer: Any) -> str:
    """An answer, changed, cut off, or something else."""
    match dice.randrange(14):
        case 0:
            return bomb(dice).decode("latin-1").replace("\n", " ")
        case 1:
            return dice.choice(NO_OBJECTS[:-1])
    return as_text(dice, changed(dice, copy.deepcopy(answer), least=1))


SCHEMA = {"action": {"type": "object", "properties": {"word": {"type": "string"}, "metadata": {"type": "object"}}, "required": ["word"]}}
METADATA = {"name": "words", "description": "Say a word.", "version": "1"}
SHOWN = {
    "type": "observation",
    "data": {
        "observation": {"text": "Which word?", "screen": base64.b64encode(fuzz_imports.good_picture(0)).decode(), "left": 3},
        "reward": 0.0,
        "done": False,
    },
}
ERROR = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no such word"}}
ACTIONS: tuple[Action, ...] = (
    TypeText(text="plum"),
    Finished(answer="plum"),
    ToolCall(name="act", arguments={"action": {"word": "plum"}}),
    ToolCall(name="act", arguments={"action": [[[]]]}),
    Click(x=30, y=210),
    Hotkey(keys=("plum",)),
)
ASKED = Task(source="words", name="say", domain="games", max_steps=5)


class _NoSocket:
    """What an OpenEnvironment asks, without a server."""

    state = State.OPEN

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers

    async def send(self, _: str) -> None:
        """Nobody reads it."""

    async def recv(self) -> str:
        return self._answers.pop(0)

    async def close(self) -> None:
        self.state = State.CLOSED


@asynccontextmanager
async def openenv_elsewhere(folder: Path) -> AsyncIterator[Player]:
    answers: dict[str, list[str]] = {}
    """By the number in a case's address."""

    async def messages(socket: ServerConnection) -> None:
        number = str(socket.request.path if socket.request else "").split("/")[1]
        async for _ in socket:
            await socket.send(answers[number].pop(0))

    def pages(_: ServerConnection, request: SocketRequest) -> SocketResponse | None:
        _, number, what = (*request.path.split("/"), "")[:3]
        if what == "ws":
            return None
        body = answers[number].pop(0).encode("utf-8", "replace")
        headers = Headers({"content-type": "application/json", "content-length": str(len(body)), "connection": "close"})
        return SocketResponse(HTTPStatus.OK, "OK", headers, body)

    async with serve(messages, "127.0.0.1", 0, process_request=pages, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]

        async def play(number: int) -> str:
            dice = random.Random(f"openenv elsewhere {number}")
            is_local = number % SOCKET_EVERY != 0
            task = OpenEnvTask(
                url=f"http://127.0.0.1:{port}/{number}",
                instruction="Say it.",
                success_at=1.0,
                name="say",
                picture="screen",
                actions={"plum": {"word": "plum"}} if dice.random() < 0.3 else {},
            )
            plain = [SCHEMA, METADATA, SHOWN, dice.choice((SHOWN, SHOWN, ERROR)), SHOWN]
            wrong = dice.randrange(2 if is_local else 0, len(plain))
            texts = [hostile(dice, each) if place == wrong else json.dumps(each) for place, each in enumerate(plain)]

            async def make() -> OpenEnvironment:
                if not is_local:
                    return await OpenEnvironment.connected(task)
                environment = OpenEnvironment(task, SCHEMA["action"], "words 1")
                environment._socket = _NoSocket(texts[2:])  # type: ignore[assignment]
                return environment

            answers[str(number)] = texts
            adapted = AdaptedTask(instruction="Say it.", success_at=1.0, make=make, has_one_instance=True)
            try:
                return await _session(AdaptedSession(lambda _: adapted), dice)
            except Exception:
                raise AssertionError(f"openenv elsewhere {number}: {texts[wrong][:300]!r}: {traceback.format_exc()[-2500:]}") from None
            finally:
                answers.pop(str(number), None)

        yield Player(play, num_at_once=4)


async def _session(session: AdaptedSession, dice: random.Random) -> str:
    """Two steps; whatever is shown can be sent and stored. Raises what is none of our errors."""
    try:
        async with asyncio.timeout(SLOWEST_S):
            _storable(await session.reset(ASKED, 1))
            for _ in range(2):
                transition = await session.step(dice.choice(ACTIONS))
                _storable(transition.observation)
                wire.TRANSITION.to_json(transition)
    except FlywheelError as error:
        if not str(error).strip():
            raise ValueError("it is refused without a word") from error
        return "refused"
    finally:
        await session.close()
    return "answered"


def _storable(seen: Any) -> None:
    wire.OBSERVATION.to_json(seen)
    seen.output.encode()
    seen.instruction.encode()


TOOL = {
    "name": "keep",
    "description": "Keeps a note.",
    "inputSchema": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
    "outputSchema": {"type": "object", "properties": {"kept": {"type": "integer"}}},
}
RESULTS: dict[str, Any] = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}},
    "tools/list": {"tools": [TOOL, TOOL | {"name": "other"}]},
    "tools/call": {"content": [{"type": "text", "text": "1 kept"}], "structuredContent": {"kept": 1}, "isError": False},
}
ARGUMENTS = (
    {"note": "tea"},
    {"note": "x" * 100_000},
    {"note": "\ud800"},
    {"note": [[[[]]]]},
    {"\0": None},
    {},
    {"note": "../../etc/passwd"},
)
ENDLESS_PAGES = {"tools": [TOOL], "nextCursor": "more"}


def mcp_answer(number: int, asked: Any) -> str | None:
    """What the hostile server of a case says to a request; None to what is none. One of its answers is not what it should be."""
    dice = random.Random(f"mcp {number}")
    wrong = dice.choice([*RESULTS])
    method = asked.get("method")
    if "id" not in asked or method not in RESULTS:
        return None
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": RESULTS[method]}
    if method != wrong:
        return json.dumps(answer)
    if method == "tools/list" and dice.random() < 0.05:
        return json.dumps(answer | {"result": ENDLESS_PAGES})
    if dice.random() < 0.7:
        result = changed(dice, copy.deepcopy(RESULTS[method]), least=1)
        return as_text(dice, answer | {"result": result})
    return hostile(dice, answer)


class _Pipe:
    """The writer of a connection whose server is a function."""

    def __init__(self, number: int, reader: asyncio.StreamReader) -> None:
        self._number, self._reader = number, reader

    def write(self, line: bytes) -> None:
        answer = mcp_answer(self._number, json.loads(line))
        if answer is not None:
            self._reader.feed_data(answer.encode("utf-8", "surrogatepass") + b"\n")

    async def drain(self) -> None:
        """It is never full."""

    def close(self) -> None:
        self._reader.feed_eof()


class _Piped(McpConnection):
    number = 0

    async def _held(self, jail: Any) -> Any:
        reader = asyncio.StreamReader(limit=4 << 20)
        return self._hold(reader, _Pipe(self.number, reader))  # type: ignore[arg-type]


@asynccontextmanager
async def mcp_elsewhere(folder: Path) -> AsyncIterator[Player]:
    from sandbox.http.serving import Server, on_free_port

    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        said = mcp_answer(int(request.path_params["number"]), json.loads(await request.body()))
        return Response(status_code=202) if said is None else Response(said.encode("utf-8", "replace"), media_type="application/json")

    app = Starlette(routes=[Route("/{number}", answer, methods=["GET", "POST", "DELETE"])])
    async with on_free_port(Server(app, grace_s=1, lifespan="off")) as url:

        async def play(number: int) -> str:
            dice = random.Random(f"mcp call {number}")
            kind = type("Piped", (_Piped,), {"number": number}) if number % SOCKET_EVERY else McpConnection
            try:
                async with asyncio.timeout(SLOWEST_S):
                    return await _called(kind, McpServer(url=f"{url}/{number}", timeout_s=ANSWER_S), dice)
            except Exception:
                raise AssertionError(f"mcp elsewhere {number}: {traceback.format_exc()[-2500:]}") from None

        yield Player(play, num_at_once=16)


async def _called(kind: type[McpConnection], server: McpServer, dice: random.Random) -> str:
    """Raises what is none of our errors."""
    connection = None
    try:
        connection = await kind.open("notes", server, None)
        for text in (described(connection.tools.values()), listed([*connection.tools.values()]), connection.server_version):
            cut(text, 4000).encode()
        tool = dice.choice((*list(connection.tools)[:2], "keep"))
        cut(await connection.call(tool, copy.deepcopy(dice.choice(ARGUMENTS))), 4000).encode()
    except (ToolError, FlywheelError) as error:
        if not str(error).strip():
            raise ValueError("it is refused without a word") from error
        return "refused"
    finally:
        if connection is not None:
            await connection.close()
    return "answered"
