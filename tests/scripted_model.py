"""A local server that speaks OpenAI's chat completions and answers what the test gives it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Model:
    """An OpenAI-compatible server that answers with what it is given, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked, self.headers = list(answers), list[dict[str, Any]](), list[str]()
        self.encoding = "identity"


@contextlib.contextmanager
def serving(model: Model) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model.asked.append(body)
            model.headers.append(f"{self.path} {self.headers.get('Authorization')}")
            answer = model.answers.pop(0) if model.answers else None
            value = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]}).encode()
            self.send_response(200 if answer is not None else 500)
            self.send_header("Content-Encoding", model.encoding)
            self.send_header("Content-Length", str(len(value)))
            self.end_headers()
            self.wfile.write(value)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
