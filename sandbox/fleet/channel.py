"""What a manager and a worker say to each other: frames on one socket, requests and replies matched by number, errors by their names.

A frame is four bytes of length (big endian) and a msgpack value: [REQUEST, number, method, parameters], [REPLY, number, value] or
[ERROR, number, {type, message, is_retryable, cause}]. Sessions' values are wire.py's; screenshots go as raw bytes. What methods there are
is said by the side that answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgpack

from warehouse.core import errors
from warehouse.core.errors import FlywheelError, LeaseLost, SandboxError, WorkerCrashed
from warehouse.core.machine import shortage

_LOG = logging.getLogger(__name__)

REQUEST, REPLY, ERROR = 0, 1, 2
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 256 * 2**20

Params = dict[str, Any]
Answer = Callable[[str, Params], Awaitable[Any]]


class Channel(asyncio.Protocol):
    """One end of the socket, in the event loop that opened it. The other end's death fails everything that waits for a reply."""

    def __init__(self, answer: Answer | None, on_lost: Callable[[], None] | None) -> None:
        self._answer, self._on_lost = answer, on_lost
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._num_calls = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._lost: str | None = None
        self.lost = asyncio.Event()
        self.heard_s = 0.0
        """When the other end last said something, in the loop's time."""

    @classmethod
    async def open(cls, sock: socket.socket, *, answer: Answer | None = None, on_lost: Callable[[], None] | None = None) -> Self:
        """Takes over the socket. `answer` serves requests of the other end, many at a time; `on_lost` is called once."""
        sock.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(lambda: cls(answer, on_lost), sock=sock)
        return channel

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def call(self, method: str, **params: Any) -> Any:
        """Ask the other end. Raises what it raised, if that is one of our errors; SandboxError for any other; WorkerCrashed where the
        other end is gone. Giving up waiting does not stop it."""
        if self._lost is not None:
            raise WorkerCrashed(self._lost)
        self._num_calls += 1
        number = self._num_calls
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self._send([REQUEST, number, method, params])
            return await future
        finally:
            self._pending.pop(number, None)

    def close(self, reason: str) -> None:
        """Hang up. May be called twice."""
        self._lose(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a channel needs a stream, got {transport!r}")
        self._transport = transport
        self.heard_s = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            size = int.from_bytes(self._buffer[start : start + LENGTH_BYTES], "big")
            end = start + LENGTH_BYTES + size
            if len(self._buffer) < end:
                break
            self._receive(msgpack.unpackb(bytes(self._buffer[start + LENGTH_BYTES : end])))
            start = end
        if start:
            del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("The sandbox process at the other end is gone: it crashed or was killed. Start the episode again.")

    def _send(self, message: list[Any]) -> None:
        packed = msgpack.packb(message)
        if len(packed) > MAX_FRAME_BYTES:
            raise SandboxError(f"A message of {len(packed) >> 20} MiB is too large for the channel: at most {MAX_FRAME_BYTES >> 20} MiB.")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(len(packed).to_bytes(LENGTH_BYTES, "big") + packed)

    def _receive(self, message: list[Any]) -> None:
        if message[0] == REQUEST:
            _, number, method, params = message
            task = asyncio.get_running_loop().create_task(self._reply(number, method, params))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        kind, number, value = message
        future = self._pending.get(number)
        if future is None or future.done():
            return  # the caller has given up
        if kind == REPLY:
            future.set_result(value)
        else:
            future.set_exception(error_from_plain(value))

    async def _reply(self, number: int, method: str, params: Params) -> None:
        try:
            if self._answer is None:
                raise SandboxError(f"This end answers nothing, and was asked {method!r}.")
            self._send([REPLY, number, await self._answer(method, params)])
        except asyncio.CancelledError:
            self._send([ERROR, number, error_to_plain(LeaseLost("The call was cut off: its lease is over. Take another one."))])
            raise
        except Exception as error:
            if not isinstance(error, FlywheelError):
                _LOG.exception("%r failed, which is a defect.", method)
            self._send([ERROR, number, error_to_plain(error)])

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self.lost.set()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(WorkerCrashed(reason))
                future.exception()  # who asked may be gone, and the loop's log is not the place for it
        if self._on_lost is not None:
            self._on_lost()


def error_to_plain(error: BaseException) -> dict[str, Any]:
    """An error as it crosses the channel. Of what is none of ours, hence a defect, only the class and the function cross: messages end up
    in stored episodes, where this machine's paths are of no use. What the machine gives too little of crosses by its name."""
    if isinstance(error, OSError | MemoryError) and not isinstance(error, FlywheelError):
        error = shortage(error) or error
    if not isinstance(error, FlywheelError):
        message = f"A sandbox process failed, which is a defect: {type(error).__name__} in {_place(error)}. Its traceback is in the log."
        return {**errors.to_plain(SandboxError(message)), "cause": None}
    cause = errors.name_of(error.__cause__) if isinstance(error.__cause__, FlywheelError) else None
    return {**errors.to_plain(error), "cause": cause}


def error_from_plain(plain: dict[str, Any]) -> FlywheelError:
    """The error again, of its own class and as retryable as it was, with a cause of the right class."""
    error = errors.from_plain(plain, SandboxError)
    if plain["cause"] is not None:
        error.__cause__ = errors.from_plain({"type": plain["cause"], "message": plain["message"]}, SandboxError)
    return error


def _place(error: BaseException) -> str:
    """The function that raised it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return f"{frames[-1].f_globals.get('__name__')}.{frames[-1].f_code.co_qualname}" if frames else "an unknown function"
