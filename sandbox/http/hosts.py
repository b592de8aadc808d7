"""The names under which an HTTP server of ours answers. A page of another site can have its own name resolve to this machine's address (DNS
rebinding), and is then of one origin with the server in the browser's eyes; the `Host` that the browser sends still names the other site.
Who may ask for what is each server's guard's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MISDIRECTED, POLICY_VIOLATION = 421, 1008
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})
"""Names that no resolver outside this machine answers for."""
LONGEST_SHOWN = 80


class KnownHosts:
    """ASGI middleware, the outermost: a request for any other name gets a 421 and goes no further."""

    def __init__(
        self, app: ASGIApp, names: Iterable[str] = (), advice: str = "If the name is its own, start it with --allow-host NAME."
    ) -> None:
        """`names`: host names without a port that are allowed beside loopback names and IP addresses. An address cannot be rebound, as
        nothing resolves it. `advice`: what the refusal says to do."""
        self._app, self._advice = app, advice
        self._names = LOCAL_NAMES | {name.lower().rstrip(".") for name in names if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            given = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
            if len(given) != 1 or not self.allows(given[0]):
                if scope["type"] == "websocket":
                    return await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # before it is accepted: a 403
                shown = ", ".join(given)[:LONGEST_SHOWN]
                text = f"The server does not answer for the host {shown!r}. {self._advice}\n"
                return await PlainTextResponse(text, MISDIRECTED, headers={"cache-control": "no-store"})(scope, receive, send)
        await self._app(scope, receive, send)

    def allows(self, host: str) -> bool:
        """Whether the value of a `Host` header, with or without a port, names this server."""
        name = host_name(host)
        return name is not None and (name in self._names or _is_address(name))


def host_name(host: str) -> str | None:
    """The name in a `Host` header, in small letters and without its port; None where it is not a name with an optional port."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        is_usable = bool(bracket) and _is_address(name) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        name, _, port = host.partition(":")
        is_usable = bool(name)
    if not is_usable or (port and not (port.isascii() and port.isdigit())):
        return None
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
