"""The outer door of a sandbox server: no request gets past it without a valid token, whatever it asks for. What lies behind is app.py's.

Programs send `Authorization: Bearer TOKEN`. People paste the token once into the login page, which is the body of the 401 that a browser
gets at the root; they then hold a cookie that scripts cannot read, that other sites cannot use, and that opens the live view and nothing
that changes anything. No token is ever in an address.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.server.metrics import Metrics
from sandbox.server.problems import MEDIA_TYPE, TOO_LARGE, UNAUTHORIZED, unauthorized
from sandbox.tokens import Tokens

LOGIN_S = 12 * 3600.0
LOGINS_KEPT = 1000
LOGIN_PATH, LIVE_PATH = "/login", "/live/"
LOGIN_BODY_BYTES = 4096
LOGIN_PAGE = Path(__file__).with_name("live") / "login.html"
LOGIN_POLICY = "default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
"""The login page may load nothing, as whoever sees it has no token; its style is in it, and allowed by its digest."""
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
}


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
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        send = _with_security_headers(send)
        if scope["path"] == LOGIN_PATH and scope["method"] == "POST":
            return await self._log_in(scope, receive, send)
        client = self._by_header(headers) or self._by_cookie(scope, headers)
        if client is None:
            self._metrics.refused.inc()
            return await self._refuse(scope, headers, send)
        scope["client_name"] = client
        limited = _Limited(receive, self._limits, headers)
        if limited.is_too_large:
            return await _answer(send, TOO_LARGE, b"", "text/plain")
        await self._app(scope, limited, send)

    def _by_header(self, headers: dict[str, str]) -> str | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return self._tokens.client(token.strip()) if scheme.lower() == "bearer" else None

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
        receive = _Limited(receive, self._limits, {})
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
        await _answer(send, UNAUTHORIZED, json.dumps(unauthorized()).encode(), MEDIA_TYPE, challenge)


class _Limited:
    """`receive` that ends a request whose body grows too large, or does not come, as if the client had gone."""

    def __init__(self, receive: Receive, limits: BodyLimits, headers: dict[str, str]) -> None:
        self._receive, self._left = receive, limits.max_bytes
        self._until_s: float | None = time.monotonic() + limits.max_s
        announced = headers.get("content-length", "0")
        self.is_too_large = announced.isdecimal() and int(announced[:20]) > limits.max_bytes

    async def __call__(self) -> Message:
        if self._until_s is None:  # the body is here: what comes next is that the client goes, whenever it does
            return await self._receive()
        try:
            async with asyncio.timeout(self._until_s - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        if not message.get("more_body"):
            self._until_s = None
        self._left -= len(message.get("body", b""))
        return message if self._left >= 0 else {"type": "http.disconnect"}


def _cookie_name(scope: Scope) -> str:
    """Cookies are shared by all ports of a host: two servers must not overwrite each other's."""
    return f"flywheel_live_{(scope.get('server') or ('', 0))[1]}"


def _with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items() if name.encode() not in present]
            if b"cache-control" not in present:
                extra.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, body: bytes, media_type: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
