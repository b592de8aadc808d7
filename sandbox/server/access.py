"""What a route of the sandbox server may ask for: who the client is, its leases, and those of its sessions that the address names."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from sandbox.server.lease import Lease
from sandbox.server.leases import Leases


def client_of(request: Request) -> str:
    """The name that the guard found for the token."""
    return str(request.scope["client_name"])


def leases_of(request: Request) -> Leases:
    leases: Leases = request.app.state.leases
    return leases


def own_lease(session_id: str, request: Request) -> Lease:
    """Raises LeaseLost for every session that is not the client's."""
    return leases_of(request).get(client_of(request), session_id)


Client = Annotated[str, Depends(client_of)]
AllLeases = Annotated[Leases, Depends(leases_of)]
OwnLease = Annotated[Lease, Depends(own_lease)]
