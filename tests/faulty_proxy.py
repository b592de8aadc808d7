"""A proxy before an HTTP server that fails as networks and servers fail: slowly, with errors, with connections that are cut on the way
there or back."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Fault(StrEnum):
    NONE = "none"
    ERROR = "the server says 503 and has done nothing"
    SLOW = "the answer takes half a second"
    CUT_THERE = "the connection is cut before the request arrived"
    LOST_ANSWER = "the request is done, and the connection cut before the answer"
    CUT_BACK = "the connection is cut in the middle of the answer's body"


SLOW_S = 0.5


class Proxy:
    """`decide(method, path)` says what happens to a request; it is called in several threads."""

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.decide: Callable[[str, str], Fault] = lambda method, path: Fault.NONE
        self.met: list[Fault] = []
        self.ignored: set[str] = set()
        """Headers of requests, in small letters, that do not reach the server."""
        self._target = port

    def forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            dropped = self.ignored | {"connection", "transfer-encoding"}
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in dropped}
            connection.request(handler.command, handler.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


@contextmanager
def a_faulty_proxy(port: int) -> Iterator[Proxy]:
    """Before the server at a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.decide(self.command, self.path)
            proxy.met.append(fault)
            self.close_connection = fault is not Fault.NONE
            match fault:
                case Fault.ERROR:
                    self._answer(503, [], b"")
                    return
                case Fault.SLOW:
                    time.sleep(SLOW_S)
                case Fault.CUT_THERE:
                    return
            status, headers, data = proxy.forward(self, body)
            if fault is not Fault.LOST_ANSWER:
                self._answer(status, headers, data, cut=fault is Fault.CUT_BACK)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
            self.send_response_only(status)
            is_head = self.command == "HEAD"
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", *(() if is_head else ("content-length",))):
                    self.send_header(name, value)
            if not is_head:
                self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if not is_head:
                self.wfile.write(data[: len(data) // 2] if cut else data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{server.server_port}", port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
