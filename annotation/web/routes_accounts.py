"""Routes of accounts: logging in and out, invitations, one's own password and tokens, other people's accounts, the audit log."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, FastAPI, Query, Request, Response
from sqlalchemy.orm import Session

from annotation.service.access.accounts import Accounts, Opened
from annotation.storage import accounts as stored
from annotation.storage import audit, logins
from annotation.storage.schema import Login, User
from annotation.web.access import Address, MaybeWho, Who, needs, office_of, open_to_all
from annotation.web.guard import DEVICE, LOGIN, device_of
from annotation.wire import accounts as bodies
from annotation.wire.accounts import AuditView, Me, Role, TokenView, UserView
from sandbox.http.cookies import cookie_header
from warehouse.core.errors import NotNow

LOGIN_BODY_BYTES = 8 * 1024


def _accounts(request: Request) -> Accounts:
    return office_of(request).accounts


AllAccounts = Annotated[Accounts, Depends(_accounts)]


def add_to(app: FastAPI) -> None:
    _add_logins(app)
    _add_own(app)
    _add_users(app)


def _add_logins(app: FastAPI) -> None:
    @app.post("/api/v1/login", tags=["accounts"], summary="Log in", **open_to_all(max_body_bytes=LOGIN_BODY_BYTES))
    async def log_in(
        body: bodies.LogIn, request: Request, response: Response, who: MaybeWho, address: Address, accounts: AllAccounts
    ) -> Me:
        """A login that the browser had is ended: nobody's cookie outlives a login."""
        instead_of, device = who.digest if who is not None and who.kind == "browser" else None, device_of(request)
        opened = await accounts.log_in(body.name, body.password, address, instead_of=instead_of, device=device)
        return _opened(request, response, opened)

    @app.post("/api/v1/invitation", tags=["accounts"], summary="Look at an invitation", **open_to_all(max_body_bytes=LOGIN_BODY_BYTES))
    async def invitation(body: bodies.Invited, accounts: AllAccounts) -> bodies.InvitationView:
        found, name = await accounts.invitation(body.token)
        return bodies.InvitationView(role=cast(Role, found.role), name=name, expires_at_s=found.expires_at_s)

    @app.post("/api/v1/join", tags=["accounts"], summary="Accept an invitation", **open_to_all(max_body_bytes=LOGIN_BODY_BYTES))
    async def join(body: bodies.Join, request: Request, response: Response, address: Address, accounts: AllAccounts) -> Me:
        opened = await accounts.accept(body.token, body.name, body.password, address, device=device_of(request))
        return _opened(request, response, opened)

    @app.post("/api/v1/logout", status_code=204, tags=["accounts"], summary="Log out", **needs("annotator"))
    async def log_out(request: Request, who: Who, address: Address, accounts: AllAccounts) -> Response:
        await accounts.log_out(who, address)
        headers = {"Set-Cookie": cookie_header(request.scope, LOGIN, "", 0)} if who.kind == "browser" else None
        return Response(status_code=204, headers=headers)


def _add_own(app: FastAPI) -> None:
    own = needs("annotator", programs=False, max_body_bytes=LOGIN_BODY_BYTES)

    @app.get("/api/v1/me", tags=["accounts"], summary="Who is logged in", **needs("annotator"))
    async def me(who: Who) -> Me:
        kind = "program" if who.kind == "program" else "browser"
        return Me(user_id=who.user_id, name=who.name, role=cast(Role, who.role), kind=kind, csrf_token=who.csrf_token)

    @app.post("/api/v1/me/password", tags=["accounts"], summary="Change one's password", **own)
    async def password(
        body: bodies.ChangePassword, request: Request, response: Response, who: Who, address: Address, accounts: AllAccounts
    ) -> Me:
        opened = await accounts.change_password(who, body.old, body.new, address, device=device_of(request))
        return _opened(request, response, opened)

    @app.get("/api/v1/me/tokens", tags=["accounts"], summary="One's own tokens", **own)
    async def tokens(who: Who, accounts: AllAccounts) -> list[TokenView]:
        found = await accounts.database.reading(logins.tokens, who.user_id, now_s=accounts.clock())
        return [TokenView.model_validate(_token(login)) for login in found]

    @app.post("/api/v1/me/tokens", status_code=201, tags=["accounts"], summary="Make a token for a program", **own)
    async def add_token(body: bodies.AddToken, who: Who, address: Address, accounts: AllAccounts) -> bodies.NewToken:
        """Wants the password again. The token is shown here and nowhere else."""
        secret, login = await accounts.add_token(who, body.password, body.label, address, ttl_s=body.days * 86400.0)
        return bodies.NewToken.model_validate({**_token(login), "token": secret})

    @app.delete("/api/v1/me/tokens/{token_id}", status_code=204, tags=["accounts"], summary="End a token", **own)
    async def end_token(token_id: str, who: Who, address: Address, accounts: AllAccounts) -> Response:
        await accounts.end_token(who, token_id, address)
        return Response(status_code=204)


