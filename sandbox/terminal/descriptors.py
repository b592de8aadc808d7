"""Waiting for file descriptors on an event loop, and reading and writing them whole, for pipes that come out of a jail."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress


async def readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _finish, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _finish(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _finish, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


async def write_all(fd: int, content: bytes) -> None:
    """Write, then close."""
    view = memoryview(content)
    try:
        with suppress(BrokenPipeError):  # it does not want to read
            while view:
                await writable(fd)
                with suppress(BlockingIOError):
                    view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


async def read_all(fd: int, output: bytearray, limit_bytes: int) -> None:
    """Until everyone who could write has closed; beyond the limit what is read is dropped."""
    while True:
        await readable(fd)
        part = os.read(fd, 1 << 16)
        if not part:
            return
        output += part[: max(0, limit_bytes - len(output))]


def read_rest(fd: int, output: bytearray, limit_bytes: int) -> None:
    """What is in a pipe now, even while processes may still write to it."""
    with suppress(BlockingIOError):
        while part := os.read(fd, 1 << 16):
            output += part[: max(0, limit_bytes - len(output))]
            if len(output) >= limit_bytes:
                return
