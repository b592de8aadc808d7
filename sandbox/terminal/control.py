"""The host's end of the socket to a jail's process 1: questions, answers with file descriptors, and news of programs that ended.

What comes from inside is not trusted: it is numbers and texts, and descriptors that are used as what was asked for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from itertools import count
from typing import Any

from warehouse.core.errors import JailCrashed, SandboxTimeout

MAX_MESSAGE_BYTES = 1 << 17
MAX_FDS = 16
ANSWER_TIMEOUT_S = 20.0
Answer = tuple[str, list[int]]


class Control:
    """Asks one process 1. Opened on the event loop that uses it."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[Answer] = self._loop.create_future()
        self.is_open = True
        self._loop.add_reader(self._socket, self._receive)

    async def ready(self) -> int:
        """The descriptor of the workspace, once process 1 runs. Raises JailCrashed."""
        _, fds = await self._ready
        return fds[0]

    def exit_of(self, pid: int) -> asyncio.Future[int]:
        """Done when the program has ended, with its exit code, or JailCrashed where that was not heard of."""
        return self._exits.setdefault(pid, self._loop.create_future())

    async def ask(self, operation: str, *arguments: str, fds: Sequence[int] = ()) -> Answer:
        """Raises OSError with what the jail says where it cannot do it, JailCrashed, SandboxTimeout."""
        if not self.is_open:
            raise JailCrashed("The jail's process 1 has ended. Start another jail.")
        number = str(next(self._numbers))
        message = "\0".join((number, operation, *arguments)).encode(errors="surrogateescape")
        if len(message) > MAX_MESSAGE_BYTES:
            raise OSError(f"{len(message)} bytes are too much for a command line: at most {MAX_MESSAGE_BYTES}.")
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answers[number] = answer
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while True:
                    try:
                        socket.send_fds(self._socket, [message], list(fds))
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.005)
                return await answer
        except TimeoutError as error:
            raise SandboxTimeout(f"The jail did not answer {operation!r} within {ANSWER_TIMEOUT_S:g} s.") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise JailCrashed("The jail's process 1 has ended. Start another jail.") from error
        finally:
            self._answers.pop(number, None)

    def send(self, text: str) -> None:
        """What process 1 waits for before it is ready. Raises OSError where it has ended."""
        self._socket.send(text.encode())

    def _receive(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message:
            self.close()
            return
        number, kind, *rest = message.decode(errors="replace").split("\0")
        waiting = self._ready if kind == "ready" else self._answers.get(number)
        if kind == "exit" and len(rest) == 2:
            ended = self.exit_of(int(rest[0]))
            if not ended.done():
                ended.set_result(int(rest[1]))
        elif waiting is not None and not waiting.done():
            if kind == "error":
                waiting.set_exception(OSError(*rest))
            else:
                waiting.set_result((rest[0] if rest else "", list(fds)))
            return
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        """Everyone who waits gets JailCrashed. May be called twice."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._socket.close()
        awaited: list[asyncio.Future[Any]] = [self._ready, *self._answers.values(), *self._exits.values()]
        for waiting in awaited:
            if not waiting.done():
                waiting.set_exception(JailCrashed("The jail's process 1 has ended. Start another jail."))
                waiting.exception()  # a caller that awaits gets it; there may be none
