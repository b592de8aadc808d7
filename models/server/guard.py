"""The guard of a policy server: without a token there is a 401 that says the same whatever was asked, and a request that is too large
goes no further."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models.server.metrics import Metrics
from models.server.problems import cut_short, response_of, unauthorised
from sandbox.http import guarding
from sandbox.http.guarding import LimitedBody, bearer_token
from sandbox.http.tokens import Tokens


class Guard(guarding.Guard):
    """Whose token it was is `scope["state"]["client"]` behind it; what stood behind the token and a slash, `scope["state"]["label"]`."""

    def __init__(self, app: ASGIApp, tokens: Mapping[str, str], metrics: Metrics, *, max_body_bytes: int) -> None:
        """`tokens` by client. Raises ConfigError for one that is short or that a header cannot carry."""
        super().__init__(app)
        self._metrics, self._max_body_bytes = metrics, max_body_bytes
        self._tokens = Tokens(tokens)

    async def _guard(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        given = bearer_token(headers) or headers.get("x-api-key", "").strip()
        client, label = self._tokens.client(given), ""
        if client is None:
            token, _, label = given.partition("/")
            client = self._tokens.client(token)
        if client is None:
            self._metrics.refused.inc()
            return await response_of(unauthorised())(scope, receive, send)
        scope.setdefault("state", {}).update(client=client, label=label)
        await self._let_in(scope, LimitedBody(receive, headers, max_bytes=self._max_body_bytes), send)

    def _cut_short(self, scope: Scope, max_bytes: int, *, is_too_large: bool) -> Response:
        return response_of(cut_short(max_bytes))
