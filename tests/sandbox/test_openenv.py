"""OpenEnv both ways: our server spoken to as its clients do, servers of that protocol as task sources, the real package at either end."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.protocol import State

from benchmarks.common.venv import python_of
from sandbox.actions import Click, Finished, ToolCall, TypeText, Wait
from sandbox.adapters.adapted_session import AdaptedSession, AdaptedTask
from sandbox.adapters.openenv_source import OpenEnvironment, OpenEnvTask, openenv_source
from sandbox.http.tokens import Tokens
from sandbox.pool.pool import SessionPool
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from tests.sandbox.other_servers import other_server
from tests.sandbox.own_source import ADAPTERS, ROOT, write_files_of
from warehouse.core.conformance import problems
from warehouse.core.errors import ConfigError, SandboxError
from warehouse.storage.screenshots import pictures

PEER = Path(__file__).parent / "peers" / "openenv_peer.py"
OPENENV = ("openenv-core==0.3.0",)
TOKEN = "token-of-openenv-0123456789"
Use = Callable[[str], Awaitable[Any]]


@pytest.fixture(autouse=True)
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The document's lake is a source, and nothing else that is not ours."""
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_files_of("adapters.md", tmp_path, ADAPTERS)
    SOURCES.use("lake.py:SOURCE", tmp_path)


def serve(use: Use, *, size: int = 1, **settings: Any) -> Any:
    """`await use(address with the token in it)` against a server with a real pool."""

    async def main() -> Any:
        limits = ServerSettings(max_sessions=size, max_sessions_per_client=size, **settings)
        async with SessionPool(size=size) as pool, serving(pool, Tokens({"ann": TOKEN}), limits) as url:
            return await use(url.replace("http://", f"http://any:{TOKEN}@"))

    return asyncio.run(main())


def socket_of(url: str, task: str = "lake/frozenlake-v1") -> connect:
    return connect(url.replace("http", "ws", 1) + f"/openenv/{task}/ws", proxy=None)


async def ask(connection: ClientConnection, message: Any) -> dict[str, Any]:
    await connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(await connection.recv())


def move(direction: str) -> dict[str, Any]:
    return {"type": "step", "data": {"kind": "type", "text": direction, "metadata": {}}}


def test_an_episode_is_played_by_the_messages_of_openenv() -> None:
    async def use(url: str) -> None:
        async with socket_of(url) as connection:
            first = (await ask(connection, {"type": "reset", "data": {"seed": 7, "episode_id": "mine", "level": 3}}))["data"]
            assert (first["reward"], first["done"]) == (None, False) and first["observation"]["output"].strip().startswith("[red:S]FFF")
            assert pictures.header(base64.b64decode(first["observation"]["screenshot"])).width_px == first["observation"]["width_px"]
            for direction in ("down", "down", "right", "down", "right"):
                answer = await ask(connection, move(direction))
                assert answer["type"] == "observation" and not answer["data"]["done"] and answer["data"]["reward"] == 0
            last = (await ask(connection, move("right")))["data"]
            assert (last["reward"], last["done"], last["metadata"]["truncated"]) == (1.0, True, False)
            state = await ask(connection, {"type": "state"})
            assert state == {"type": "state", "data": {"episode_id": "mine", "step_count": 6}}
            await connection.send(json.dumps({"type": "close"}))
            await connection.wait_closed()

    serve(use)


def test_the_same_seed_draws_the_same_instance_and_a_split_has_its_own() -> None:
    async def use(url: str) -> None:
        async with socket_of(url, "lake/frozenlake-v1") as connection:
            drawn = [(await ask(connection, {"type": "reset", "data": data}))["data"]["metadata"] for data in ({"seed": 5}, {"seed": 5})]
            assert drawn[0] == drawn[1]
            chosen = await ask(connection, {"type": "reset", "data": {"instance": 11}})
            assert chosen["data"]["metadata"] == {"instance": 11}
            refused = await ask(connection, {"type": "reset", "data": {"split": "holdout"}})
            assert "it has none of split 'holdout'" in refused["data"]["message"]

    serve(use)


