"""The guard of an annotation server. No request gets past it to a route that it may not call, whatever it asks for: who may is said
beside each route (access.py), and a route that says nothing does not start.

People hold a cookie that scripts cannot read and other sites cannot use; whatever changes something carries the login's CSRF token in a
header besides, and comes from our own pages where the browser says from where. Programs send `Authorization: Bearer TOKEN` instead, which
no browser does by itself. A stream ends with the login that opened it.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request, Response
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from annotation.service.access.accounts import Accounts
from annotation.storage.attempts import source_of
from annotation.storage.logins import TOKEN_PREFIX, Principal
from annotation.web.access import Access, accesses
from annotation.web.limits import Rates
from annotation.web.problems import as_asked, problem_of, wants_page
from annotation.web.settings import WebSettings
from sandbox.http import guarding
from sandbox.http.cookies import cookie_of
from sandbox.http.guarding import SECURITY_HEADERS, LimitedBody, bearer_token, with_headers
from sandbox.http.problems import cut_short
from warehouse.core.errors import AccessDenied, FlywheelError, LoginRefused, TooManyAttempts, UnknownSubject

CSRF_HEADER = "x-csrf-token"
LOGIN_PAGE = "/login"
LOGIN, DEVICE = "annotation", "device"
"""Kinds of cookies."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
RECHECK_S = 15.0
"""How long a stream may go on after the login that opened it has ended."""
PAGE_HEADERS = SECURITY_HEADERS | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
TRANSPORT_SECURITY = {"strict-transport-security": "max-age=31536000"}


