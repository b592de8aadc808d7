"""Policy servers for tests: ours on loopback in a thread of its own, and a plain one that plays what another kind of server would say."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from agent.policy.policy import Message, Policy, Prompt, Sampling
from models.engine.settings import EngineSettings
from models.http.config import HttpEngineConfig
from models.server.backend import ServedEngine
from models.server.serve import Beside, serving
from models.server.settings import ServerSettings
from sandbox.loop_thread import LoopThread

TOKEN = "0123456789-a-token"
TOKEN_VARIABLE = "TEST_POLICY_TOKEN"


@dataclass
class OurServer:
    url: str
    engine: ServedEngine
    end: Callable[[], None]

    def client(self, token: str = TOKEN) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {token}"}, timeout=60.0, verify=False, trust_env=False)


@contextmanager
def held(server: OurServer) -> Iterator[Callable[[], bool]]:
    """The engine writes nothing as long as the block lasts, so that what happens meanwhile happens in the middle of answers. Gives what
    tells whether anything waits for the engine, such as new weights."""
    engine, go_on, is_held = server.engine._engine, threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait(60.0)

    engine._post(hold)
    is_held.wait(60.0)
    try:
        yield lambda: bool(engine._inbox)
    finally:
        go_on.set()


@contextmanager
def our_server(
    folder: Path,
    settings: ServerSettings | None = None,
    *,
    engine_settings: EngineSettings | None = None,
    version: int = 0,
    beside: Beside | None = None,
) -> Iterator[OurServer]:
    """A real server on a checkpoint, for as long as the block lasts."""
    engine = ServedEngine.open(folder, settings=engine_settings, version=version)
    loop, stack = LoopThread("policy-server"), AsyncExitStack()
    try:

        async def start() -> tuple[str, Callable[[], None]]:
            return await stack.enter_async_context(serving(engine, TOKEN, settings, beside=beside))

        url, end = loop.run(start())

        async def call_end() -> None:
            end()

        yield OurServer(url, engine, lambda: loop.run(call_end()))
    finally:
        loop.run(stack.aclose())
        loop.close()
        engine.close()


Reply = tuple[int, dict[str, str], Any]


@dataclass
class PlayedServer:
    """Answers each request by `reply(method, path, body)`; remembers what it was asked."""

    reply: Callable[[str, str, Any], Reply]
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""

    def bodies(self, path: str) -> list[Any]:
        return [body for _, asked_path, body in self.asked if asked_path == path]


@contextmanager
def played_server(reply: Callable[[str, str, Any], Reply]) -> Iterator[PlayedServer]:
    played = PlayedServer(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET", None)

        def do_POST(self) -> None:
            self._answer("POST", json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, method: str, body: Any) -> None:
            played.asked.append((method, self.path, body))
            status, headers, data = played.reply(method, self.path, body)
            content = data.encode() if isinstance(data, str) else json.dumps(data).encode()
            self.send_response(status)
            for name, value in ({"content-length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        played.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield played
        finally:
            server.shutdown()
            thread.join()


def prompt(text: str = 'Find "Ok" then see', **sampling: Any) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),), sampling=Sampling(**({"max_new_tokens": 12} | sampling)))


def config(url: str, **fields: Any) -> HttpEngineConfig:
    return HttpEngineConfig(**({"base_url": url, "token_env": TOKEN_VARIABLE, "backoff_s": 0.0, "retries": 2} | fields))


def act(engine: Policy, *prompts: Prompt) -> Any:
    return asyncio.run(engine.act(prompts))


OK: dict[str, str] = {}


def chat_answer(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"} | choice]}


def flaky(*replies: Reply) -> Callable[[str, str, Any], Reply]:
    """After the probe, these one after the other, and then a good answer."""
    left = list(replies)

    def reply(method: str, path: str, body: Any) -> Reply:
        if path == "/v1/models":
            return 200, OK, {"data": [{"id": "m"}]}
        is_probe = body["max_tokens"] == 1
        return (200, OK, chat_answer()) if is_probe or not left else left.pop(0)

    return reply