WRONG = [
    ("", "INVALID_JSON"),
    ("{", "INVALID_JSON"),
    ("[" * 100_000, "INVALID_JSON"),
    (b'{"type": "reset"}', "INVALID_JSON"),
    ("[]", "UNKNOWN_TYPE"),
    ('"reset"', "UNKNOWN_TYPE"),
    ({}, "UNKNOWN_TYPE"),
    ({"type": ["reset"]}, "UNKNOWN_TYPE"),
    ({"type": "mcp", "data": {}}, "UNKNOWN_TYPE"),
    ({"type": "step", "data": {"kind": "click", "x": 1, "y": 1}}, "EXECUTION_ERROR"),
    ({"type": "step"}, "VALIDATION_ERROR"),
    ({"type": "step", "data": []}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"kind": "fly"}}, "VALIDATION_ERROR"),
    ({"type": "step", "data": {"kind": "click", "x": 1e400, "y": 1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"seed": 2**80}}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": "x"}, "VALIDATION_ERROR"),
    ({"type": "reset", "data": {"split": "all"}}, "VALIDATION_ERROR"),
]


def test_what_is_no_message_is_answered_and_the_session_goes_on() -> None:
    async def use(url: str) -> None:
        async with socket_of(url) as connection:
            for message, code in WRONG:
                answer = await ask(connection, message)
                assert (answer["type"], answer["data"]["code"]) == ("error", code), (message, answer)
            assert (await ask(connection, {"type": "reset"}))["type"] == "observation"

    serve(use)


def test_nobody_without_the_token_gets_a_session_and_nothing_else_is_a_socket() -> None:
    async def use(url: str) -> None:
        strangers = [
            url.replace(f"any:{TOKEN}@", ""),
            url.replace(TOKEN, TOKEN[:-1]),
            url.replace(TOKEN, "any").replace("any:", f"{TOKEN}:"),
        ]
        for address in strangers:
            with pytest.raises(InvalidStatus, match="403"):
                await socket_of(address)
        for task in ("lake", "lake/frozenlake-v1/ws"):
            with pytest.raises(InvalidStatus, match="403"):
                await socket_of(url, task)
        elsewhere = {"additional_headers": {"Host": "evil.example"}}
        with pytest.raises(InvalidStatus, match="403"):
            await connect(url.replace("http", "ws", 1) + "/openenv/lake/frozenlake-v1/ws", proxy=None, **elsewhere)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{url}/v1/sessions")).status_code == 401, "a password opens OpenEnv's addresses alone"
            schema = (await http.get(f"{url}/openenv/lake/frozenlake-v1/schema")).json()
            assert {"action", "observation", "state"} == set(schema) and "oneOf" in schema["action"]
            assert (await http.get(f"{url}/openenv/lake/frozenlake-v1/health")).json() == {"status": "healthy"}
            assert (await http.get(f"{url}/openenv/lake/none/metadata")).status_code == 422

    serve(use)


def test_a_lease_ends_with_its_connection_and_one_too_many_is_refused() -> None:
    async def use(url: str) -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(socket_of(url))
            await ask(first, {"type": "reset"})
            async with socket_of(url) as second:
                answer = await ask(second, {"type": "reset"})
                assert answer["data"]["code"] == "CAPACITY_REACHED" and "1 of 1 are on lease" in answer["data"]["message"]
            async with socket_of(url, "lake/none") as none:
                answer = await ask(none, {"type": "reset"})
                assert answer["data"]["code"] == "SESSION_ERROR" and "There is no task 'lake/none'" in answer["data"]["message"]
            await asyncio.sleep(1.2)  # longer than its time to live: the connection is its sign of life
            assert (await ask(first, move("down")))["type"] == "observation"
            first.transport.abort()  # without a farewell
        async with asyncio.timeout(10):
            while True:
                async with socket_of(url) as third:
                    if (await ask(third, {"type": "reset"}))["type"] == "observation":
                        return

    serve(use, max_wait_s=0.2, ttl_s=1)


