"""The outer door of a policy server: without the token there is a 401 that says the same whatever was asked, and a request that is too
large goes no further. Pure ASGI, so that nothing behind it runs before."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.server.metrics import Metrics
from models.server.problems import TooLarge, response_of, unauthorised
from sandbox.http.guarding import LimitedBody, bearer_token, headers_of
from sandbox.http.tokens import Tokens


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
            raise RuntimeError(f"connection of type {scope['type']!r}: run the server without WebSockets (serve.py)")
        headers = headers_of(scope)
        if self._tokens.client(bearer_token(headers)) is None:
            self._metrics.refused.inc()
            return await response_of(unauthorised())(scope, receive, send)
        body = LimitedBody(receive, headers, max_bytes=self._max_body_bytes)
        if body.is_too_large:
            return await response_of(TooLarge(self._max_body_bytes).error)(scope, receive, send)

        async def receiving() -> Message:
            message = await body()
            if body.is_too_large:
                raise TooLarge(self._max_body_bytes)
            return message

        await self._app(scope, receiving, send)
