"""Who is logged in: sessions of browsers and tokens of programs, found by the digest of a secret that only their holder has. A login ends
by being idle or old, by logging out, with its account, or with the account's password."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from annotation.storage.ids import digest_of, new_secret
from annotation.storage.schema import Login, User
from warehouse.core.errors import UnknownSubject

TOKEN_PREFIX = "fla_"
"""Of programs' tokens, so that scanners for leaked secrets know one."""
SEEN_EVERY_S = 60.0
"""A sign of life is written down so often at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """A working day of a browser's login."""

    idle_s: float = 4 * 3600.0
    longest_s: float = 16 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The author of a request: an account, and the login that proves it."""

    user_id: str
    name: str
    role: str
    kind: str
    digest: str
    csrf_token: str | None
    is_stale: bool = False
    """Its sign of life should be written down again."""


def open_browser(session: Session, user: User, lifetimes: Lifetimes, *, now_s: float) -> tuple[str, Login]:
    """A new login: its secret for the cookie, and its row."""
    secret = new_secret()
    login = Login(
        digest=digest_of(secret),
        user_id=user.user_id,
        kind="browser",
        csrf_token=new_secret(),
        created_at_s=now_s,
        seen_at_s=now_s,
        expires_at_s=now_s + lifetimes.longest_s,
    )
    session.add(login)
    return secret, login


def add_token(session: Session, user: User, label: str, *, ttl_s: float, now_s: float) -> tuple[str, Login]:
    """A program's token, shown once."""
    secret = new_secret(TOKEN_PREFIX)
    login = Login(
        digest=digest_of(secret),
        user_id=user.user_id,
        kind="program",
        label=label,
        created_at_s=now_s,
        seen_at_s=now_s,
        expires_at_s=now_s + ttl_s,
    )
    session.add(login)
    return secret, login


def find(session: Session, secret: str, kind: str, lifetimes: Lifetimes, *, now_s: float) -> Principal | None:
    """Whose secret this is, while its login and its account last."""
    found = session.execute(
        select(Login, User).join(User, User.user_id == Login.user_id).where(Login.digest == digest_of(secret), Login.kind == kind)
    ).one_or_none()
    if found is None:
        return None
    login, user = found
    is_over = login.ended_at_s is not None or login.expires_at_s <= now_s or user.disabled_at_s is not None
    if is_over or (kind == "browser" and login.seen_at_s + lifetimes.idle_s <= now_s):
        return None
    return Principal(
        user_id=user.user_id,
        name=user.name,
        role=user.role,
        kind=kind,
        digest=login.digest,
        csrf_token=login.csrf_token,
        is_stale=now_s - login.seen_at_s > SEEN_EVERY_S,
    )


def touch(session: Session, digest: str, *, now_s: float) -> None:
    session.execute(update(Login).where(Login.digest == digest, Login.ended_at_s.is_(None)).values(seen_at_s=now_s))


def end(session: Session, digest: str, *, now_s: float) -> None:
    session.execute(update(Login).where(Login.digest == digest, Login.ended_at_s.is_(None)).values(ended_at_s=now_s))


def end_all(session: Session, user_id: str, *, now_s: float) -> int:
    """End every login and token of an account; how many."""
    open_ones = session.scalars(select(Login).where(Login.user_id == user_id, Login.ended_at_s.is_(None))).all()
    for login in open_ones:
        login.ended_at_s = now_s
    return len(open_ones)


def tokens(session: Session, user_id: str, *, now_s: float) -> Sequence[Login]:
    """The tokens of an account that still count, the newest first."""
    return session.scalars(
        select(Login)
        .where(Login.user_id == user_id, Login.kind == "program", Login.ended_at_s.is_(None), Login.expires_at_s > now_s)
        .order_by(Login.created_at_s.desc())
    ).all()


def end_token(session: Session, user_id: str, token_id: str, *, now_s: float) -> Login:
    """`token_id`: the first characters of its digest, as lists show it. Raises UnknownSubject for somebody else's."""
    for login in tokens(session, user_id, now_s=now_s):
        if token_id_of(login) == token_id:
            login.ended_at_s = now_s
            return login
    raise UnknownSubject(f"there is no token {token_id[:80]!r} of yours")


def token_id_of(login: Login) -> str:
    return login.digest[:12]
