"""The guard of a sandbox server: no request gets past it without a valid token, whatever it asks for. What lies behind is app.py's.

Programs send `Authorization: Bearer TOKEN`. People paste the token once into the login page, which is the body of the 401 that a browser
gets at the root; they then hold a cookie that scripts cannot read, that other sites cannot use, and that opens the live view and nothing
that changes anything. OpenEnv's clients cannot be given a header; the password of the address that they are given becomes one
(`Authorization: Basic`), and opens nothing else. No token is ever in an address that is sent.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.http import guarding
from sandbox.http.cookies import cookie_header, cookie_of
from sandbox.http.guarding import SECURITY_HEADERS, LimitedBody, basic_password, bearer_token, with_headers
from sandbox.http.hosts import POLICY_VIOLATION
from sandbox.http.problems import answer, cut_short
from sandbox.http.tokens import Tokens
from sandbox.server import openenv
from sandbox.server.metrics import Metrics
from sandbox.server.problems import UNAUTHORIZED, unauthorized

LOGIN_S = 12 * 3600.0
LOGINS_KEPT = 1000
LOGIN_PATH, LIVE_PATH, LIVE_COOKIE = "/login", "/live/", "live"
LOGIN_BODY_BYTES = 4096
LOGIN_PAGE = Path(__file__).with_name("live") / "login.html"
LOGIN_POLICY = "default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
"""The login page may load nothing, as its visitors have no token; its style is in it, and allowed by its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large a request may be, and how long it may take to arrive."""

    max_bytes: int
    max_s: float


class Guard(guarding.Guard):
    """Puts the client's name into the scope as `client_name`."""

    def __init__(self, app: ASGIApp, tokens: Tokens, metrics: Metrics, limits: BodyLimits) -> None:
        super().__init__(app)
        self._tokens, self._metrics, self._limits = tokens, metrics, limits
        self._logins: dict[str, tuple[str, float]] = {}
        """Client and end of each login, by the cookie's value."""
        self._login_page = LOGIN_PAGE.read_bytes()
        style = self._login_page.partition(b"<style>")[2].partition(b"</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
        self._login_policy = {"content-security-policy": LOGIN_POLICY.format(digest=digest)}

    async def _guard(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        send = with_headers(send, SECURITY_HEADERS)
        if scope["path"] == LOGIN_PATH and scope["method"] == "POST":
            return await self._log_in(scope, receive, send)
        client = self._by_token(scope, headers) or self._by_cookie(scope, headers)
        if client is None:
            self._metrics.refused.inc()
            return await self._refusal(scope, headers)(scope, receive, send)
        scope["client_name"] = client
        await self._let_in(scope, LimitedBody(receive, headers, max_bytes=self._limits.max_bytes, max_s=self._limits.max_s), send)

    async def _guard_socket(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        client = self._by_token(scope, headers)
        if client is None:
            self._metrics.refused.inc()
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # before it is accepted: a 403
        scope["client_name"] = client
        await self._app(scope, receive, send)

    def _by_token(self, scope: Scope, headers: dict[str, str]) -> str | None:
        password = basic_password(headers) if scope["path"].startswith(openenv.PREFIX) else ""
        return self._tokens.client(password or bearer_token(headers))

    def _cut_short(self, scope: Scope, max_bytes: int, *, is_too_large: bool) -> Response:
        return cut_short(max_bytes, is_too_large=is_too_large)

    def _by_cookie(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """A person who looks: only reading, only the live view, and only from the view's own pages."""
        path, is_reading = scope["path"], scope["method"] in ("GET", "HEAD")
        if not is_reading or not (path == "/" or path.startswith(LIVE_PATH)):
            return None
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return None
        client, end_s = self._logins.get(cookie_of(scope, headers, LIVE_COOKIE), (None, 0.0))
        return client if time.monotonic() < end_s else None

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        receive = LimitedBody(receive, {}, max_bytes=self._limits.max_bytes, max_s=self._limits.max_s)
        body = b""
        while len(body) <= LOGIN_BODY_BYTES:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        token = parse_qs(body[:LOGIN_BODY_BYTES].decode("latin-1")).get("token", [""])[0].strip()
        client = self._tokens.client(token)
        if client is None:
            self._metrics.refused.inc()
            return await self._login_form()(scope, receive, send)
        now_s = time.monotonic()
        self._logins = {name: login for name, login in self._logins.items() if login[1] > now_s}
        while len(self._logins) >= LOGINS_KEPT:
            del self._logins[next(iter(self._logins))]
        value = secrets.token_urlsafe(32)
        self._logins[value] = (client, now_s + LOGIN_S)
        headers = {"location": "/", "set-cookie": cookie_header(scope, LIVE_COOKIE, value, LOGIN_S)}
        await Response(status_code=303, headers=headers)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Response:
        if scope["path"] == "/" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return self._login_form()
        return answer(unauthorized(), {"www-authenticate": 'Bearer realm="flywheel"'})

    def _login_form(self) -> Response:
        return Response(self._login_page, UNAUTHORIZED, self._login_policy, "text/html; charset=utf-8")
