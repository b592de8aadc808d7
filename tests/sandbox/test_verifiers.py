"""Tasks of ours in verifiers: its own command evaluates a model on them, by its taskset for OpenEnv's servers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.common.venv import python_of
from sandbox.http.tokens import Tokens
from sandbox.pool.pool import SessionPool
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from tests.sandbox.own_source import ROOT

VERIFIERS = ("verifiers[openenv]==0.4.0", "uv==0.13.8")
TOKEN = "token-of-verifiers-0123456789"
CONFIG = """
model = "scripted"
push = false
[env.taskset]
id = "openenv"
base_url = "{url}/openenv/miniwob/click-test-2"
resets = [{{seed = 1, screenshots = false}}, {{seed = 2, screenshots = false}}]
[env.player.harness]
id = "null"
[env.player.runtime]
type = "subprocess"
[client]
base_url = "{model}/v1"
api_key_var = "SCRIPTED_KEY"
"""


class Scripted(BaseHTTPRequestHandler):
    """A model that clicks the button `ONE`; its second conversation the other one, which is wrong."""

    protocol_version = "HTTP/1.1"
    num_asked = 0

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        wanted = "ONE" if type(self).num_asked == 0 else "TWO"
        type(self).num_asked += 1
        (button,) = [each for each in json.loads(asked["messages"][-1]["content"])["observation"]["elements"] if each["text"] == wanted]
        said = json.dumps({"kind": "click", "x": button["x_px"], "y": button["y_px"]})
        parts = [({"role": "assistant", "content": said}, None), ({}, "stop")]
        chunks = [
            {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}
            for choice in ({"index": 0, "delta": delta, "finish_reason": reason} for delta, reason in parts)
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def model() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_verifiers_evaluates_a_model_on_a_page_of_ours(model: str, tmp_path: Path) -> None:
    python = python_of(ROOT / ".bench" / "verifiers", VERIFIERS)

    async def evaluate() -> int | None:
        async with SessionPool(size=1) as pool, serving(pool, Tokens({"ann": TOKEN}), ServerSettings(max_sessions=1)) as url:
            address = url.replace("http://", f"http://any:{TOKEN}@")
            (tmp_path / "eval.toml").write_text(CONFIG.format(url=address, model=model))
            places = {"PATH": f"{python.parent}:{os.environ['PATH']}", "SCRIPTED_KEY": "none"}
            command = [str(python.with_name("vf-eval")), "@", "eval.toml", "--no-rich", "-c", "1", "-o", "out"]
            process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env={**os.environ, **places})
            return await process.wait()

    assert asyncio.run(evaluate()) == 0
    (traces,) = (tmp_path / "out").glob("*/traces.jsonl")
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    found = [trace["rewards"]["openenv_reward"]["score"] for row in rows for trace in row.get("traces", [row])]
    assert found == [1.0, -1.0], "as MiniWoB pays"