def test_a_lease_that_has_ended_is_said_and_the_connection_ends() -> None:
    async def use(url: str) -> None:
        async with socket_of(url) as connection:
            await ask(connection, {"type": "reset"})
            await asyncio.sleep(1.2)
            answer = await ask(connection, move("down"))
            assert answer["data"]["code"] == "SESSION_ERROR" and "reached the longest lifetime" in answer["data"]["message"]
            async with asyncio.timeout(10):
                await connection.wait_closed()

    serve(use, max_lifetime_s=1.0)


def test_our_server_is_a_task_source_by_its_address() -> None:
    async def use(url: str) -> None:
        task = OpenEnvTask(
            url=f"{url}/openenv/lake/frozenlake-v1",
            instruction="Walk to the goal.",
            success_at=1.0,
            actions={key: {"kind": "type", "text": key} for key in ("left", "down", "right", "up")},
            text=lambda observation: str(observation["output"]),
            picture="screenshot",
            oracle=lambda observation: {"kind": "type", "text": "down"},
        )
        session, found = _session_of(openenv_source("theirs", [task], has_one_instance=True))
        first = await session.reset(found, 1)
        assert first.output.strip().startswith("[red:S]FFF") and [each.text for each in first.elements] == ["left", "down", "right", "up"]
        assert (first.width_px, first.height_px) == (400, 356), "their buttons are in the picture, ours below it"
        assert isinstance(await session.oracle_action(), Click)
        wrong = await session.step(ToolCall(name="act", arguments={"action": {"kind": "fly"}}))
        assert "is not an action of the environment: This is not an action" in wrong.info["ignored"]
        assert (await session.step(Wait())).info["ignored"].endswith("click a button or press a key: left, down, right, up")
        for word in ("down", "down", "right", "down", "right", "right"):
            transition = await session.step(TypeText(text=word))
        assert transition.terminated and transition.reward == 1.0
        assert (await session.reset(found, 2)).output == first.output
        await session.close()

    serve(use)


def _session_of(source: TaskSource) -> tuple[AdaptedSession, Task]:
    assert source.open_session is not None
    return source.open_session(None, None), next(iter(source.load_tasks().values()))


def test_a_connection_that_was_lost_is_made_again_at_the_next_reset() -> None:
    async def use(url: str) -> None:
        task = OpenEnvTask(url=f"{url}/openenv/lake/frozenlake-v1", instruction="i", success_at=1.0)
        environment = await OpenEnvironment.connected(task)
        first = await environment.reset(0)
        await environment.close()
        with pytest.raises(SandboxError, match="closed"):
            await environment.step({"kind": "wait"})
        assert (await environment.reset(0)).text == first.text
        await environment.close()

    serve(use)


def test_a_refused_token_is_in_no_error() -> None:
    async def use(url: str) -> None:
        wrong = TOKEN[::-1]
        task = OpenEnvTask(url=f"{url.replace(TOKEN, wrong)}/openenv/lake/frozenlake-v1", instruction="i", success_at=1.0)
        session, found = _session_of(openenv_source("theirs", [task]))
        with pytest.raises(SandboxError, match="401") as refused:
            await session.reset(found, 0)
        assert wrong not in str(refused.value) and "http://127.0.0.1:" in str(refused.value)
        with pytest.raises(ConfigError) as unfit:
            OpenEnvTask(url="http://any:key@localhost:8000?token=key", instruction="i", success_at=1.0)
        assert "key" not in str(unfit.value)

    serve(use)


