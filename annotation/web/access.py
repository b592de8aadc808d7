"""Who may call a route. Each route says so beside its path, `@app.post("/api/v1/campaigns", **needs("admin"))`; the guard reads it, and
does not start with one that says nothing. And what a route may ask for: who is asking, and from where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute

from annotation.storage.logins import Principal
from annotation.storage.schema import ROLES
from annotation.web.office import Office
from warehouse.core.errors import ConfigError

_KEY = "x-access"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`role` None: open to all, without a login."""

    role: str | None
    programs: bool = True
    """Whether a program's token will do; else only a person who logged in."""
    is_page: bool = False
    """Whether somebody without a login is shown the way there."""
    is_automatic: bool = False
    """Whether pages call it by themselves, e.g. heartbeats: such calls do not keep a login from getting idle."""
    max_body_bytes: int | None = None
    """Where it is not the server's own limit."""

    def allows(self, role: str) -> bool:
        """Each role may do what those before it may."""
        return self.role is None or ROLES.index(role) >= ROLES.index(self.role)


def needs(
    role: str, *, programs: bool = True, is_page: bool = False, is_automatic: bool = False, max_body_bytes: int | None = None
) -> dict[str, Any]:
    """Arguments of a route that wants a login of this role or a higher one; what else they mean is Access's to say."""
    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    access = Access(role=role, programs=programs, is_page=is_page, is_automatic=is_automatic, max_body_bytes=max_body_bytes)
    return {"openapi_extra": {_KEY: access}}


def open_to_all(*, max_body_bytes: int | None = None) -> dict[str, Any]:
    """Arguments of a route that wants no login. There are few."""
    return {"openapi_extra": {_KEY: Access(role=None, max_body_bytes=max_body_bytes)}}


def accesses(app: FastAPI) -> list[tuple[APIRoute, Access]]:
    """Every route and who may call it. Raises ConfigError for one that does not say."""
    found = []
    for route in app.routes:
        access = (route.openapi_extra or {}).get(_KEY) if isinstance(route, APIRoute) else None
        if not isinstance(route, APIRoute) or access is None:
            raise ConfigError(f"the route {getattr(route, 'path', route)} does not say who may call it: use access.needs or open_to_all")
        found.append((route, access))
    return found


def principal_of(request: Request) -> Principal:
    """Whom the guard found."""
    who: Principal = request.scope["principal"]
    return who


def principal_or_none(request: Request) -> Principal | None:
    """On routes that are open to all."""
    who: Principal | None = request.scope.get("principal")
    return who


def address_of(request: Request) -> str:
    """Of the client, for limits and the audit log."""
    return str(request.scope["address"])


def office_of(request: Request) -> Office:
    office: Office = request.app.state.office
    return office


Who = Annotated[Principal, Depends(principal_of)]
MaybeWho = Annotated[Principal | None, Depends(principal_or_none)]
Address = Annotated[str, Depends(address_of)]