def _add_users(app: FastAPI) -> None:
    admin = needs("admin", programs=False)

    @app.get("/api/v1/users", tags=["accounts"], summary="All accounts", **admin)
    async def users(accounts: AllAccounts) -> list[UserView]:
        return [_user(user) for user in await accounts.database.reading(stored.users)]

    @app.patch("/api/v1/users/{user_id}", tags=["accounts"], summary="Change an account's role, or bar it", **admin)
    async def change_user(user_id: str, body: bodies.ChangeUser, who: Who, address: Address, accounts: AllAccounts) -> UserView:
        if user_id == who.user_id:
            raise NotNow("nobody changes their own role or bars themselves: ask another admin")
        user = await accounts.database.reading(stored.get, user_id)
        if body.role is not None:
            user = await accounts.set_role(user_id, body.role, by=who, address=address)
        if body.is_disabled is not None:
            user = await accounts.set_disabled(user_id, body.is_disabled, by=who, address=address)
        return _user(user)

    @app.post("/api/v1/invitations", status_code=201, tags=["accounts"], summary="Invite somebody", **admin)
    async def invite(body: bodies.Invite, who: Who, address: Address, accounts: AllAccounts) -> bodies.NewInvitation:
        secret, made = await accounts.invite(body.role, by=who, address=address, ttl_s=body.days * 86400.0, for_user=body.user_id)
        return bodies.NewInvitation(path=f"/join#{secret}", role=cast(Role, made.role), expires_at_s=made.expires_at_s)

    @app.get("/api/v1/audit", tags=["accounts"], summary="The audit log", **admin)
    async def log(
        accounts: AllAccounts,
        before: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
        subject: Annotated[str | None, Query(max_length=80)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> list[AuditView]:
        def work(session: Session) -> list[AuditView]:
            names = stored.names(session)
            return [
                AuditView(
                    entry_id=entry.entry_id,
                    at_s=entry.at_s,
                    user=names.get(entry.user_id or ""),
                    action=entry.action,
                    subject=names.get(entry.subject or "", entry.subject),
                    detail=entry.detail,
                    address=entry.address,
                )
                for entry in audit.entries(session, before=before, subject=subject, limit=limit)
            ]

        return await accounts.database.reading(work)


def _opened(request: Request, response: Response, opened: Opened) -> Me:
    for header in (
        cookie_header(request.scope, LOGIN, opened.secret, opened.longest_s),
        cookie_header(request.scope, DEVICE, opened.device, opened.device_s),
    ):
        response.headers.append("Set-Cookie", header)
    user = opened.user
    return Me(user_id=user.user_id, name=user.name, role=cast(Role, user.role), kind="browser", csrf_token=opened.csrf_token)


def _token(login: Login) -> dict[str, object]:
    return {
        "token_id": logins.token_id_of(login),
        "label": login.label or "",
        "created_at_s": login.created_at_s,
        "seen_at_s": login.seen_at_s,
        "expires_at_s": login.expires_at_s,
    }


def _user(user: User) -> UserView:
    return UserView(
        user_id=user.user_id,
        name=user.name,
        role=cast(Role, user.role),
        is_program=user.password_hash is None,
        created_at_s=user.created_at_s,
        disabled_at_s=user.disabled_at_s,
    )
