"""Ids of what people make, and digests of what only they know. What has content has an id by its content (warehouse/core/identity.py)."""

from __future__ import annotations

import hashlib
import secrets

TOKEN_BYTES = 32


def new_id(kind: str) -> str:
    """`user-3f2a…`: as long as a content id, and by chance."""
    return f"{kind}-{secrets.token_hex(8)}"


def new_secret(prefix: str = "") -> str:
    """256 bits by chance, for a cookie, a token or a link. Only its digest is kept."""
    return prefix + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(secret: str) -> str:
    """What a secret is found by. Nobody can guess 256 bits, so that a fast hash is enough."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
