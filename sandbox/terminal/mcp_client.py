"""McpClient: the running MCP servers of a session. How one is started and asked is in mcp_connection.py, which loads the official SDK: not
before a call needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandbox.terminal.jail import Jail
from sandbox.terminal.mcp import McpCall, McpServer, described
from sandbox.terminal.output import cut
from sandbox.terminal.tool_errors import ToolError

if TYPE_CHECKING:
    from sandbox.terminal.mcp_connection import McpConnection

MAX_RESULT_CHARS = 16_000


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
