"""A client of the Model Context Protocol over standard input and output: initialize, tools/list, tools/call (JSON-RPC 2.0, one message a
line, as the public specification of 2025-06-18 has it). Which servers there are is configuration; they run in the session's jail unless
it says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.terminal.jail import Jail, JailProcess
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import ConfigError, SandboxError

PROTOCOL_VERSION = "2025-06-18"
MAX_LINE_BYTES = 4 << 20
MAX_RESULT_CHARS = 16_000


class McpServer(BaseModel):
    """How a server is started. One that runs on the host can do there whatever its user can: name only servers that you trust."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[tuple[str, ...], Field(min_length=1, description="program, by absolute path in a jail, and its arguments")]
    environment: Mapping[str, str] = {}
    runs_in: Literal["jail", "host"] = "jail"
    timeout_s: Annotated[float, Field(gt=0, le=600, description="for one answer")] = 30.0


class McpCall(BaseModel):
    """The arguments of one call; without a tool, the server's tools are listed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    tool: str = ""
    arguments: dict[str, Any] = {}


class McpClient:
    """One session's servers, each started by the first call that names it."""

    def __init__(self, jail: Jail, servers: Mapping[str, McpServer]) -> None:
        self._jail, self._servers = jail, dict(servers)
        self._connections: dict[str, _Connection] = {}

    async def execute(self, call: McpCall) -> str:
        """What the tool answered, as text. Raises ToolError, SandboxError."""
        connection = await self._connection(call.server)
        if not call.tool:
            return (
                "\n".join(
                    f"{tool['name']}: {tool.get('description', '')}\n  arguments: {json.dumps(tool.get('inputSchema', {}))}"
                    for tool in connection.tools
                )
                or f"server {call.server!r} has no tools"
            )
        names = [str(tool["name"]) for tool in connection.tools]
        if call.tool not in names:
            raise ToolError(f"server {call.server!r} has no tool {call.tool!r}; it has {', '.join(names) or 'none'}")
        result = await connection.ask("tools/call", {"name": call.tool, "arguments": call.arguments})
        text = "\n".join(_text(part) for part in result.get("content", []))
        if result.get("isError"):
            raise ToolError(text or f"{call.tool} failed and said nothing")
        num_over = len(text) - MAX_RESULT_CHARS
        return text if num_over <= 0 else f"{text[:MAX_RESULT_CHARS]}\n[… {num_over} characters left out …]"

    async def _connection(self, name: str) -> _Connection:
        server = self._servers.get(name)
        if server is None:
            raise ToolError(f"there is no MCP server {name!r}; there are: {', '.join(self._servers) or 'none'}")
        connection = self._connections.get(name)
        if connection is None or not connection.is_alive:
            connection = self._connections[name] = await _Connection.open(name, server, self._jail)
        return connection

    async def close(self) -> None:
        """May be called twice."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()


class _Connection:
    """A running server."""

    def __init__(self, name: str, server: McpServer) -> None:
        self._name, self._server = name, server
        self._numbers = count(1)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._jailed: JailProcess | None = None
        self._hosted: asyncio.subprocess.Process | None = None
        self.tools: list[dict[str, Any]] = []

    @classmethod
    async def open(cls, name: str, server: McpServer, jail: Jail) -> _Connection:
        connection = cls(name, server)
        try:
            await (connection._start_in(jail) if server.runs_in == "jail" else connection._start_here())
            capabilities: dict[str, Any] = {}
            client = {"name": "flywheel", "version": "1"}
            await connection.ask("initialize", {"protocolVersion": PROTOCOL_VERSION, "capabilities": capabilities, "clientInfo": client})
            await connection._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            cursor: str | None = ""
            while cursor is not None:
                page = await connection.ask("tools/list", {"cursor": cursor} if cursor else {})
                connection.tools += page.get("tools", [])
                cursor = page.get("nextCursor")
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_alive(self) -> bool:
        if self._writer is None:
            return False
        if self._jailed is not None:
            return self._jailed.exit_code is None
        return self._hosted is not None and self._hosted.returncode is None

    async def _start_in(self, jail: Jail) -> None:
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
        self._reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader = asyncio.StreamReaderProtocol(self._reader)
        await loop.connect_read_pipe(lambda: reader, os.fdopen(taking, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(giving, "wb", 0))
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)

    async def _start_here(self) -> None:
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
            raise ConfigError(f"MCP server {self._name!r} cannot be started on the host: {error}. Mend its command.") from error
        self._reader, self._writer = self._hosted.stdout, self._hosted.stdin

    async def ask(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request. Raises ToolError where the server answers with an error, not at all, or with something else;
        JailCrashed, SandboxTimeout."""
        number = next(self._numbers)
        try:
            async with asyncio.timeout(self._server.timeout_s):
                await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(parameters)})
                while True:
                    message = await self._receive()
                    if message.get("id") == number and "method" not in message:
                        break
                    if "id" in message and "method" in message:  # a request of the server's; we offer it nothing but an answer to ping
                        answer = {"result": {}} if message["method"] == "ping" else {"error": {"code": -32601, "message": "not supported"}}
                        await self._send({"jsonrpc": "2.0", "id": message["id"], **answer})
        except SandboxError:
            raise
        except TimeoutError as error:
            await self.close()
            raise ToolError(f"MCP server {self._name!r} did not answer {method} within {self._server.timeout_s:g} s") from error
        if "error" in message:
            raise ToolError(f"MCP server {self._name!r}: {_message(message['error'])}")
        result = message.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"MCP server {self._name!r} answered {method} with {str(result)[:100]}, which is no object")
        return result

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is None:
            raise ToolError(f"MCP server {self._name!r} is not running")
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise await self._end() from error

    async def _receive(self) -> dict[str, Any]:
        try:
            line = await self._reader.readline() if self._reader is not None else b""
            message = json.loads(line) if line else None
        except ValueError as error:  # not JSON, or a line over the limit
            await self.close()
            raise ToolError(f"MCP server {self._name!r} wrote something that is no JSON-RPC message") from error
        if message is None:
            raise await self._end()
        return message if isinstance(message, dict) else {}

    async def _end(self) -> ToolError:
        """What to say of a server that has gone. Raises JailCrashed where the whole jail has."""
        await self.close()
        if self._jailed is not None:
            await self._jailed.wait()
        return ToolError(f"MCP server {self._name!r} has ended")

    async def close(self) -> None:
        """Raises JailCrashed, SandboxTimeout where the jail goes away or hangs meanwhile."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
        if self._jailed is not None and not self._jailed.ended.done():
            await self._jailed.kill()
        if self._hosted is not None and self._hosted.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._hosted.pid, 9)
            await self._hosted.wait()


def _text(part: Any) -> str:
    """One part of a result's content."""
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text", ""))
    if isinstance(part, dict) and isinstance(part.get("resource"), dict):
        return str(part["resource"].get("text", part["resource"].get("uri", "")))
    return f"[{part.get('type', 'content') if isinstance(part, dict) else 'content'} that is no text]"


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
