"""The Chrome DevTools Protocol over a pair of pipes: commands, events, and the news that the other end is gone.

Messages are JSON, ended by a zero byte (Chromium's `--remote-debugging-pipe`). What the commands mean is not known here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from warehouse.core.errors import BrowserCrashed, SandboxError

_LOG = logging.getLogger(__name__)

Params = dict[str, Any]
Listener = Callable[[Params], None]
OnTarget = Callable[[Params, str], None]
"""Gets a target's info and the session it is attached by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A command in flight."""

    method: str
    session_id: str | None
    future: asyncio.Future[Params]


class Connection:
    """One browser's debugging pipe. All sessions of the browser share it; it lives in the event loop that opened it.

    Losing the pipe fails every command in flight with BrowserCrashed, and every later one at once.
    """

    def __init__(self, *, on_lost: Callable[[], None] | None = None) -> None:
        self._pending: dict[int, _Pending] = {}
        self._listeners: dict[tuple[str | None, str], Listener] = {}
        self._expected: dict[tuple[str | None, str], asyncio.Future[Params]] = {}
        self._next_id = 0
        self._on_lost = on_lost
        self._gone: dict[str | None, str] = {}
        """Sessions whose page's process ended, and why: they answer nothing any more."""
        self._lost: str | None = None
        self._is_lost_event = asyncio.Event()
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None

    async def open(self, *, read_fd: int, write_fd: int) -> None:
        """Take over both descriptors."""
        loop = asyncio.get_running_loop()
        self._writer, _ = await loop.connect_write_pipe(lambda: _WriteEnd(self._lose), os.fdopen(write_fd, "wb", buffering=0))
        self._reader, _ = await loop.connect_read_pipe(lambda: _ReadEnd(self._receive, self._lose), os.fdopen(read_fd, "rb", buffering=0))

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def send(self, method: str, params: Params | None = None, session_id: str | None = None) -> asyncio.Future[Params]:
        """Send a command; the future gives its result, or raises SandboxError for a refusal and BrowserCrashed for a lost browser.

        The command is on its way when this returns, whether or not the future is ever awaited.
        """
        future: asyncio.Future[Params] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._lost is not None or self._writer is None:
            future.set_exception(BrowserCrashed(self._lost or "The browser's debugging pipe is not open."))
            return future
        if session_id in self._gone:
            future.set_exception(SandboxError(self._gone[session_id]))
            return future
        self._next_id += 1
        message: Params = {"id": self._next_id, "method": method, "params": params or {}}
        if session_id is not None:
            message["sessionId"] = session_id
        self._pending[self._next_id] = _Pending(method=method, session_id=session_id, future=future)
        self._writer.write(json.dumps(message).encode() + b"\0")
        return future

    def listen(self, session_id: str | None, method: str, listener: Listener) -> None:
        """Call `listener(params)` on every such event of a session (None: the browser's own); one listener for each. What a listener raises
        is logged: the pipe is every session's."""
        self._listeners[session_id, method] = listener

    def expect(self, session_id: str, method: str) -> asyncio.Future[Params]:
        """The next such event of a session; BrowserCrashed or SandboxError where browser or page goes away first."""
        future: asyncio.Future[Params] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._lost is not None:
            future.set_exception(BrowserCrashed(self._lost))
        elif session_id in self._gone:
            future.set_exception(SandboxError(self._gone[session_id]))
        else:
            self._expected[session_id, method] = future
        return future

    def end(self, session_id: str, reason: str) -> None:
        """The process of a session's page ended: what is awaited of it fails, and so does every later command, until it is forgotten."""
        self._gone[session_id] = reason
        self._drop(session_id, reason)

    def forget(self, session_id: str) -> None:
        """Drop the listeners of a session that was closed, and fail what is awaited of it: it will never come."""
        self._gone.pop(session_id, None)
        self._drop(session_id, "The page was closed.")

    def _drop(self, session_id: str, reason: str) -> None:
        for key in [key for key in self._listeners if key[0] == session_id]:
            del self._listeners[key]
        for number in [number for number, pending in self._pending.items() if pending.session_id == session_id]:
            pending = self._pending.pop(number)
            _fail(pending.future, SandboxError(f"{reason} It did not answer {pending.method}."))
        for key in [key for key in self._expected if key[0] == session_id]:
            _fail(self._expected.pop(key), SandboxError(f"{reason} Its {key[1]} did not come."))

    async def sleep(self, seconds: float) -> None:
        """Let real time pass. Raises BrowserCrashed where the browser goes away meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_lost_event.wait()
        if self._lost is not None:
            raise BrowserCrashed(self._lost)

    def close(self, reason: str = "The browser was closed.") -> None:
        """Close both ends, which makes Chromium exit. May be called twice."""
        self._lose(reason)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        if self._reader is not None and not self._reader.is_closing():
            self._reader.close()

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._is_lost_event.set()
        all_pending, self._pending = self._pending, {}
        for pending in all_pending.values():
            again = "start the episode again on a new session."
            _fail(pending.future, BrowserCrashed(f"{reason} {pending.method} was not answered; {again}"))
        all_expected, self._expected = self._expected, {}
        for future in all_expected.values():
            _fail(future, BrowserCrashed(reason))
        if self._on_lost is not None:
            self._on_lost()

    def _receive(self, message: Params) -> None:
        if "id" in message:
            pending = self._pending.pop(message["id"], None)
            if pending is None or pending.future.done():
                return
            if "error" in message:
                pending.future.set_exception(SandboxError(f"The browser refused {pending.method}: {message['error'].get('message')}"))
            else:
                pending.future.set_result(message["result"])
        else:
            key, params = (message.get("sessionId"), message["method"]), message.get("params", {})
            if (listener := self._listeners.get(key)) is not None:
                try:
                    listener(params)
                except Exception:
                    _LOG.exception("Hearing of %s failed; the browser's other events are not touched by it.", key[1])
            expected = self._expected.pop(key, None)
            if expected is not None and not expected.done():
                expected.set_result(params)


class _ReadEnd(asyncio.Protocol):
    """Splits the byte stream into messages."""

    def __init__(self, receive: Callable[[Params], None], lose: Callable[[str], None]) -> None:
        self._receive, self._lose = receive, lose
        self._pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        *complete, rest = data.split(b"\0")
        for piece in complete:
            message = b"".join([*self._pieces, piece])
            self._pieces.clear()
            self._receive(json.loads(message))
        if rest:
            self._pieces.append(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("The browser closed its debugging pipe: it crashed or was killed.")


class _WriteEnd(asyncio.BaseProtocol):
    def __init__(self, lose: Callable[[str], None]) -> None:
        self._lose = lose

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("The browser stopped reading its debugging pipe: it crashed or was killed.")


def _fail(future: asyncio.Future[Params], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _retrieve(future: asyncio.Future[Params]) -> None:
    """Commands are often sent without waiting: their errors reach the caller through a later command, never the loop's log."""
    if not future.cancelled():
        future.exception()
