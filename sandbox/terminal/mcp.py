"""The MCP servers of a session, and what a call of one of their tools has. They run in the session's jail unless it says otherwise.
mcp_client.py starts and asks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from mcp_types import Tool


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
