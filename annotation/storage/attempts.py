"""Attempts to log in, and how many of them may fail: few of one name from one address, so that nobody tries the passwords of one account;
more of an address, so that nobody tries one password on all; and many of a name from anywhere, so that nobody does it from everywhere.
They are counted in the database: a restart forgives nothing.

Whoever knows a name must not be able to lock its owner out: what fails elsewhere does not count against an address from which the name
got in lately. Names are kept as digests: people type their password there by mistake. An attempt counts as failed from when it begins, so
that a hundred at once are a hundred. A success forgives what failed under its name from its address before it; the rest stays.

An address of IPv6 counts as its network of 64 bits: whoever has one address there has all of them.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.ids import digest_of
from annotation.storage.schema import LoginAttempt
from warehouse.errors import TooManyAttempts

NETWORK_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Failures that are allowed within `window_s`. An address may stand for a whole office."""

    by_name_and_address: int = 8
    by_address: int = 100
    by_name: int = 200
    window_s: float = 900.0
    known_s: float = 30 * 86400.0
    """So long an address is known as one of a name's own."""


def begin(session: Session, name: str, address: str, limits: Limits, *, now_s: float) -> int:
    """Count an attempt, as failed for now; its id. Raises TooManyAttempts where one has to wait. An empty name counts by address only."""
    name, address = digest_of(name) if name else "", source_of(address)
    lock(session, f"attempts from {address}")
    if name:
        lock(session, f"attempts as {name}")
    since_s = now_s - limits.window_s
    _check(session, LoginAttempt.address == address, since_s, limits.by_address, limits, now_s)
    if name:
        here = and_(LoginAttempt.name == name, LoginAttempt.address == address)
        won_s = session.scalar(select(func.max(LoginAttempt.at_s)).where(here, LoginAttempt.succeeded))
        _check(session, here, max(since_s, won_s or 0.0), limits.by_name_and_address, limits, now_s)
        if won_s is None or won_s < now_s - limits.known_s:
            _check(session, LoginAttempt.name == name, since_s, limits.by_name, limits, now_s)
    attempt = LoginAttempt(name=name, address=address, at_s=now_s, succeeded=False)
    session.add(attempt)
    session.flush()
    return attempt.attempt_id


def source_of(address: str) -> str:
    """What counts as one caller: an address of IPv4, also where it is written as one of IPv6, or a network of IPv6. What is no address
    stays as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), NETWORK_BITS), strict=False))


def succeed(session: Session, attempt_id: int) -> None:
    session.execute(update(LoginAttempt).where(LoginAttempt.attempt_id == attempt_id).values(succeeded=True))


def _check(session: Session, whose: ColumnElement[bool], since_s: float, allowed: int, limits: Limits, now_s: float) -> None:
    failed = select(LoginAttempt.at_s).where(whose, LoginAttempt.at_s > since_s, LoginAttempt.succeeded.is_(False))
    newest = session.scalars(failed.order_by(LoginAttempt.at_s.desc()).limit(allowed)).all()
    if len(newest) < allowed:
        return
    wait_s = max(1.0, math.ceil(newest[-1] + limits.window_s - now_s))
    told = f"{allowed} attempts failed within {limits.window_s / 60:.0f} minutes: try again in {math.ceil(wait_s / 60)} minutes"
    raise TooManyAttempts(told, wait_s)
