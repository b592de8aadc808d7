"""The address of a sandbox server as a profile has it, and the variable that holds its token."""

from __future__ import annotations

import os
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sandbox.http.tokens import sendable
from warehouse.core.errors import ConfigError


class ServerAddress(BaseModel):
    """A server; a text alone is its address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(description="address, e.g. http://10.0.0.2:8421")]
    token_env: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
            description="variable that holds its token; null: FLYWHEEL_SANDBOX_TOKEN, else the token of the home",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        problem = f"{url!r} is not the address of a sandbox server: write scheme, host and port, e.g. http://10.0.0.2:8421"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{problem} ({error})") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(problem)
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"{url!r} holds a password: name the variable of a token instead, {{url: …, token_env: NAME}}")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")

    def token(self) -> str | None:
        """The token that it names; None where it names none. Raises ConfigError where the variable is not set or does not hold a token."""
        if self.token_env is None:
            return None
        if not (token := os.environ.get(self.token_env, "").strip()):
            raise ConfigError(f"The variable {self.token_env}, the token of the sandbox server {self.url}, is not set: set it.")
        return sendable(token, f"the variable {self.token_env}")


def address_of_text(url: str) -> ServerAddress:
    """Of a command line. Raises ConfigError."""
    try:
        return ServerAddress(url=url)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
