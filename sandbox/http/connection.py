"""Slow or endless clients: a connection that does not send a request's head or body in time, or does not read its
answer, is closed. uvicorn waits for all three without limit. How large a body may be is each server's own.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""From the connection, or the first byte of the next request, to the end of the head."""
HEAD_BYTES = 64 * 1024
SOCKET_LINE_BYTES, SOCKET_LINES, LINE_MARKS = 8192, 128, 16
"""Of the head of a WebSocket's request; the last are a line's own marks, such as the version of HTTP."""
BODY_S, BODY_BYTES_PER_S = 30.0, 2048.0
"""A body has so long, and a second more for each of so many bytes that came."""
UNREAD_S = 60.0
"""An answer that fills the buffers may lie there for so long."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits of time and of a head's size."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._coming: TimerHandle | None = None
        """Runs while a head or a body is awaited."""
        self._unread: TimerHandle | None = None
        self._begun_s, self._num_bytes, self._is_head = 0.0, 0, True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await(is_head=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # an upgrade has handed it on
            self._stop()
        elif self._coming is not None:
            self._num_bytes += len(data)
            if self._is_head and self._num_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
        elif self.cycle is None or self.cycle.response_complete:
            self._await(is_head=True)  # a byte that begins no request has ended uvicorn's own wait for the next

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._coming is None:  # the first runs from the connection
            self._await(is_head=True)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._await(is_head=False)

    def on_message_complete(self) -> None:
        self._stop()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """The library that reads the request again as a WebSocket's gives up a longer line, or more of them, and answers nothing."""
        lines = [len(self.url) + LINE_MARKS, *(len(name) + len(value) + LINE_MARKS for name, value in self.scope["headers"])]
        if max(lines) > SOCKET_LINE_BYTES or len(lines) > SOCKET_LINES:
            self._refuse(b"431 Request Header Fields Too Large")
        else:
            super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _await(self, *, is_head: bool) -> None:
        self._stop()
        self._begun_s, self._num_bytes, self._is_head = self.loop.time(), 0, is_head
        self._coming = self.loop.call_later(HEAD_S if is_head else BODY_S, self._look)

    def _stop(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None

    def _look(self) -> None:
        """The time that was given is over: there is more for a body that comes along, and for what we do not read ourselves."""
        self._coming = None
        left_s = 0.0 if self._is_head else self._begun_s + BODY_S + self._num_bytes / BODY_BYTES_PER_S - self.loop.time()
        if self.flow.read_paused:
            left_s = max(left_s, BODY_S)
        if left_s > 0:
            self._coming = self.loop.call_later(left_s, self._look)
        else:
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self._stop()
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
        self.loop.call_later(UNREAD_S, self.transport.abort)
