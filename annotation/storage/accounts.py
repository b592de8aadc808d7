"""People and programs that work here, and the invitations that accounts are made by. Passwords come in as hashes; who is logged in is
logins.py's, who may do what is the server's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from annotation.storage import logins
from annotation.storage.database import lock
from annotation.storage.ids import digest_of, new_id, new_secret
from annotation.storage.schema import ROLES, Invitation, User
from warehouse.core.errors import ConfigError, NotNow, UnknownSubject

_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")


def checked_name(name: str) -> str:
    """A name as it is kept, in lower case. Raises ConfigError."""
    kept = name.strip().lower()
    if not _NAME.fullmatch(kept):
        raise ConfigError(
            f"{name[:80]!r} cannot be an account's name: up to 64 of a-z, 0-9 and . _ @ + - are allowed, the first a letter or digit"
        )
    return kept


def checked_role(role: str) -> str:
    if role not in ROLES:
        raise ConfigError(f"there is no role {role[:80]!r}; there are {', '.join(ROLES)}")
    return role


def add_user(session: Session, name: str, role: str, password_hash: str | None, *, now_s: float) -> User:
    """`password_hash` None: a program. Raises ConfigError for a name that is taken or none."""
    kept = checked_name(name)
    lock(session, "accounts")
    if by_name(session, kept) is not None:
        raise ConfigError(f"the name {kept!r} is taken: choose another one")
    user = User(user_id=new_id("user"), name=kept, password_hash=password_hash, role=checked_role(role), created_at_s=now_s)
    session.add(user)
    session.flush()
    return user


def by_name(session: Session, name: str) -> User | None:
    return session.scalar(select(User).where(User.name == name.strip().lower()))


def get(session: Session, user_id: str, *, for_update: bool = False) -> User:
    """Raises UnknownSubject."""
    user = session.get(User, user_id, with_for_update=for_update)
    if user is None:
        raise UnknownSubject(f"there is no account {user_id[:80]!r}")
    return user


def named(session: Session, name: str) -> User:
    """Raises UnknownSubject."""
    user = by_name(session, name)
    if user is None:
        raise UnknownSubject(f"there is no account called {name[:80]!r}; `flywheel annotate users list` lists the accounts")
    return user


def users(session: Session) -> Sequence[User]:
    return session.scalars(select(User).order_by(User.name)).all()


def names(session: Session) -> dict[str, str]:
    """Names by id, for lists."""
    return {user.user_id: user.name for user in session.scalars(select(User))}


def set_role(session: Session, user: User, role: str, *, now_s: float) -> None:
    """Who may no longer invite has invited nobody. Raises NotNow where nobody would be left who may administer."""
    if checked_role(role) != "admin":
        check_another_admin(session, user)
        void_invitations(session, Invitation.invited_by == user.user_id, now_s=now_s)
    user.role = role


def disable(session: Session, user: User, *, now_s: float) -> None:
    """Its invitations end, its logins are the caller's to end. Raises NotNow where nobody would be left who may administer."""
    check_another_admin(session, user)
    user.disabled_at_s = user.disabled_at_s or now_s
    void_invitations(session, Invitation.invited_by == user.user_id, now_s=now_s)
    void_invitations(session, Invitation.user_id == user.user_id, now_s=now_s)


def set_password(session: Session, user: User, password_hash: str, *, now_s: float) -> int:
    """A new one, with which every login, token and link to set another one end; how many logins and tokens."""
    user.password_hash = password_hash
    void_invitations(session, Invitation.user_id == user.user_id, now_s=now_s)
    return logins.end_all(session, user.user_id, now_s=now_s)


def enable(user: User) -> None:
    user.disabled_at_s = None


def check_another_admin(session: Session, user: User) -> None:
    """Raises NotNow for the only account that may administer."""
    if user.role != "admin" or user.disabled_at_s is not None or user.password_hash is None:
        return
    lock(session, "accounts")
    others = select(func.count()).where(
        User.role == "admin", User.disabled_at_s.is_(None), User.password_hash.is_not(None), User.user_id != user.user_id
    )
    if not session.scalar(others):
        raise NotNow(f"{user.name} is the only account that may administer: make another one an admin first")


def invite(
    session: Session, role: str, *, ttl_s: float, now_s: float, invited_by: str | None = None, user: User | None = None
) -> tuple[str, Invitation]:
    """The secret of a link that makes one account of a role, or gives `user` a new password."""
    secret = new_secret()
    invitation = Invitation(
        token_digest=digest_of(secret),
        role=checked_role(role),
        user_id=user.user_id if user else None,
        invited_by=invited_by,
        created_at_s=now_s,
        expires_at_s=now_s + ttl_s,
    )
    session.add(invitation)
    return secret, invitation


def invitation_of(session: Session, secret: str, *, now_s: float, for_update: bool = False) -> Invitation:
    """One that may still be used. Raises UnknownSubject, the same for one that never was."""
    invitation = session.get(Invitation, digest_of(secret), with_for_update=for_update)
    if invitation is None or invitation.used_by is not None or invitation.expires_at_s <= now_s:
        raise UnknownSubject("this invitation is not valid: it was used or taken back, is too old, or is cut off. Ask for another one.")
    return invitation


def void_invitations(session: Session, which: ColumnElement[bool], *, now_s: float) -> None:
    """End those of them that are not used yet."""
    unused = update(Invitation).where(which, Invitation.used_by.is_(None), Invitation.expires_at_s > now_s)
    session.execute(unused.values(expires_at_s=now_s))
