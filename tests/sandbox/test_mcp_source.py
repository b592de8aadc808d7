"""The tools of an MCP server as a task source: one of the official SDK's, by command and by address, and one from the registry."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.venv import python_of
from sandbox.actions import Finished, ToolCall, TypeText, Wait
from sandbox.adapters import adapted_session
from sandbox.adapters.mcp_source import McpTask, Run, listed, mcp_source
from sandbox.session import Session
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from sandbox.terminal.mcp import McpServer
from sandbox.terminal.tool_errors import ToolError
from tests.sandbox.own_source import ROOT
from warehouse.core.conformance import problems
from warehouse.core.errors import SandboxError, SandboxTimeout

NOTES = """
import os, sys
from mcp.server import MCPServer

server, kept = MCPServer("notes", version="7"), []

@server.tool()
def keep(note: str) -> str:
    "Keeps a note."
    kept.append(note)
    return f"{len(kept)} kept"

@server.tool()
def code(of: int) -> int:
    "The code of a number."
    return of * 37 % 1000

@server.tool()
def end() -> str:
    os._exit(1)

server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
"""
BY_COMMAND = McpServer(command=(sys.executable, "-c", NOTES, "stdio"), runs_in="host", timeout_s=60)


def codes(server: McpServer) -> TaskSource:
    """Two tasks: an answer that a tool gives, and a note that has to be kept."""

    def is_code(run: Run) -> bool:
        return run.answer == str(run.facts["of"] * 37 % 1000)

    def oracle(run: Run) -> ToolCall | str:
        return run.calls[-1].result if run.calls else ToolCall(name="code", arguments={"of": run.facts["of"]})

    def facts(dice: random.Random) -> dict[str, int]:
        return {"of": dice.randrange(100_000)}

    asks = McpTask(
        name="code", server=server, instruction="Answer.", question="What is the code of {of}?", verify=is_code, facts=facts, oracle=oracle
    )
    keeps = McpTask(
        name="keep",
        server=server,
        instruction="Keep the note tea.",
        verify=lambda run: any(call.tool == "keep" and call.arguments == {"note": "tea"} and not call.is_error for call in run.calls),
    )
    return mcp_source("codes", [asks, keeps])


def played(source: TaskSource, name: str, use: Callable[[Session, Task], Awaitable[None]]) -> None:
    async def run() -> None:
        assert source.open_session is not None
        session = source.open_session(None, None)
        try:
            await use(session, source.load_tasks()[name])
        finally:
            await session.close()

    asyncio.run(run())


async def reads_calls_and_answers(session: Session, task: Task) -> None:
    seen = await session.reset(task, 3)
    of = int(seen.instruction.split("code of ")[1].split("?")[0])
    assert seen.instruction == f"Answer.\nWhat is the code of {of}?\nTools: keep(note), code(of), end()."
    assert seen.output.startswith("Tools:\nkeep: Keeps a note.\n  arguments: {") and session.environment.startswith("notes 7; mcp ")  # type: ignore[attr-defined]
    for action in (Wait(), ToolCall(name="fly"), ToolCall(name="act", arguments={"action": {"tool": "keep"}})):
        transition = await session.step(action)
        assert "keep, code, end" in transition.info["ignored"] and not transition.terminated, "what is not a call changes nothing"
    wrong = await session.step(ToolCall(name="code", arguments={"of": "x"}))
    assert wrong.observation.output.startswith("error: ") and not wrong.terminated and wrong.info == {"reward": 0.0}
    said = await session.step(ToolCall(name="code", arguments={"of": of}))
    assert said.observation.output == str(of * 37 % 1000) and said.reward == 0
    ended = await session.step(Finished(answer=said.observation.output))
    assert (ended.terminated, ended.reward) == (True, 1.0)


def test_an_agent_reads_of_the_tools_calls_them_and_answers() -> None:
    played(codes(BY_COMMAND), "code", reads_calls_and_answers)


def test_an_answer_that_a_verifier_cannot_read_is_not_solved() -> None:
    async def use(session: Session, task: Task) -> None:
        await session.reset(task, 1)
        called = await session.step(ToolCall(name="code", arguments={"of": 1}))
        assert not called.terminated and called.info == {"reward": 0.0}, "there is no answer to read yet"
        ended = await session.step(Finished(answer="soon"))
        verdict = await session.evaluate()
        assert (ended.terminated, ended.reward, verdict.success) == (True, 0.0, False)
        assert verdict.reasons[-1] == "verify failed: ValueError: invalid literal for int() with base 10: 'soon'"

    def is_seven(run: Run) -> bool:
        return int(run.answer) == 7  # type: ignore[arg-type]

    seven = McpTask(name="seven", server=BY_COMMAND, instruction="Seven.", verify=is_seven)
    played(mcp_source("numbers", [seven], has_one_instance=True), "seven", use)


@pytest.mark.slow
def test_a_server_by_its_address_is_the_same() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", NOTES, "streamable-http", str(port)], stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s and process.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        played(codes(McpServer(url=f"http://127.0.0.1:{port}/mcp", timeout_s=60)), "code", reads_calls_and_answers)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_what_a_seed_draws_does_not_depend_on_how_the_server_describes_its_tools() -> None:
    asked: list[list[str]] = []

    async def use(session: Session, task: Task) -> None:
        asked.append([(await session.reset(task, seed)).instruction for seed in range(20)])

    other = McpServer(command=(sys.executable, "-c", NOTES.replace("The code of", "What code has"), "stdio"), runs_in="host", timeout_s=60)
    for server in (BY_COMMAND, other):
        played(codes(server), "code", use)
    assert asked[0] == asked[1] and len({*asked[0]}) == 20


def test_a_task_is_known_by_its_servers_command_wherever_that_is() -> None:
    def task_of(*command: str) -> Task:
        return codes(McpServer(command=command, runs_in="host")).load_tasks()["code"]

    assert task_of("/opt/clock", "--zone", "UTC") == task_of("/usr/bin/clock", "--zone", "UTC") != task_of("/opt/clock", "--zone", "CET")
    at = [codes(McpServer(url=f"http://localhost:{port}/mcp")).load_tasks()["code"] for port in (8000, 8001)]
    assert at[0] == at[1]


def test_an_instruction_lists_the_tools_that_fit_and_counts_the_others() -> None:
    from mcp_types import Tool  # slow to import, as is what loads it below

    tools = [Tool(name=f"tool{number}", input_schema={"type": "object", "properties": {"of": {}, "to": {}}}) for number in range(100)]
    text = listed(tools)
    assert text.startswith("Tools: tool0(of, to), tool1(of, to), ") and text.endswith(", 50 more.") and listed([]) == ""


@pytest.mark.slow
def test_a_task_of_doing_ends_when_it_is_done_and_the_next_episode_has_a_server_of_its_own() -> None:
    async def use(session: Session, task: Task) -> None:
        for _ in range(2):
            await session.reset(task, 1)
            assert (await session.step(ToolCall(name="keep", arguments={"note": "milk"}))).observation.output == "1 kept"
            transition = await session.step(ToolCall(name="keep", arguments={"note": "tea"}))
            assert (transition.terminated, transition.reward) == (True, 1.0)
        await session.reset(task, 1)
        assert [(await session.step(TypeText(text="done"))).reward, (await session.evaluate()).success] == [0.0, False]

    played(codes(BY_COMMAND), "keep", use)


@pytest.mark.slow
def test_a_call_that_was_cut_off_leaves_nothing_to_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = NOTES.replace("kept.append(note)", "kept.append(note)\n    note == 'slow' and __import__('time').sleep(60)")

    async def use(session: Session, task: Task) -> None:
        await session.reset(task, 1)
        with monkeypatch.context() as patched, pytest.raises(SandboxTimeout):
            patched.setattr(adapted_session, "TIMEOUT_S", 1.0)
            await session.step(ToolCall(name="keep", arguments={"note": "slow"}))
        await session.reset(task, 1)
        assert (await session.step(ToolCall(name="keep", arguments={"note": "milk"}))).observation.output == "1 kept"

    played(codes(McpServer(command=(sys.executable, "-c", slow, "stdio"), runs_in="host", timeout_s=60)), "keep", use)


@pytest.mark.slow
def test_a_server_that_ends_or_is_not_there_is_the_infrastructures_failure() -> None:
    async def use(session: Session, task: Task) -> None:
        await session.reset(task, 1)
        with pytest.raises(SandboxError, match="The MCP server is gone"):
            await session.step(ToolCall(name="end"))
        assert "Tools:" in (await session.reset(task, 1)).output

    played(codes(BY_COMMAND), "keep", use)
    nowhere = (McpServer(command=("/usr/bin/true",), runs_in="host"), McpServer(url="http://127.0.0.1:9/mcp", timeout_s=5))
    for server in nowhere:

        async def fails(session: Session, task: Task) -> None:
            with pytest.raises(SandboxError):
                await session.reset(task, 1)

        played(codes(server), "keep", fails)


@pytest.mark.parametrize(("variable", "value"), [("SSL_CERT_FILE", "/nowhere"), ("ALL_PROXY", "nonsense://127.0.0.1:9")])
def test_settings_that_make_no_connection_are_said_at_once(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)

    async def fails(session: Session, task: Task) -> None:
        async with asyncio.timeout(10):
            with pytest.raises(SandboxError, match=r"cannot be spoken to at https://mcp\.example/mcp: ") as refused:
                await session.reset(task, 1)
        assert "key" not in str(refused.value)

    played(codes(McpServer(url="https://any:key@mcp.example/mcp?token=key", timeout_s=5)), "keep", fails)


def test_an_endless_answer_is_cut_off_and_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    from sandbox.terminal.mcp_connection import McpConnection

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b" " * 65536)
                await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ToolError, match="an answer of more than 4194304 bytes"):
            await McpConnection.open("endless", McpServer(url=f"http://127.0.0.1:{port}/mcp"), None)
        server.close()

    asyncio.run(run())


LISTS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "lists", "version": "1"}},
        "tools/list": {"tools": [{"name": "one", "inputSchema": {"type": "object"}}], "nextCursor": "more"},
    }.get(asked["method"])
    if result:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_a_list_of_tools_that_comes_to_no_end_is_given_up() -> None:
    from sandbox.terminal.mcp_connection import McpConnection

    with pytest.raises(ToolError, match="lists its tools on more than 100 pages"):
        asyncio.run(McpConnection.open("lists", McpServer(command=(sys.executable, "-c", LISTS), runs_in="host", timeout_s=60), None))


def test_a_server_has_a_command_or_an_address() -> None:
    for wrong in ({}, {"command": ("x",), "url": "http://localhost/mcp"}, {"url": "file:///x"}):
        with pytest.raises(ValueError, match=r"either command or url|string_pattern_mismatch"):
            McpServer.model_validate(wrong)


# ---- a server from the registry -------------------------------------------------------------------------------------------------------

CITIES = {"Tokyo": "Asia/Tokyo", "Nairobi": "Africa/Nairobi", "Lima": "America/Lima", "Dubai": "Asia/Dubai", "Jakarta": "Asia/Jakarta"}
CLOCK_SOURCE = """
import sys
sys.path.append({root!r})
from tests.sandbox.test_mcp_source import clock
SOURCE = clock({python!r})
"""


def clock(python: str) -> TaskSource:
    """Times in other cities, by mcp-server-time."""

    def facts(dice: random.Random) -> dict[str, Any]:
        here, there = dice.sample(sorted(CITIES), 2)
        return {"here": here, "there": there, "time": f"{dice.randrange(24):02}:{dice.randrange(60):02}"}

    def call(run: Run) -> ToolCall:
        zones = {"source_timezone": CITIES[run.facts["here"]], "target_timezone": CITIES[run.facts["there"]]}
        return ToolCall(name="convert_time", arguments={**zones, "time": run.facts["time"]})

    hours = {"Tokyo": 9, "Nairobi": 3, "Lima": -5, "Dubai": 4, "Jakarta": 7}  # none of them has a summer time

    def is_right(run: Run) -> bool:
        moved = datetime.strptime(run.facts["time"], "%H:%M") + timedelta(hours=hours[run.facts["there"]] - hours[run.facts["here"]])
        return run.answer == f"{moved:%H:%M}"

    def oracle(run: Run) -> ToolCall | str:
        return call(run) if not run.calls else re.findall(r"T(\d\d:\d\d)", run.calls[-1].result.split('"target"')[1])[0]

    task = McpTask(
        name="elsewhere",
        server=McpServer(command=(python, "-m", "mcp_server_time", "--local-timezone", "UTC"), runs_in="host", timeout_s=120),
        instruction="Answer with the time as HH:MM.",
        question="It is {time} in {here}. What time is it in {there}?",
        facts=facts,
        verify=is_right,
        oracle=oracle,
    )
    return mcp_source("clock", [task])


@pytest.fixture
def time_python() -> Iterator[str]:
    yield str(python_of(ROOT / ".bench" / "mcp-server-time", ("mcp-server-time==2026.10.19",)))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_server_from_the_registry_keeps_what_sources_promise(time_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "clock.py").write_text(CLOCK_SOURCE.format(root=str(ROOT), python=time_python))
    SOURCES.use("clock.py:SOURCE", tmp_path)
    assert problems(check_source(SOURCES["clock"])) == []
