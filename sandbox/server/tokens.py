"""Who may talk to a sandbox server: tokens from a file, the environment, or made at the first start. Never from a command line, where
every process of the machine could read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sandbox.http.tokens import Tokens, own_token, read_token, read_tokens, sendable
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home

TOKEN_VARIABLE = "FLYWHEEL_SANDBOX_TOKEN"
TOKENS_FILE_VARIABLE = "FLYWHEEL_SANDBOX_TOKENS_FILE"
DEFAULT_CLIENT, ADMIN_CLIENT = "default", "admin"
"""Names of the client of a server's only token, and of the one among several that may drain it."""


def token_path(home: Home) -> Path:
    return home.root / "sandbox" / "token"


def server_tokens(home: Home, environ: Mapping[str, str] = os.environ) -> tuple[Tokens, str]:
    """The tokens a server takes, and in words where they are from: the file that FLYWHEEL_SANDBOX_TOKENS_FILE names, else the one in
    FLYWHEEL_SANDBOX_TOKEN, else the file in the home, made on first use. Raises ConfigError."""
    if named := environ.get(TOKENS_FILE_VARIABLE):
        return Tokens(read_tokens(Path(named))), f"the file {named}"
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return Tokens({DEFAULT_CLIENT: token}), f"the variable {TOKEN_VARIABLE}"
    path = token_path(home)
    return Tokens({DEFAULT_CLIENT: own_token(path)}), f"the file {path}"


def client_token(home: Home | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The token a client sends when it is given none: of the environment, else of a server of the same home. Raises ConfigError."""
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        return sendable(token, f"the variable {TOKEN_VARIABLE}")
    path = token_path(home or Home.from_env())
    if not path.exists():
        raise ConfigError(
            f"No token for the sandbox server: there is no {path}, which a server makes in its home. Set {TOKEN_VARIABLE}, or "
            "FLYWHEEL_HOME to the home that the server was started in."
        )
    return sendable(read_token(path), f"the file {path}")
