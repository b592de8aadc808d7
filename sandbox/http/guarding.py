"""What the guards of our servers share, before anything behind them runs: a body that is limited in size and time, the token in a header,
headers that every answer has. Whom a server lets in is its own.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer of a server with pages for people."""
DRAIN_BYTES, DRAIN_S = 4 * 1024 * 1024, 5.0


class LimitedBody:
    """`receive` of a request that ends as if the client had gone when its body grows too large, or does not come in time."""

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[str, str],
        *,
        max_bytes: int,
        max_s: float = float("inf"),
        max_pause_s: float = float("inf"),
    ) -> None:
        """`headers` by their names in lower case. `max_s`: for the whole body; `max_pause_s`: for each piece of it."""
        self._receive, self.max_bytes, self._max_pause_s = receive, max_bytes, max_pause_s
        self._until_s = time.monotonic() + max_s
        self._num_bytes, self._is_whole = 0, False
        announced = headers.get("content-length", "")
        self.is_too_large = announced.isdecimal() and int(announced[:20]) > max_bytes
        self.is_too_slow = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()  # from here on it only reports that the client has gone
        message = await self._next()
        if message is None or self._num_bytes > self.max_bytes:
            self.is_too_large, self.is_too_slow = message is not None, message is None
            return {"type": "http.disconnect"}
        return message

    async def _next(self) -> Message | None:
        """The next piece; None where it does not come."""
        wait_s = min(self._max_pause_s, self._until_s - time.monotonic())
        try:
            async with asyncio.timeout(wait_s if wait_s < float("inf") else None):
                message = await self._receive()
        except TimeoutError:
            return None
        self._num_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read on past what is too large, within reason: a client that is cut off while it sends never reads why."""
        deadline_s = time.monotonic() + DRAIN_S
        while not self._is_whole and self._num_bytes < self.max_bytes + DRAIN_BYTES and time.monotonic() < deadline_s:
            if await self._next() is None:
                return


class Guard:
    """ASGI middleware, the base of each server's own: that says in `_guard` whom it lets in, and in `_cut_short` how it refuses a body. A
    server with WebSockets guards them in `_guard_socket`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._guard_socket(scope, headers_of(scope), receive, send)
        await self._guard(scope, headers_of(scope), receive, send)

    async def _guard(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """Answers what is not let in; `_let_in` for what is. `headers` by their names in lower case."""
        raise NotImplementedError

    async def _guard_socket(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        raise RuntimeError("A WebSocket: this server must be run without them (serve.py).")

    def _cut_short(self, scope: Scope, max_bytes: int, *, is_too_large: bool) -> Response:
        """The answer to a body that is too large, or did not come in time."""
        raise NotImplementedError

    async def _let_in(self, scope: Scope, body: LimitedBody, send: Send) -> None:
        """A body that is announced as too large goes no further. Whoever reads one that is cut short takes it for a client that went: the
        answer says why."""
        is_replaced = False

        async def sending(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start" and (body.is_too_large or body.is_too_slow):
                is_replaced = True
                await self._refuse(scope, body, send)
            elif not is_replaced:
                await send(message)

        if body.is_too_large:
            return await self._refuse(scope, body, send)
        await self._app(scope, body, sending)

    async def _refuse(self, scope: Scope, body: LimitedBody, send: Send) -> None:
        if body.is_too_large:
            await body.drain()
        await self._cut_short(scope, body.max_bytes, is_too_large=body.is_too_large)(scope, body, send)


def headers_of(scope: Scope) -> dict[str, str]:
    """By their names in lower case; the last of several alike."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def bearer_token(headers: Mapping[str, str]) -> str:
    """What `Authorization: Bearer …` holds; empty for anything else."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def basic_password(headers: Mapping[str, str]) -> str:
    """The password that `Authorization: Basic …` holds, whatever the name; empty for anything else."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True).decode() if scheme.lower() == "basic" else ""
    except ValueError:
        return ""
    return given.partition(":")[2]


def with_headers(send: Send, wanted: Mapping[str, str]) -> Send:
    """Answers with these headers too, where they do not say otherwise themselves."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in wanted.items() if name.encode() not in present]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending
