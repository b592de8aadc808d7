"""The outer door of a sandbox server: no request gets past it without a valid token, whatever it asks for. What lies behind is app.py's.

Programs send `Authorization: Bearer TOKEN`. People paste the token once into the login page, which is the body of the 401 that a browser
gets at the root; they then hold a cookie that scripts cannot read, that other sites cannot use, and that opens the live view and nothing
that changes anything. No token is ever in an address.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.http.guarding import SECURITY_HEADERS, LimitedBody, bearer_token, headers_of, with_headers
from sandbox.http.serving import PROBLEM_TYPE
from sandbox.http.tokens import Tokens
from sandbox.server.metrics import Metrics
from sandbox.server.problems import TOO_LARGE, UNAUTHORIZED, unauthorized

LOGIN_S = 12 * 3600.0
LOGINS_KEPT = 1000
LOGIN_PATH, LIVE_PATH = "/login", "/live/"
LOGIN_BODY_BYTES = 4096
LOGIN_PAGE = Path(__file__).with_name("live") / "login.html"
LOGIN_POLICY = "default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
"""The login page may load nothing, as whoever sees it has no token; its style is in it, and allowed by its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large a request may be, and how long it may take to arrive."""

    max_bytes: int
    max_s: float


class Guard:
    """ASGI middleware. Puts the client's name into the scope as `client_name`."""

    def __init__(self, app: ASGIApp, tokens: Tokens, metrics: Metrics, limits: BodyLimits) -> None:
        self._app, self._tokens, self._metrics, self._limits = app, tokens, metrics, limits
        self._logins: dict[str, tuple[str, float]] = {}
        """Client and end of each login, by the cookie's value."""
        self._login_page = LOGIN_PAGE.read_bytes()
        style = self._login_page.partition(b"<style>")[2].partition(b"</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
        self._login_policy = (b"content-security-policy", LOGIN_POLICY.format(digest=digest).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"A connection of type {scope['type']!r}: the server must be run without WebSockets (serve.py).")
        headers = headers_of(scope)
        send = with_headers(send, SECURITY_HEADERS)
        if scope["path"] == LOGIN_PATH and scope["method"] == "POST":
            return await self._log_in(scope, receive, send)
        client = self._tokens.client(bearer_token(headers)) or self._by_cookie(scope, headers)
        if client is None:
            self._metrics.refused.inc()
            return await self._refuse(scope, headers, send)
        scope["client_name"] = client
        limited = LimitedBody(receive, headers, max_bytes=self._limits.max_bytes, max_s=self._limits.max_s)
        if limited.is_too_large:
            return await _answer(send, TOO_LARGE, b"", "text/plain")
        await self._app(scope, limited, send)

    def _by_cookie(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """A person who looks: only reading, only the live view, and only from the view's own pages."""
        path, is_reading = scope["path"], scope["method"] in ("GET", "HEAD")
        if not is_reading or not (path == "/" or path.startswith(LIVE_PATH)):
            return None
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return None
        name = _cookie_name(scope)
        for part in headers.get("cookie", "").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name and value in self._logins:
                client, end_s = self._logins[value]
                return client if time.monotonic() < end_s else None
        return None

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
            return await _answer(send, UNAUTHORIZED, self._login_page, "text/html; charset=utf-8", self._login_policy)
        now_s = time.monotonic()
        self._logins = {name: login for name, login in self._logins.items() if login[1] > now_s}
        while len(self._logins) >= LOGINS_KEPT:
            del self._logins[next(iter(self._logins))]
        value = secrets.token_urlsafe(32)
        self._logins[value] = (client, now_s + LOGIN_S)
        secure = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{_cookie_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={LOGIN_S:.0f}{secure}"
        await _answer(send, 303, b"", "text/plain", (b"location", b"/"), (b"set-cookie", cookie.encode()))

    async def _refuse(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        if scope["path"] == "/" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return await _answer(send, UNAUTHORIZED, self._login_page, "text/html; charset=utf-8", self._login_policy)
        challenge = (b"www-authenticate", b'Bearer realm="flywheel"')
        await _answer(send, UNAUTHORIZED, json.dumps(unauthorized()).encode(), PROBLEM_TYPE, challenge)


def _cookie_name(scope: Scope) -> str:
    """Cookies are shared by all ports of a host: two servers must not overwrite each other's."""
    return f"flywheel_live_{(scope.get('server') or ('', 0))[1]}"


async def _answer(send: Send, status: int, body: bytes, media_type: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
