"""Cookies that hold a login: scripts cannot read them, other sites cannot use them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import cookie_parser
from starlette.types import Scope


def cookie_name(scope: Scope, kind: str) -> str:
    """Cookies are shared by all ports of a host, and two servers must not overwrite each other's; encrypted, the name alone forbids
    browsers to take it from anywhere but this host."""
    if scope["scheme"] == "https":
        return f"__Host-flywheel_{kind}"
    return f"flywheel_{kind}_{(scope.get('server') or ('', 0))[1]}"


def cookie_of(scope: Scope, headers: Mapping[str, str], kind: str) -> str:
    """What a request holds, whatever it is; empty for nothing. `headers` by their names in lower case."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(scope, kind), "")


def cookie_header(scope: Scope, kind: str, secret: str, longest_s: float) -> str:
    """Set-Cookie of a new login; an empty secret takes it back."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    age_s = round(longest_s) if secret else 0
    return f"{cookie_name(scope, kind)}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}"
