"""One running MCP server and the SDK's client session with it, over the server's standard input and output, or by its address. The former
transport is ours and not the SDK's: that one starts its servers on the host only, and reads lines of any length.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    ContentBlock,
    EmbeddedResource,
    Implementation,
    PaginatedRequestParams,
    TextContent,
    TextResourceContents,
    Tool,
    jsonrpc_message_adapter,
)

from sandbox.http.serving import is_loopback, without_secrets
from sandbox.terminal.jail import Jail, JailProcess
from sandbox.terminal.mcp import McpServer
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import ConfigError, SandboxError

MAX_LINE_BYTES = 4 << 20
MAX_PAGES = 100
"""Of a list of tools, each as long as a line may be."""
HTTP_TIMEOUT_S = 30.0
"""For connecting and for sending a request."""
CLIENT = Implementation(name="flywheel", version="1")
T = TypeVar("T")


class McpConnection:
    """Made by `McpConnection.open`. The session lives in a task of its own: calls come from many, and it has to end where it began."""

    def __init__(self, name: str, server: McpServer) -> None:
        self._name, self._server = name, server
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._jailed: JailProcess | None = None
        self._hosted: asyncio.subprocess.Process | None = None
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None
        self._end = ""
        """Why the server says nothing more; empty while it may."""
        self.tools: dict[str, Tool] = {}
        self.server_version = ""

    @classmethod
    async def open(cls, name: str, server: McpServer, jail: Jail | None) -> McpConnection:
        """Without a jail, of a server that runs on the host or has an address. Raises ToolError, ConfigError, SandboxError."""
        connection = cls(name, server)
        try:
            connection._holder = asyncio.create_task(await connection._held(jail))
            connection._holder.add_done_callback(connection._holder_ended)
            session = await connection._session
            who = (await connection._ask("initialize", session.initialize())).server_info
            connection.server_version = f"{who.name} {who.version}"
            await connection._list_tools(session)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _list_tools(self, session: ClientSession) -> None:
        """Raises ToolError, also for a list that comes to no end."""
        cursor: str | None = ""
        for _ in range(MAX_PAGES):
            page = await self._ask("tools/list", session.list_tools(params=PaginatedRequestParams(cursor=cursor or None)))
            self.tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None:
                return
        raise ToolError(f"MCP server {self._name!r} lists its tools on more than {MAX_PAGES} pages")

    @property
    def is_alive(self) -> bool:
        return not self._end and not self._closing.is_set()

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """What a tool answered, as text. Raises ToolError, JailCrashed, SandboxTimeout."""
        result = await self._ask("tools/call", (await self._session).call_tool(tool, arguments))
        text = "\n".join(_text(part) for part in result.content)
        if result.is_error:
            raise ToolError(text or f"{tool} failed and said nothing")
        return text

    async def _held(self, jail: Jail | None) -> Coroutine[Any, Any, None]:
        """What holds the session."""
        if self._server.url:
            return self._hold_address()
        if self._server.runs_in == "host":
            return self._hold(*await self._start_here())
        if jail is None:
            raise ConfigError(
                f"MCP server {self._name!r} runs in a jail, which this machine does not have: `runs_in: host`, or give its address."
            )
        return self._hold(*await self._start_in(jail))

    def _holder_ended(self, holder: asyncio.Task[None]) -> None:
        """Nobody waits for a session that will not come."""
        if not self._session.done():
            self._session.set_exception(ToolError(f"MCP server {self._name!r} {self._end or 'was given up before it began'}"))

    async def _hold_address(self) -> None:
        try:
            async with (
                _http_client(self._server.url) as http,
                streamable_http_client(self._server.url, http_client=http) as (received, sent),
                ClientSession(received, sent, client_info=CLIENT) as session,
            ):
                self._session.set_result(session)
                await self._closing.wait()
        except Exception as error:  # a group of what the transport's tasks raised; the caller gets the SDK's error
            self._end = f"cannot be spoken to at {without_secrets(self._server.url)}: {_first(error)!r}"

    async def _start_in(self, jail: Jail) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        silence = os.open(os.devnull, os.O_WRONLY)
        try:
            self._jailed = await jail.spawn(self._server.command, environment=self._server.environment, stderr=silence)
        except SandboxError:
            raise
        except OSError as error:
            raise ToolError(f"MCP server {self._name!r} cannot be started in the jail: {error}") from error
        finally:
            os.close(silence)
        giving, taking = self._jailed.take_streams()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reading = asyncio.StreamReaderProtocol(reader)
        await loop.connect_read_pipe(lambda: reading, os.fdopen(taking, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(giving, "wb", 0))
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _start_here(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Outside of any jail, and ended with us however we end."""
        keeper = shutil.which("setpriv")
        command = [keeper, "--pdeathsig", "KILL", *self._server.command] if keeper else [*self._server.command]
        try:
            self._hosted = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.defpath, **self._server.environment},
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"MCP server {self._name!r} cannot be started on the host: {error}. Fix its command.") from error
        if self._hosted.stdout is None or self._hosted.stdin is None:  # both were asked for
            raise ConfigError(f"MCP server {self._name!r} was started without pipes.")
        return self._hosted.stdout, self._hosted.stdin

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The session, from its first message until `close`."""
        received, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write_stream, sent = anyio.create_memory_object_stream[SessionMessage](0)

        async def receive() -> None:
            with suppress(anyio.BrokenResourceError):  # the session is closed
                async with received:
                    try:
                        while line := await reader.readline():
                            await received.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                        self._end = "has ended"
                    except ValueError:  # not JSON-RPC, or a line over the limit
                        self._end = "wrote something that is not a JSON-RPC message"

        async def send() -> None:
            with suppress(ConnectionError):  # it reads no more; what it still says is taken
                async with sent:
                    async for item in sent:
                        writer.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                        await writer.drain()

        pumps = [asyncio.create_task(receive()), asyncio.create_task(send())]
        try:
            async with ClientSession(read_stream, write_stream, client_info=CLIENT) as session:
                self._session.set_result(session)
                await self._closing.wait()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            writer.close()

    async def _ask(self, method: str, request: Awaitable[T]) -> T:
        """The result of a request. Raises ToolError where the server answers with an error, not at all, or with something else;
        JailCrashed, SandboxTimeout."""
        try:
            async with asyncio.timeout(self._server.timeout_s):
                return await request
        except TimeoutError as error:
            await self.close()
            raise ToolError(f"MCP server {self._name!r} did not answer {method} within {self._server.timeout_s:g} s") from error
        except MCPError as error:
            if not self._end:
                raise ToolError(f"MCP server {self._name!r}: {error}") from error
            await self.close()
            if self._jailed is not None:
                await self._jailed.wait()
            raise ToolError(f"MCP server {self._name!r} {self._end}") from error
        except (ValueError, RuntimeError) as error:  # what the SDK makes of a result that does not follow the protocol or the tool's schema
            raise ToolError(f"MCP server {self._name!r} answered {method} with something else: {str(error)[:200]}") from error

    async def close(self) -> None:
        """Raises JailCrashed, SandboxTimeout where the jail goes away or hangs meanwhile."""
        self._closing.set()
        if self._holder is not None:
            await asyncio.wait([self._holder])
        if self._jailed is not None and not self._jailed.ended.done():
            await self._jailed.kill()
        if self._hosted is not None and self._hosted.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._hosted.pid, 9)
            await self._hosted.wait()


class _Limited(httpx2.AsyncByteStream):
    """What a server answers, of which no more is read than of a line."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > MAX_LINE_BYTES:
                raise httpx2.StreamError(f"an answer of more than {MAX_LINE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _limit(response: httpx2.Response) -> None:
    """Of a stream of events the SDK limits each."""
    response.headers.pop("content-encoding", None)  # none was accepted: what is compressed nevertheless stays so
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _Limited(cast(httpx2.AsyncByteStream, response.stream))


def _http_client(url: str) -> httpx2.AsyncClient:
    """A proxy for the web does not reach this machine. Raises OSError, ValueError where the environment's settings are wrong."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(HTTP_TIMEOUT_S, read=None),  # how long an answer may take is `timeout_s`
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [_limit]},
        trust_env=not is_loopback(urlsplit(url).hostname or ""),
    )


def _first(error: Exception) -> Exception:
    """Of a group of groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(part: ContentBlock) -> str:
    """One part of a result's content."""
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, EmbeddedResource):
        return part.resource.text if isinstance(part.resource, TextResourceContents) else str(part.resource.uri)
    return f"[{part.type} that is not text]"
