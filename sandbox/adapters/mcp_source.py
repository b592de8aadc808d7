"""The tools of an MCP server as a task source: an agent is asked something, calls tools, and answers.

    SOURCE = mcp_source("clock", [McpTask(name="tokyo", server=McpServer(command=("mcp-server-time",), runs_in="host"), …)])

A session starts the server for each task that it runs; one at an address is connected to. A terminal's sessions have such tools beside
their own (sandbox/terminal/config.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sandbox.actions import ToolCall
from sandbox.adapters.adapted_session import BadAction, Seen
from sandbox.adapters.adapted_source import Playable, adapted_source, version_of
from sandbox.tasks.task_source import TaskSource
from sandbox.terminal.mcp import McpServer, described
from sandbox.terminal.tool_errors import ToolError
from warehouse.core.errors import SandboxError

if TYPE_CHECKING:
    from mcp_types import Tool

    from sandbox.terminal.mcp_connection import McpConnection

Facts = Mapping[str, Any]
MAX_LISTED_CHARS = 800
"""Of the tools in an instruction. The compact grammar has 960 tokens for a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """One call of a tool, and what it said."""

    tool: str
    arguments: Mapping[str, Any]
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an agent has done in an episode. `answer` is None until it has answered."""

    facts: Facts
    calls: tuple[Called, ...] = ()
    answer: str | None = None


def _no_facts(dice: random.Random) -> Facts:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTask:
    """`facts` draws an instance, as JSON, and `question` is asked of it (`str.format`). `verify` is asked after every call and answer: the
    episode ends with the first True, or with an answer. Where it raises anything but a SandboxError, the task is not solved. `oracle`: the
    next call, or the answer as a text; None where it has no idea."""

    name: str
    server: McpServer
    instruction: str
    verify: Callable[[Run], bool]
    question: str = ""
    facts: Callable[[random.Random], Facts] = _no_facts
    oracle: Callable[[Run], ToolCall | str | None] | None = None
    domain: str = "tools"
    max_steps: int = 20


def mcp_source(name: str, tasks: Sequence[McpTask], *, edition: str = "1", **more: Any) -> TaskSource:
    """`edition`: part of the tasks' identity; goes up with what the functions do. `more`: other parts of the TaskSource. Raises ConfigError
    for two tasks of one name."""
    playable = [_playable(each, edition) for each in tasks]
    return adapted_source(name, playable, environment=f"mcp {version('mcp')}", **more)


def _program(server: McpServer) -> list[str]:
    """What a server is, and not where: a folder or an address differs from host to host."""
    return [PurePath(server.command[0]).name, *server.command[1:]] if server.command else []


def _playable(task: McpTask, edition: str) -> Playable:
    return Playable(
        name=task.name,
        instruction=task.instruction,
        success_at=1.0,
        version=version_of("mcp", edition, task.instruction, task.question, _program(task.server)),
        make=lambda: McpEnvironment.started(task),
        domain=task.domain,
        max_steps=task.max_steps,
        has_oracle=task.oracle is not None,
    )


class McpEnvironment:
    """Satisfies Adapted; made by `started`. The server is restarted at each reset after a call: it may keep something between calls.
    One at an address is connected to again, and keeps what it keeps."""

    named: Mapping[str, Any] = {}
    takes_text = True

    def __init__(self, task: McpTask, connection: McpConnection) -> None:
        self._task, self._connection = task, connection
        self._run = Run(facts={})
        self._was_called = False

    @classmethod
    async def started(cls, task: McpTask) -> McpEnvironment:
        return cls(task, await _opened(task))

    @property
    def version(self) -> str:
        return f"{self._connection.server_version}; mcp {version('mcp')}"

    @property
    def tools(self) -> Collection[str]:
        return self._connection.tools

    async def reset(self, seed: int) -> Seen:
        if self._was_called or not self._connection.is_alive:
            await self._connection.close()
            self._connection = await _opened(self._task)
            self._was_called = False
        self._run = Run(facts=self._task.facts(random.Random(seed)))
        question = self._task.question.format(**self._run.facts)
        tools = tuple(self._connection.tools.values())
        return Seen(
            text=f"Tools:\n{described(tools)}",
            asked=f"{question}\n{listed(tools)}".strip(),
            content=json.dumps(
                [question, dict(self._run.facts)], sort_keys=True
            ),  # no tools: another version of the server describes others
        )

    async def step(self, action: Any) -> Seen:
        if isinstance(action, str):
            return self._judged(replace(self._run, answer=action), "", is_over=True)
        if not isinstance(action, ToolCall):
            raise BadAction(f"{action!r} is not a call: call one of the tools {', '.join(self.tools)}, or answer")
        called = await self._called(action)
        return self._judged(replace(self._run, calls=(*self._run.calls, called)), called.result, is_over=False)

    async def _called(self, call: ToolCall) -> Called:
        self._was_called = True  # also by a call that is cut off before it answers
        try:
            return Called(tool=call.name, arguments=call.arguments, result=await self._connection.call(call.name, dict(call.arguments)))
        except ToolError as error:
            if not self._connection.is_alive:
                raise SandboxError(f"The MCP server is gone: {error}") from error
            return Called(tool=call.name, arguments=call.arguments, result=f"error: {error}", is_error=True)

    def _judged(self, run: Run, text: str, *, is_over: bool) -> Seen:
        self._run = run
        is_solved, reason = self._verified(run)
        return Seen(text=text, reward=float(is_solved), is_over=is_over or is_solved, reason=reason)

    def _verified(self, run: Run) -> tuple[bool, str]:
        """Whether it is solved, and where `verify` fails on what an agent did, the error."""
        try:
            return bool(self._task.verify(run)), ""
        except SandboxError:  # of a verifier that asks elsewhere
            raise
        except Exception as error:
            return False, f"verify failed: {type(error).__name__}: {str(error)[:200]}"

    async def oracle(self) -> Any | None:
        return None if self._task.oracle is None else self._task.oracle(self._run)

    async def close(self) -> None:
        await self._connection.close()


def listed(tools: Collection[Tool]) -> str:
    """Names and arguments of as many tools as fit into MAX_LISTED_CHARS."""
    listed = [f"{tool.name}({', '.join(tool.input_schema.get('properties', {}))})" for tool in tools]
    while len(", ".join(listed)) > MAX_LISTED_CHARS:
        listed.pop()
    more = [f"{len(tools) - len(listed)} more"] if len(listed) < len(tools) else []
    return f"Tools: {', '.join([*listed, *more])}." if tools else ""


async def _opened(task: McpTask) -> McpConnection:
    from sandbox.terminal.mcp_connection import McpConnection

    try:
        return await McpConnection.open(task.name, task.server, None)
    except ToolError as error:  # at a start nobody has asked for anything wrong
        raise SandboxError(str(error)) from error
