"""A server that gives prepared answers by route, in order, as model providers' APIs do; and pictures of screens. The standard library only:
it is used in the venvs of the libraries whose logs are made (make_logs.py)."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

WIDTH, HEIGHT = 320, 200


def screen(number: int) -> bytes:
    """A PNG of one colour, WIDTH by HEIGHT."""
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((number * 37 % 256, 90, 160)) * WIDTH) * HEIGHT
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def base64_of(number: int) -> str:
    return base64.b64encode(screen(number)).decode()


def address_of(number: int) -> str:
    return f"data:image/png;base64,{base64_of(number)}"


@contextmanager
def serving(answers: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """The server's address. `answers`: bodies by path, or functions of a request that give one;
    the last of a path is given again and again."""
    left = {path: list(bodies) for path, bodies in answers.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0)))
            bodies = left.get(self.path.split("?")[0])
            given = (bodies.pop(0) if len(bodies) > 1 else bodies[0]) if bodies else {"error": self.path}
            body = json.dumps(given(json.loads(asked)) if callable(given) else given).encode()
            self.send_response(200 if bodies else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chat_answer(number: int, text: str | None = None, *calls: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of POST /chat/completions."""
    made = [
        {"id": f"call_{number}_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_790_000_000 + number,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def messages_answer(number: int, *blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Of Anthropic's POST /v1/messages."""
    is_call = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": list(blocks),
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def responses_answer(number: int, *items: Mapping[str, Any]) -> dict[str, Any]:
    """Of OpenAI's POST /responses."""
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_790_000_000 + number,
        "model": "scripted",
        "status": "completed",
        "output": list(items),
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
