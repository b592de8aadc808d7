"""Bodies that are too large, or do not come, at the door of every server of ours."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from sandbox.http.guarding import LimitedBody

GONE = {"type": "http.disconnect"}


def drip(*pieces: bytes, pause_s: float = 0.0) -> list[tuple[Message, float]]:
    """A body in pieces."""
    return [({"type": "http.request", "body": piece, "more_body": n < len(pieces)}, pause_s) for n, piece in enumerate(pieces, start=1)]


def read(body: list[tuple[Message, float]], announced: str = "", **limits: float) -> tuple[LimitedBody, list[Message]]:
    """What an application receives of a body."""

    async def receive() -> Message:
        message, pause_s = body.pop(0) if body else (GONE, 0.0)
        await asyncio.sleep(pause_s)
        return message

    async def reading() -> tuple[LimitedBody, list[Message]]:
        limited = LimitedBody(receive, {"content-length": announced}, **{"max_bytes": 10, **limits})  # type: ignore[arg-type]
        received = []
        while not received or received[-1].get("more_body"):
            received.append(await limited())
        return limited, received

    return asyncio.run(reading())


@pytest.mark.parametrize(("announced", "is_too_large"), [("10", False), ("11", True), ("9" * 5000, True), ("", False), ("x", False)])
def test_what_is_announced(announced: str, is_too_large: bool) -> None:
    async def receive() -> Message:
        return GONE

    assert LimitedBody(receive, {"content-length": announced}, max_bytes=10).is_too_large is is_too_large


def test_a_body_ends_where_it_is_too_large_whatever_was_announced() -> None:
    limited, received = read(drip(b"12345", b"67890"), announced="3")
    assert [message["body"] for message in received] == [b"12345", b"67890"] and not limited.is_too_large
    limited, received = read(drip(b"12345", b"678901", b"2"), announced="3")
    assert received[-1] == GONE and len(received) == 2 and limited.is_too_large and not limited.is_too_slow
    asyncio.run(limited.drain())


def test_a_body_that_drips_may_be_limited_as_a_whole_or_by_its_pauses() -> None:
    pieces = drip(*[b"1"] * 10, pause_s=0.05)
    limited, received = read(list(pieces), max_s=0.12)
    assert received[-1] == GONE and limited.is_too_slow and not limited.is_too_large
    limited, received = read(list(pieces), max_pause_s=5.0)
    assert len(received) == 10 and not limited.is_too_slow
    limited, received = read(drip(b"1", b"2", pause_s=0.3), max_pause_s=0.05)
    assert received == [GONE] and limited.is_too_slow
