"""The tools of one session over one jail: which ToolCall goes where, and what is said when one cannot. The tools are the SDK functions of
UI-TARS-2: execute_bash, str_replace_editor, JupyterCI, Search, LinkReader, mcp. Each lives in a module of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.actions import ToolCall
from sandbox.terminal.bubblewrap import JailLimits
from sandbox.terminal.editor import Editor, EditorCall
from sandbox.terminal.jail import Jail
from sandbox.terminal.mcp import McpCall, McpServer
from sandbox.terminal.mcp_client import McpClient
from sandbox.terminal.python_tool import PythonCall, PythonTool
from sandbox.terminal.search import Library, LinkCall, LocalLibrary, SearchCall, execute_link, execute_search
from sandbox.terminal.shell import Terminal, TerminalLimits
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import SandboxError

NAMES = ("execute_bash", "str_replace_editor", "JupyterCI", "Search", "LinkReader", "mcp")
T = TypeVar("T", bound=BaseModel)


class BashCall(BaseModel):
    """The arguments of execute_bash: a command, "" to read more output, "C-c" to interrupt, "C-d" to end what runs' input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[str, Field(max_length=100_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """What a session's tools are made of."""

    jail: JailLimits = field(default_factory=JailLimits)
    terminal: TerminalLimits = field(default_factory=TerminalLimits)
    library: Library = field(default_factory=lambda: LocalLibrary({}))
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)


class Tools:
    """Made by `Tools.open`. One call at a time."""

    def __init__(self, jail: Jail, terminal: Terminal, settings: ToolSettings) -> None:
        self.jail, self.terminal = jail, terminal
        self.library = settings.library
        self._editor = Editor(jail.workspace)
        self._python = PythonTool(jail)
        self._mcp = McpClient(jail, settings.mcp_servers)
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Awaitable[str]]] = {
            "execute_bash": self._bash,
            "str_replace_editor": self._edit,
            "JupyterCI": self._run_python,
            "Search": self._search,
            "LinkReader": self._read_link,
            "mcp": self._call_mcp,
        }

    @classmethod
    async def open(cls, settings: ToolSettings | None = None, *, links: Mapping[str, str] | None = None) -> Tools:
        """A jail with an empty workspace and a shell in it. `links` as Jail.start takes them. Raises SandboxError."""
        settings = settings or ToolSettings()
        jail = await Jail.start(settings.jail, links=links)
        try:
            return cls(jail, await Terminal.open(jail, settings.terminal), settings)
        except BaseException:
            await jail.close()
            raise

    async def call(self, call: ToolCall) -> str:
        """What the tool printed; a text that begins with "error: " where it could not do what was asked. Raises SandboxError."""
        handler = self._handlers.get(call.name)
        if handler is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(NAMES)}"
        try:
            return await handler(call.arguments)
        except ToolError as error:
            return f"error: {error}"
        except SandboxError:  # an OSError too, by its second parent
            raise
        except OSError as error:
            said = error.strerror or str(error)
            return f"error: {said}" + (f": {error.filename}" if error.filename else "")

    async def _bash(self, arguments: Mapping[str, Any]) -> str:
        return (await self.terminal.execute(_parsed(BashCall, arguments).command)).text

    async def _edit(self, arguments: Mapping[str, Any]) -> str:
        return self._editor.execute(_parsed(EditorCall, arguments))

    async def _run_python(self, arguments: Mapping[str, Any]) -> str:
        return await self._python.execute(_parsed(PythonCall, arguments))

    async def _search(self, arguments: Mapping[str, Any]) -> str:
        return await execute_search(self.library, _parsed(SearchCall, arguments))

    async def _read_link(self, arguments: Mapping[str, Any]) -> str:
        return await execute_link(self.library, _parsed(LinkCall, arguments))

    async def _call_mcp(self, arguments: Mapping[str, Any]) -> str:
        return await self._mcp.execute(_parsed(McpCall, arguments))

    async def close(self) -> None:
        """End everything that runs, drop every file. May be called twice."""
        self._python.close()
        try:
            await self.terminal.close()
            await self.jail.close()  # with the servers in it: a jail that answers nothing cannot end them by itself
        finally:
            await self._mcp.close()


def _parsed(model: type[T], arguments: Mapping[str, Any]) -> T:
    """Raises ToolError that names each argument that does not fit."""
    try:
        return model.model_validate(dict(arguments))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors())
        raise ToolError(f"the arguments do not fit: {problems}. It takes {', '.join(model.model_fields)}") from error
