"""Bearer tokens that a server of ours takes, and the private files that hold them. Which file or variable a server reads is its own."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from warehouse.core.durable import make_folder
from warehouse.core.errors import ConfigError

MIN_LENGTH = 16


class Tokens:
    """Named tokens. Only their digests are kept; a comparison takes the same time whatever is wrong with what it is given."""

    def __init__(self, by_client: Mapping[str, str]) -> None:
        """Raises ConfigError for no token, a short one, or one with characters that a header cannot carry."""
        if not by_client:
            raise ConfigError("There is no token: a server without one would be open to all. Name one, or leave the file out.")
        for client, token in by_client.items():
            if len(token) < MIN_LENGTH or not _is_sendable(token):
                raise ConfigError(
                    f"The token of {client!r} is not usable: at least {MIN_LENGTH} printable ASCII characters without spaces are needed, "
                    "for instance from `openssl rand -hex 32`."
                )
        self._digests = {client: _digest(token) for client, token in by_client.items()}
        if len(set(self._digests.values())) < len(self._digests):
            raise ConfigError(f"Two of the clients {', '.join(by_client)} have the same token: give each its own.")

    def client(self, token: str) -> str | None:
        """The name of the client that this is the token of."""
        given, found = _digest(token), None
        for client, digest in self._digests.items():
            if hmac.compare_digest(given, digest):
                found = client
        return found


def sendable(token: str, where: str) -> str:
    """The token, without white space around it, e.g. the line's end that a mounted secret has. `where`: in words, where it is from. Raises
    ConfigError, without the token, for one that a header cannot carry."""
    if not _is_sendable(token := token.strip()):
        raise ConfigError(f"The token in {where} is not usable: a token has printable ASCII characters and no spaces. Set it again.")
    return token


def _is_sendable(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def read_tokens(path: Path) -> dict[str, str]:
    """Tokens by client from a file of lines `name token`; empty lines and lines from # on are skipped. Raises ConfigError."""
    found: dict[str, str] = {}
    for number, line in enumerate(_read_private(path).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] in found:
            raise ConfigError(f"{path}:{number}: one line a client is expected, `name token`, each name once; this line is not that.")
        found[words[0]] = words[1]
    return found


def read_token(path: Path) -> str:
    """The only token of a file. Raises ConfigError where others may read it."""
    return _read_private(path).strip()


def own_token(path: Path) -> str:
    """The token of a file, which is made on first use. Raises ConfigError where others may read it."""
    if not path.exists():
        _make(path)
    return read_token(path)


def _read_private(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The token file {path} cannot be read: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"The token file {path} may be read by others (mode {mode & 0o777:o}): `chmod 600 {path}`, and use new tokens.")
    return text


def _make(path: Path) -> None:
    """Written aside and linked, so that another server of this home finds no token or a whole one; the first that links is everyone's."""
    make_folder(path.parent)
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")  # only its owner may read it
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        os.unlink(aside)
