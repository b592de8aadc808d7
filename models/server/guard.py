"""The outer door of a policy server: without the token there is a 401 that says the same whatever was asked, and a request that is too
large goes no further. Pure ASGI, so that nothing behind it runs before."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.server.metrics import Metrics
from models.server.problems import TooLarge, response_of, unauthorised
from sandbox.tokens import Tokens


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, token: str, metrics: Metrics, *, max_body_bytes: int) -> None:
        """Raises ConfigError for a token that is short or that a header cannot carry."""
        self._app, self._metrics, self._max_body_bytes = app, metrics, max_body_bytes
        self._tokens = Tokens({"policy": token})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"a connection of type {scope['type']!r}: the server must be run without WebSockets (serve.py)")
        headers = dict(scope["headers"])
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or self._tokens.client(given.strip().decode("latin-1")) is None:
            self._metrics.refused.inc()
            return await response_of(unauthorised())(scope, receive, send)
        if _announced_bytes(headers) > self._max_body_bytes:
            return await response_of(TooLarge(self._max_body_bytes).told)(scope, receive, send)
        await self._app(scope, _limited(receive, self._max_body_bytes), send)


def _limited(receive: Receive, max_bytes: int) -> Receive:
    """Counts what arrives: a length that was announced need not be true, nor be announced at all."""
    arrived = 0

    async def counted() -> Message:
        nonlocal arrived
        message = await receive()
        arrived += len(message.get("body", b""))
        if arrived > max_bytes:
            raise TooLarge(max_bytes)
        return message

    return counted


def _announced_bytes(headers: dict[bytes, bytes]) -> int:
    announced = headers.get(b"content-length", b"0")
    return int(announced) if announced.isdigit() else 0