def test_what_is_no_server_is_said() -> None:
    with pytest.raises(ConfigError, match="'localhost:8000' is not the address of an OpenEnv server"):
        OpenEnvTask(url="localhost:8000", instruction="i", success_at=1)

    async def play() -> None:
        task = OpenEnvTask(url="http://127.0.0.1:9", instruction="i", success_at=1)
        session, found = _session_of(openenv_source("gone", [task]))
        with pytest.raises(SandboxError, match="failed at starting 127-0-0-1: ConnectError"):
            await session.reset(found, 0)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "headers"), [("n" * 9000, {}), ("a", {"x": "y" * 9000}), ("a", {f"x-{number}": "y" for number in range(130)})]
)
def test_a_head_that_is_too_long_for_a_socket_is_answered(path: str, headers: dict[str, str]) -> None:
    async def use(url: str) -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with (
                asyncio.timeout(20),
                connect(url.replace("http", "ws", 1) + f"/openenv/{path}", proxy=None, additional_headers=headers),
            ):
                pass
        assert refused.value.response.status_code == 431

    serve(use)


def test_half_a_character_of_a_server_can_be_sent_on_and_stored() -> None:
    halves = json.dumps({"type": "observation", "data": {"observation": {"text": "a \ud800 b"}}})

    class Server:
        state = State.OPEN

        async def send(self, message: str) -> None: ...

        async def recv(self) -> str:
            return halves

        async def close(self) -> None: ...

    async def make() -> OpenEnvironment:
        environment = OpenEnvironment(OpenEnvTask(url="http://127.0.0.1:9", instruction="i", success_at=1), {}, "halves")
        environment._socket = Server()  # type: ignore[assignment]
        return environment

    async def play() -> None:
        session = AdaptedSession(lambda _: AdaptedTask(instruction="i", success_at=1, make=make, has_one_instance=True))
        seen = await session.reset(Task(source="halves", name="a", domain="games", max_steps=5), 0)
        assert seen.output == "a \ufffd b"
        await session.close()

    asyncio.run(play())


# ---- the real package -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openenv_python() -> Path:
    return python_of(ROOT / ".bench" / "openenv", OPENENV)


@pytest.fixture
def their_server(openenv_python: Path) -> Iterator[str]:
    with other_server([openenv_python, PEER, "serve"]) as url:
        yield url


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_server_of_the_real_package_keeps_what_sources_promise(their_server: str, tmp_path: Path) -> None:
    text = (tmp_path / "guesses.py").read_text()
    (tmp_path / "found.py").write_text(text.replace("http://localhost:8000", their_server).replace('"numbers"', '"found"'))
    SOURCES.use("found.py:SOURCE", tmp_path)
    assert problems(check_source(SOURCES["found"])) == []

    async def play() -> None:
        session, task = _session_of(SOURCES["found"])
        first = await session.reset(task, 3)
        assert "Find the number." in first.output and first.instruction.endswith('An action is JSON with these fields: {"word": "string"}.')
        assert (await session.reset(task, 3)).output == first.output != (await session.reset(task, 4)).output
        said = await session.step(TypeText(text="1"))
        assert said.info == {"reward": 0.0} and "higher" in said.observation.output
        wrong = await session.step(ToolCall(name="act", arguments={"action": {"number": 1}}))
        assert "is not an action of the environment: Invalid message" in wrong.info["ignored"]
        assert session.environment.startswith("Numbers ")
        low, high = 0, 1
        while low < high:
            action = await session.oracle_action()
            assert isinstance(action, ToolCall)
            transition = await session.step(action)
            low, high = map(int, re.findall(r"from (\d+) to (\d+)", transition.observation.output)[0])
        if not transition.terminated:
            transition = await session.step(Finished(answer=str(low)))
        assert transition.terminated and transition.reward == 1.0
        await session.close()

    asyncio.run(play())


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_client_of_the_real_package_plays_a_page_of_ours(openenv_python: Path) -> None:
    async def use(url: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            str(openenv_python), str(PEER), "play", f"{url}/openenv/miniwob/click-test", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return json.loads(out)

    row = serve(use)
    assert (row["instruction"], row["reward"], row["done"]) == ("Click the button.", 1.0, True)
    assert row["state"]["step_count"] == 1 and "This is not an action" in row["problem"]
    assert base64.b64decode(row["screenshot"]).startswith(b"\x89PNG")