class Guard(guarding.Guard):
    """Puts `principal` (None without a login) and `address` into the scope."""

    def __init__(self, app: FastAPI, accounts: Accounts, settings: WebSettings) -> None:
        """Raises ConfigError for a route that does not say who may call it."""
        super().__init__(app)
        self._routes, self._accounts, self._settings = accesses(app), accounts, settings
        self._rates = Rates(settings.requests_per_s, settings.burst)

    async def _guard(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        if self._settings.behind_proxy:
            _believe_proxy(scope, headers)
        scope["address"] = (scope.get("client") or ("unknown", 0))[0][:64]
        send = with_headers(send, PAGE_HEADERS | TRANSPORT_SECURITY if scope["scheme"] == "https" else PAGE_HEADERS)
        try:
            access, secret, kind = self._access_of(scope), *_secret_of(scope, headers)
            is_automatic = access is not None and access.is_automatic
            who = await self._accounts.who(secret, kind, touch=not is_automatic) if secret else None
            scope["principal"] = who
            self._check_haste(who, scope["address"])
            if who is None and _opens_page(scope, access, is_bearer=kind == "program"):
                return await _redirect(scope, send)
            self._check(access, who, scope["method"], headers)
        except FlywheelError as error:
            return await _answer(problem_of(error), scope, receive, send)
        most = (access.max_body_bytes if access else None) or self._settings.max_body_bytes
        body = LimitedBody(receive, headers, max_bytes=most, max_pause_s=self._settings.body_timeout_s)
        await self._let_in(scope, body, send if who is None else self._while_logged_in(send, secret, kind))

    def _cut_short(self, scope: Scope, max_bytes: int, *, is_too_large: bool) -> Response:
        return as_asked(scope, cut_short(max_bytes, is_too_large=is_too_large))

    def _access_of(self, scope: Scope) -> Access | None:
        """None for what is not a route."""
        return next((access for route, access in self._routes if route.matches(scope)[0] is Match.FULL), None)

    def _check_haste(self, who: Principal | None, address: str) -> None:
        wait_s = self._rates.wait_s(who.digest if who is not None else f"address {source_of(address)}")
        if wait_s:
            raise TooManyAttempts("This is more than the server takes from one login or address: slow down.", math.ceil(wait_s))

    def _check(self, access: Access | None, who: Principal | None, method: str, headers: dict[str, str]) -> None:
        """Raises LoginRefused, AccessDenied, UnknownSubject for what is not a route (shown only to users who are logged in)."""
        is_changing = method not in SAFE_METHODS
        if access is None or access.role is not None:
            if who is None:
                raise LoginRefused("Log in, or send a valid token: `Authorization: Bearer …`.")
            if access is None:
                raise UnknownSubject("There is nothing at this address.")
            if not access.allows(who.role):
                raise AccessDenied(f"This is for {access.role}s; {who.name} is {who.role}.")
            if who.kind == "program" and not access.programs:
                raise AccessDenied("This is for a person who has logged in, not for a program's token.")
        if who is not None and who.kind == "program":
            return
        _check_origin(headers, is_changing=is_changing)
        given = headers.get(CSRF_HEADER, "").encode("latin-1")
        is_open = access is not None and access.role is None
        if is_changing and who is not None and not is_open and not hmac.compare_digest(given, str(who.csrf_token).encode()):
            raise AccessDenied("The header X-CSRF-Token is missing or old: load the page again.")

    def _while_logged_in(self, send: Send, secret: str, kind: str) -> Send:
        """What is sent for long is sent to somebody who is logged in still."""
        checked_s = time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal checked_s
            if message["type"] == "http.response.body" and time.monotonic() - checked_s > RECHECK_S:
                checked_s = time.monotonic()
                if await self._accounts.who(secret, kind, touch=False) is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise OSError("the login that opened this stream has ended")  # as if the client had gone
            await send(message)

        return sending


def _opens_page(scope: Scope, access: Access | None, *, is_bearer: bool) -> bool:
    """Whether a person opens what wants a login; also an address at which there is nothing, so that nobody learns which addresses exist."""
    if access is None:
        return wants_page(scope)
    return access.role is not None and access.is_page and not is_bearer


def device_of(request: Request) -> str | None:
    """The device cookie of a browser (storage/attempts.py), whatever is in it."""
    return cookie_of(request.scope, request.headers, DEVICE) or None


def _secret_of(scope: Scope, headers: dict[str, str]) -> tuple[str, str]:
    """What somebody shows for a login, and of which kind; empty for nothing. A token in a header goes before a cookie."""
    if headers.get("authorization"):
        token = bearer_token(headers)
        return (token if token.startswith(TOKEN_PREFIX) else "", "program")
    return cookie_of(scope, headers, LOGIN), "browser"


def _check_origin(headers: dict[str, str], *, is_changing: bool) -> None:
    """What browsers say of where a request comes from, which pages cannot forge. Raises AccessDenied."""
    site = headers.get("sec-fetch-site", "none")
    is_navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site not in ("same-origin", "none") and (is_changing or not is_navigation):
        raise AccessDenied(f"This request comes from another site (Sec-Fetch-Site: {site[:20]}).")
    origin = headers.get("origin")
    if is_changing and origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise AccessDenied(f"This request comes from another site ({origin[:80]}).")


def _believe_proxy(scope: Scope, headers: dict[str, str]) -> None:
    """Takes the address that the last proxy saw, and whether it was encrypted to there, where the proxy is on this machine."""
    peer = (scope.get("client") or ("", 0))[0]
    try:
        if not ipaddress.ip_address(peer).is_loopback:
            return
        seen = str(ipaddress.ip_address(headers.get("x-forwarded-for", "").rpartition(",")[2].strip()))
    except ValueError:
        return
    scope["client"] = (seen, 0)
    if headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower() == "https":
        scope["scheme"] = "https"


async def _redirect(scope: Scope, send: Send) -> None:
    asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    where = LOGIN_PAGE if asked == "/" else f"{LOGIN_PAGE}?next={quote(asked, safe='/')}"
    await send({"type": "http.response.start", "status": 303, "headers": [(b"location", where.encode()), (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="flywheel"'
    await as_asked(scope, response)(scope, receive, send)
