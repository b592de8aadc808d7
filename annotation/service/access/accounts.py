"""Accounts at work: logging in and out, invitations, passwords, tokens, and who is asking. Each of these is in the audit log.

Hashing a password happens outside of transactions: it takes longer than all the rest together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from annotation.service.access.passwords import Passwords, check_password
from annotation.storage import accounts, attempts, audit, logins
from annotation.storage.attempts import Limits
from annotation.storage.database import Database
from annotation.storage.logins import Lifetimes, Principal
from annotation.storage.schema import Invitation, Login, User
from warehouse.core.errors import AccessDenied, ConfigError, LoginRefused, NotNow

INVITATION_S = 7 * 86400.0
TOKEN_S, LONGEST_TOKEN_S = 90 * 86400.0, 366 * 86400.0
LONGEST_LABEL = 100
REFUSED = "name and password do not go together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A login that has just been made: what the browser is given."""

    secret: str = field(repr=False)
    device: str = field(repr=False)
    """The device cookie: proof, at later logins, that the account got in with this browser before."""
    device_s: float
    csrf_token: str = field(repr=False)
    user: User
    longest_s: float


class Accounts:
    """`clock` gives seconds since 1970."""

    def __init__(
        self,
        database: Database,
        passwords: Passwords | None = None,
        *,
        limits: Limits | None = None,
        lifetimes: Lifetimes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database, self.passwords, self.clock = database, passwords or Passwords(), clock
        self.limits, self.lifetimes = limits or Limits(), lifetimes or Lifetimes()

    async def who(self, secret: str, kind: str, *, touch: bool = True) -> Principal | None:
        """Whose secret this is. `kind`: browser or program. `touch`: it is a sign of life, which keeps a login from getting idle."""
        now_s = self.clock()
        found = await self.database.reading(logins.find, secret, kind, self.lifetimes, now_s=now_s)
        if found is not None and found.is_stale and touch:
            await self.database.writing(logins.touch, found.digest, now_s=now_s)
        return found

    async def log_in(self, name: str, password: str, address: str, *, instead_of: str | None = None, device: str | None = None) -> Opened:
        """`instead_of`: digest of the login that the browser had, which ends. `device`: its device cookie. Raises LoginRefused,
        TooManyAttempts."""
        kept = name.strip().lower()[:64]
        attempt_id = await self.database.writing(attempts.begin, kept, address, self.limits, now_s=self.clock(), device=device)
        user = await self.database.reading(accounts.by_name, kept)
        is_right = await self.passwords.matches(user.password_hash if user is not None else None, password[:1024])
        if user is None or not is_right or user.disabled_at_s is not None:
            await self.database.writing(_refuse, user, address, self.clock())
            raise LoginRefused(REFUSED)
        rehashed = await self.passwords.hashed(password) if self.passwords.needs_rehash(str(user.password_hash)) else None
        return await self.database.writing(self._open, user, attempt_id, address, instead_of, rehashed, device)

    def _open(
        self, session: Session, seen: User, attempt_id: int, address: str, instead_of: str | None, rehashed: str | None, device: str | None
    ) -> Opened:
        now_s = self.clock()
        user = accounts.get(session, seen.user_id, for_update=True)
        if user.disabled_at_s is not None or user.password_hash != seen.password_hash:
            raise LoginRefused(REFUSED)  # it changed while the password was compared
        if rehashed is not None:
            user.password_hash = rehashed
        attempts.succeed(session, attempt_id)
        if instead_of is not None:
            logins.end(session, instead_of, now_s=now_s)
        audit.record(session, "login.opened", now_s=now_s, user_id=user.user_id, subject=user.user_id, address=address)
        return self._opened(session, user, device, now_s)

    def _opened(self, session: Session, user: User, device: str | None, now_s: float) -> Opened:
        secret, login = logins.open_browser(session, user, self.lifetimes, now_s=now_s)
        return Opened(
            secret=secret,
            csrf_token=str(login.csrf_token),
            user=user,
            longest_s=self.lifetimes.longest_s,
            device=attempts.trust(session, user.name, device, now_s=now_s),
            device_s=self.limits.known_s,
        )

    async def log_out(self, who: Principal, address: str) -> None:
        def work(session: Session) -> None:
            now_s = self.clock()
            logins.end(session, who.digest, now_s=now_s)
            audit.record(session, "login.ended", now_s=now_s, user_id=who.user_id, subject=who.user_id, address=address)

        await self.database.writing(work)

    async def invite(
        self, role: str, *, by: Principal | None, address: str | None = None, ttl_s: float = INVITATION_S, for_user: str | None = None
    ) -> tuple[str, Invitation]:
        """The secret of a link. `for_user`: the account that gets a new password. Raises ConfigError, UnknownSubject, NotNow."""

        def work(session: Session) -> tuple[str, Invitation]:
            now_s = self.clock()
            inviter = accounts.get(session, by.user_id, for_update=True) if by is not None else None
            if inviter is not None and by is not None and (inviter.role != by.role or inviter.disabled_at_s is not None):
                raise AccessDenied(f"{inviter.name} may not invite any more")  # since the request came in
            user = accounts.get(session, for_user) if for_user is not None else None
            if user is not None and user.password_hash is None:
                raise NotNow(f"{user.name} is a program: it has tokens, no password")
            secret, invitation = accounts.invite(
                session, user.role if user else role, ttl_s=ttl_s, now_s=now_s, invited_by=by.user_id if by else None, user=user
            )
            audit.record(
                session,
                "invitation.made",
                now_s=now_s,
                user_id=by.user_id if by else None,
                subject=for_user,
                address=address,
                role=invitation.role,
            )
            return secret, invitation

        return await self.database.writing(work)

    async def invitation(self, secret: str) -> tuple[Invitation, str | None]:
        """One that may be used, and the name of the account that it is for. Raises UnknownSubject."""

        def work(session: Session) -> tuple[Invitation, str | None]:
            found = accounts.invitation_of(session, secret, now_s=self.clock())
            return found, accounts.get(session, found.user_id).name if found.user_id else None

        return await self.database.reading(work)

    async def accept(self, secret: str, name: str, password: str, address: str, *, device: str | None = None) -> Opened:
        """Make the account of an invitation, or set the password that it is for, and log in. Raises ConfigError, UnknownSubject."""
        _, given = await self.invitation(secret)
        kept = given or accounts.checked_name(name)
        check_password(password, kept)
        return await self.database.writing(self._accept, secret, kept, await self.passwords.hashed(password), address, device)

    def _accept(self, session: Session, secret: str, name: str, password_hash: str, address: str, device: str | None) -> Opened:
        now_s = self.clock()
        invitation = accounts.invitation_of(session, secret, now_s=now_s, for_update=True)
        if invitation.user_id is not None:
            user = accounts.get(session, invitation.user_id, for_update=True)
            if user.disabled_at_s is not None:
                raise NotNow(f"the account {user.name} is disabled: ask who administers it")
            invitation.used_by = user.user_id
            accounts.set_password(session, user, password_hash, now_s=now_s)
        else:
            user = accounts.add_user(session, name, invitation.role, password_hash, now_s=now_s)
            invitation.used_by = user.user_id
        audit.record(session, "invitation.used", now_s=now_s, user_id=user.user_id, subject=user.user_id, address=address, role=user.role)
        return self._opened(session, user, device, now_s)

    async def change_password(self, who: Principal, old: str, new: str, address: str, *, device: str | None = None) -> Opened:
        """End every login and token of the account, and open a new login. Raises ConfigError, LoginRefused, TooManyAttempts."""
        seen = await self._check_password(who, old, address)
        check_password(new, who.name)
        password_hash = await self.passwords.hashed(new)

        def work(session: Session) -> Opened:
            now_s = self.clock()
            user = accounts.get(session, who.user_id, for_update=True)
            if user.password_hash != seen.password_hash or user.disabled_at_s is not None:
                raise LoginRefused(REFUSED)
            num_ended = accounts.set_password(session, user, password_hash, now_s=now_s)
            audit.record(
                session, "password.changed", now_s=now_s, user_id=user.user_id, subject=user.user_id, address=address, num_ended=num_ended
            )
            return self._opened(session, user, device, now_s)

        return await self.database.writing(work)

    async def add_token(self, who: Principal, password: str, label: str, address: str, *, ttl_s: float = TOKEN_S) -> tuple[str, Login]:
        """A token of one's own account, for a program; wants the password again. Raises ConfigError, LoginRefused, TooManyAttempts."""
        _check_token(label, ttl_s)
        await self._check_password(who, password, address)
        return await self.database.writing(self._add_token, who.user_id, label, ttl_s, who.user_id, address)

    def _add_token(
        self, session: Session, user_id: str, label: str, ttl_s: float, by: str | None, address: str | None
    ) -> tuple[str, Login]:
        now_s = self.clock()
        secret, login = logins.add_token(session, accounts.get(session, user_id), label, ttl_s=ttl_s, now_s=now_s)
        audit.record(session, "token.made", now_s=now_s, user_id=by, subject=user_id, address=address, label=label)
        return secret, login

    async def add_program(self, name: str, role: str, label: str, *, ttl_s: float = TOKEN_S) -> tuple[str, User]:
        """From the command line: an account without a password, and its first token; for one that is there, another token."""
        _check_token(label, ttl_s)

        def work(session: Session) -> tuple[str, User]:
            now_s = self.clock()
            user = accounts.by_name(session, name)
            if user is None:
                user = accounts.add_user(session, name, role, None, now_s=now_s)
                audit.record(session, "user.added", now_s=now_s, subject=user.user_id, role=role)
            elif user.password_hash is not None:
                raise NotNow(f"{user.name} is a person, who makes tokens after logging in: choose another name for the program")
            elif user.role != role or user.disabled_at_s is not None:
                raise NotNow(f"the program {user.name} is there already, as {user.role}{' and disabled' if user.disabled_at_s else ''}")
            secret, _ = self._add_token(session, user.user_id, label, ttl_s, None, None)
            return secret, user

        return await self.database.writing(work)

    async def end_token(self, who: Principal, token_id: str, address: str) -> None:
        """Raises UnknownSubject."""

        def work(session: Session) -> None:
            now_s = self.clock()
            login = logins.end_token(session, who.user_id, token_id, now_s=now_s)
            audit.record(session, "token.ended", now_s=now_s, user_id=who.user_id, subject=who.user_id, address=address, label=login.label)

        await self.database.writing(work)

    async def set_role(self, user_id: str, role: str, *, by: Principal | None, address: str | None = None) -> User:
        """Ends the invitations of a person who is no longer an admin. Raises ConfigError, UnknownSubject, NotNow for the last admin."""

        def work(session: Session) -> User:
            user, now_s = accounts.get(session, user_id, for_update=True), self.clock()
            before = user.role
            accounts.set_role(session, user, role, now_s=now_s)
            audit.record(
                session,
                "user.role_set",
                now_s=now_s,
                user_id=by.user_id if by else None,
                subject=user_id,
                address=address,
                before=before,
                role=role,
            )
            return user

        return await self.database.writing(work)

    async def set_disabled(self, user_id: str, is_disabled: bool, *, by: Principal | None, address: str | None = None) -> User:
        """Its logins, tokens and invitations end with it, and do not come back. Raises UnknownSubject, NotNow for the last admin."""

        def work(session: Session) -> User:
            now_s = self.clock()
            user = accounts.get(session, user_id, for_update=True)
            if is_disabled:
                accounts.disable(session, user, now_s=now_s)
                logins.end_all(session, user_id, now_s=now_s)
            else:
                accounts.enable(user)
            action = "user.disabled" if is_disabled else "user.enabled"
            audit.record(session, action, now_s=now_s, user_id=by.user_id if by else None, subject=user_id, address=address)
            return user

        return await self.database.writing(work)

    async def _check_password(self, who: Principal, password: str, address: str) -> User:
        """The account, where the password is its own. Raises LoginRefused, TooManyAttempts: a stolen login may not try passwords."""
        # Apart from logins, which anybody may try: their names are compared in lower case, so that none is this.
        own = f"PASSWORD OF {who.user_id}"
        attempt_id = await self.database.writing(attempts.begin, own, address, self.limits, now_s=self.clock())
        user = await self.database.reading(accounts.get, who.user_id)
        if not await self.passwords.matches(user.password_hash, password[:1024]):
            await self.database.writing(_refuse, user, address, self.clock())
            raise LoginRefused("this is not the account's password")
        await self.database.writing(attempts.succeed, attempt_id)
        return user


def _refuse(session: Session, user: User | None, address: str, now_s: float) -> None:
    """What was typed as a name may be a password: it is not kept, only whose account it names, where there is one."""
    audit.record(session, "login.failed", now_s=now_s, subject=user.user_id if user else None, address=address)


def _check_token(label: str, ttl_s: float) -> None:
    if not 0 < len(label) <= LONGEST_LABEL:
        raise ConfigError(f"a token's label has 1 to {LONGEST_LABEL} characters; this one has {len(label)}")
    if not 60 <= ttl_s <= LONGEST_TOKEN_S:
        raise ConfigError(f"a token lasts from a minute to {LONGEST_TOKEN_S / 86400:.0f} days; {ttl_s:.0f} s were asked for")
