"""What travels between pages and server about accounts. Wire forms only; what they mean is service/accounts.py's.

POST   /api/v1/login              LogIn -> Me, and the cookie                              (open)
POST   /api/v1/invitation         Invited -> InvitationView, without using it              (open)
POST   /api/v1/join               Join -> Me, and the cookie                               (open)
POST   /api/v1/logout             204                                                      (annotator)
GET    /api/v1/me                 Me                                                       (annotator)
POST   /api/v1/me/password        ChangePassword -> Me, and a new cookie                   (annotator, people only)
GET    /api/v1/me/tokens          list of TokenView                                        (annotator, people only)
POST   /api/v1/me/tokens          AddToken -> NewToken, shown once                          (annotator, people only)
DELETE /api/v1/me/tokens/{id}     204                                                      (annotator, people only)
GET    /api/v1/users              list of UserView                                         (admin, people only)
PATCH  /api/v1/users/{id}         ChangeUser -> UserView                                   (admin, people only)
POST   /api/v1/invitations        Invite -> NewInvitation                                  (admin, people only)
GET    /api/v1/audit              ?before=&subject=&limit= -> list of AuditView, newest first  (admin, people only)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["annotator", "reviewer", "admin"]
Name = Annotated[str, Field(max_length=64)]
Secret = Annotated[str, Field(max_length=1024, repr=False)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LogIn(_Body):
    name: Name
    password: Secret


class Invited(_Body):
    token: Secret


class Join(_Body):
    """`name` is not asked where the invitation is for an existing account."""

    token: Secret
    name: Name = ""
    password: Secret


class InvitationView(_Body):
    role: Role
    name: str | None
    """The account that gets a new password; null where one is made."""
    expires_at_s: float


class Me(_Body):
    user_id: str
    name: str
    role: Role
    kind: Literal["browser", "program"]
    csrf_token: str | None
    """For the header X-CSRF-Token of whatever changes something; null for programs, which need none."""


class ChangePassword(_Body):
    """Ends every other login, and every token."""

    old: Secret
    new: Secret


class AddToken(_Body):
    label: Annotated[str, Field(min_length=1, max_length=100)]
    password: Secret
    days: Annotated[int, Field(ge=1, le=366)] = 90


class TokenView(_Body):
    token_id: str
    label: str
    created_at_s: float
    seen_at_s: float
    expires_at_s: float


class NewToken(TokenView):
    token: str


class UserView(_Body):
    user_id: str
    name: str
    role: Role
    is_program: bool
    created_at_s: float
    disabled_at_s: float | None


class ChangeUser(_Body):
    """What is null stays."""

    role: Role | None = None
    is_disabled: bool | None = None


class Invite(_Body):
    """For a new account of a role, or `user_id`: a new password for that account."""

    role: Role = "annotator"
    user_id: Annotated[str | None, Field(max_length=32)] = None
    days: Annotated[int, Field(ge=1, le=30)] = 7


class NewInvitation(_Body):
    path: str
    """/join#TOKEN: what is behind the # never reaches a server's log. Shown once."""
    role: Role
    expires_at_s: float


class AuditView(_Body):
    entry_id: int
    at_s: float
    user: str | None
    """The name; null for the command line, and for who is not known."""
    action: str
    subject: str | None
    """The name of an account, else an id."""
    detail: dict[str, Any]
    address: str | None
