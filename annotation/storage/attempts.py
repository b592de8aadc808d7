"""Attempts to log in, and how many of them may fail: few of one name from one source before each further one waits longer, and many of a
name from anywhere. They are counted in the database: a restart forgives nothing.

Nobody can lock another person out. What fails counts against a name and the source that it came from, never against a source alone: an
address may stand for a whole office. A browser from which a name got in before has a device cookie, and is a source of its own: what
others do from its address, under the same name too, does not count against it (OWASP, "Slow Down Online Guessing Attacks with Device
Cookies"). Nor does what fails elsewhere count against an address from which the name got in lately. An invitation's secret has 256 bits:
nobody guesses it, and nothing is counted.

Names are kept as digests: people type their password there by mistake. An attempt counts as failed from when it begins, so that a hundred
at once are a hundred. A success forgives what failed under its name from its source before it; the rest stays.

An address of IPv6 counts as its network of 64 bits: a client with one address there has all of them.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from sqlalchemy import and_, func, select, update
from sqlalchemy.orm import Session

from annotation.storage.database import lock
from annotation.storage.ids import digest_of, new_secret
from annotation.storage.schema import LoginAttempt
from warehouse.core.errors import TooManyAttempts

NETWORK_BITS = 64
DEVICE_PREFIX = "device "
DEVICE_DIGITS = 48
"""Hexadecimal, of the cookie's digest."""
DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """After `free` failures of a name from one source within a day the next has to wait `first_wait_s` after the last one, then twice as
    long, up to `longest_wait_s`. Sources that a name never came from have to wait while `by_name` failed within `window_s`."""

    free: int = 8
    first_wait_s: float = 15.0
    longest_wait_s: float = 900.0
    by_name: int = 200
    window_s: float = 900.0
    known_s: float = 30 * DAY_S
    """So long a source is known as one of a name's own."""


def begin(session: Session, name: str, address: str, limits: Limits, *, now_s: float, device: str | None = None) -> int:
    """Count an attempt, as failed for now; its id. `device`: the device cookie that came with it; one that the name never got in with
    counts for nothing. Raises TooManyAttempts where one has to wait."""
    name, source = digest_of(name), source_of(address)
    if device is not None and _won_s(session, name, source_of_device(device), limits, now_s) is not None:
        source = source_of_device(device)
    lock(session, f"attempts as {name}")
    won_s = _won_s(session, name, source, limits, now_s)
    _check_source(session, name, source, won_s or 0.0, limits, now_s)
    if won_s is None:
        _check_name(session, name, limits, now_s)
    attempt = LoginAttempt(name=name, address=source, at_s=now_s, succeeded=False)
    session.add(attempt)
    session.flush()
    return attempt.attempt_id


def source_of(address: str) -> str:
    """What counts as one caller: an address of IPv4, also where it is written as one of IPv6, or a network of IPv6. What is not an address
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


def source_of_device(device: str) -> str:
    """As what a device cookie is kept."""
    return DEVICE_PREFIX + digest_of(device)[:DEVICE_DIGITS]


def succeed(session: Session, attempt_id: int) -> None:
    session.execute(update(LoginAttempt).where(LoginAttempt.attempt_id == attempt_id).values(succeeded=True))


def trust(session: Session, name: str, device: str | None, *, now_s: float) -> str:
    """Note that a name got in with a browser; the device cookie for it. `device`: the one that it had, which stays where it is one of
    ours, as other names may have got in with it: nobody's planted one becomes a source."""
    if device is None or not _is_ours(session, source_of_device(device)):
        device = new_secret()
    session.add(LoginAttempt(name=digest_of(name), address=source_of_device(device), at_s=now_s, succeeded=True))
    return device


def _is_ours(session: Session, source: str) -> bool:
    return session.scalar(select(LoginAttempt.attempt_id).where(LoginAttempt.address == source).limit(1)) is not None


def _won_s(session: Session, name: str, source: str, limits: Limits, now_s: float) -> float | None:
    """When a name last got in from a source; None where that was never, or too long ago to be known."""
    here = and_(LoginAttempt.name == name, LoginAttempt.address == source, LoginAttempt.succeeded)
    won_s = session.scalar(select(func.max(LoginAttempt.at_s)).where(here))
    return won_s if won_s is not None and won_s >= now_s - limits.known_s else None


def _check_source(session: Session, name: str, source: str, won_s: float, limits: Limits, now_s: float) -> None:
    here = and_(LoginAttempt.name == name, LoginAttempt.address == source, LoginAttempt.succeeded.is_(False))
    counted = select(func.count(), func.max(LoginAttempt.at_s)).where(here, LoginAttempt.at_s > max(won_s, now_s - DAY_S))
    num, last_s = session.execute(counted).one()
    if num < limits.free:
        return
    wait_s = min(limits.longest_wait_s, limits.first_wait_s * 2.0 ** min(num - limits.free, 64))
    if last_s + wait_s > now_s:
        raise _waiting(num, last_s + wait_s - now_s)


def _check_name(session: Session, name: str, limits: Limits, now_s: float) -> None:
    since_s = now_s - limits.window_s
    failed = select(LoginAttempt.at_s).where(LoginAttempt.name == name, LoginAttempt.at_s > since_s, LoginAttempt.succeeded.is_(False))
    newest = session.scalars(failed.order_by(LoginAttempt.at_s.desc()).limit(limits.by_name)).all()
    if len(newest) >= limits.by_name:
        raise _waiting(limits.by_name, newest[-1] + limits.window_s - now_s)


def _waiting(num: int, wait_s: float) -> TooManyAttempts:
    whole_s = max(1, math.ceil(wait_s))
    after = f"{whole_s} seconds" if whole_s < 120 else f"{math.ceil(whole_s / 60)} minutes"
    return TooManyAttempts(f"{num} attempts failed: try again in {after}", whole_s)
