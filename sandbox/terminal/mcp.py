"""The MCP servers of a session: they are configured, and each is started by the first call that names it. They run in the
session's jail unless it says otherwise. How one is started and asked is in mcp_connection.py, which loads the official SDK: not before a
call needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.terminal.jail import Jail
from sandbox.terminal.output import cut
from sandbox.terminal.tool_errors import ToolError

if TYPE_CHECKING:
    from mcp_types import Tool

    from sandbox.terminal.mcp_connection import McpConnection

MAX_RESULT_CHARS = 16_000


class McpServer(BaseModel):
    """How a server is started, or where it is. One that runs on the host can do there whatever its user can, and one at an address receives
    what the agent says: name only servers that you trust."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[tuple[str, ...], Field(description="program, by absolute path in a jail, and its arguments")] = ()
    url: Annotated[str, Field(description="instead of a command: its address, for streamable HTTP", pattern=r"^(https?://\S+)?$")] = ""
    environment: Mapping[str, str] = {}
    runs_in: Literal["jail", "host"] = "jail"
    timeout_s: Annotated[float, Field(gt=0, le=600, description="for one answer")] = 30.0

    @model_validator(mode="after")
    def _is_one_of_two(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        return self


class McpCall(BaseModel):
    """The arguments of one call; without a tool, the server's tools are listed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: str
    tool: str = ""
    arguments: dict[str, Any] = {}


def described(tools: Iterable[Tool]) -> str:
    """Tools as an agent reads of them: what each does, and the schema of its arguments."""
    return "\n".join(f"{tool.name}: {tool.description or ''}\n  arguments: {json.dumps(tool.input_schema)}" for tool in tools)


class McpClient:
    """One session's servers, each started by the first call that names it."""

    def __init__(self, jail: Jail, servers: Mapping[str, McpServer]) -> None:
        self._jail, self._servers = jail, dict(servers)
        self._connections: dict[str, McpConnection] = {}

    async def execute(self, call: McpCall) -> str:
        """What the tool answered, as text. Raises ToolError, SandboxError."""
        connection = await self._connection(call.server)
        if not call.tool:
            return described(connection.tools.values()) or f"server {call.server!r} has no tools"
        if call.tool not in connection.tools:
            raise ToolError(f"server {call.server!r} has no tool {call.tool!r}; it has {', '.join(connection.tools) or 'none'}")
        return cut(await connection.call(call.tool, call.arguments), MAX_RESULT_CHARS)

    async def _connection(self, name: str) -> McpConnection:
        server = self._servers.get(name)
        if server is None:
            raise ToolError(f"there is no MCP server {name!r}; there are: {', '.join(self._servers) or 'none'}")
        from sandbox.terminal.mcp_connection import McpConnection

        connection = self._connections.get(name)
        if connection is None or not connection.is_alive:
            connection = self._connections[name] = await McpConnection.open(name, server, self._jail)
        return connection

    async def close(self) -> None:
        """May be called twice."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()
