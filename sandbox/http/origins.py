"""Which pages may ask a server of this machine. A browser lets any page send requests to a loopback address, with `GET` and simple `POST`
without asking first; what it says of where they come from (`Origin`, `Sec-Fetch-Site`) decides here. Programs send neither and are let in.

For servers that are not ours and look at neither (Dagster's, Prefect's); those of ours have guards of their own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.http.guarding import headers_of
from sandbox.http.hosts import LOCAL_NAMES, KnownHosts, host_name

FORBIDDEN = 403
_NO_STORE = {"cache-control": "no-store"}


class OwnPagesOnly:
    """ASGI middleware, the outermost: a request or a WebSocket from a page of another origin gets a 403, one for a name that is not this
    machine's a 421 (sandbox/http/hosts.py). Links from other pages may be followed: that only shows a page of the server's own. `names`:
    further host names that programs may ask for."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = KnownHosts(app, names, advice="It is served on loopback alone: open it there, through a tunnel from another machine.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or is_own(scope, headers_of(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "from a page of another origin"})
        else:
            refusal = PlainTextResponse("The request comes from a page of another origin.\n", FORBIDDEN, headers=_NO_STORE)
            await refusal(scope, receive, send)


def is_own(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of the server's own, from a program, or from a link that somebody followed."""
    if "origin" in headers:
        return _is_origin_of(headers["origin"], headers.get("host", ""))
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    return scope.get("method") == "GET" and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")


def _is_origin_of(origin: str, host: str) -> bool:
    """Whether an origin is a loopback name or address, at the port that was asked: another name of the same server."""
    try:
        parts = urlsplit(origin)
        port = parts.port or 80
        own_port = urlsplit(f"//{host}").port or 80
    except ValueError:
        return False
    return parts.scheme == "http" and port == own_port and _is_loopback(host_name(parts.netloc))


def _is_loopback(name: str | None) -> bool:
    try:
        return name is not None and (name in LOCAL_NAMES or ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False
