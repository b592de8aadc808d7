"""The guard of a policy server: without the token there is a 401 that says the same whatever was asked, and a request that is too large
goes no further."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models.server.metrics import Metrics
from models.server.problems import cut_short, response_of, unauthorised
from sandbox.http import guarding
from sandbox.http.guarding import LimitedBody, bearer_token
from sandbox.http.tokens import Tokens


class Guard(guarding.Guard):
    def __init__(self, app: ASGIApp, token: str, metrics: Metrics, *, max_body_bytes: int) -> None:
        """Raises ConfigError for a token that is short or that a header cannot carry."""
        super().__init__(app)
        self._metrics, self._max_body_bytes = metrics, max_body_bytes
        self._tokens = Tokens({"policy": token})

    async def _guard(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        if self._tokens.client(bearer_token(headers)) is None:
            self._metrics.refused.inc()
            return await response_of(unauthorised())(scope, receive, send)
        await self._let_in(scope, LimitedBody(receive, headers, max_bytes=self._max_body_bytes), send)

    def _cut_short(self, scope: Scope, max_bytes: int, *, is_too_large: bool) -> Response:
        return response_of(cut_short(max_bytes))
