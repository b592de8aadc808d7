"""Encryption at rest: AES-256-GCM under a key that scrypt makes of a passphrase. Without a passphrase the vault is open: bytes stay bytes.

Every piece (a journal line, a file, a second of sound) is sealed by itself with a nonce of its own, and bound to its name, so that pieces
cannot be swapped. The passphrase is kept nowhere; who loses it has lost the recording.
"""

from __future__ import annotations

import base64
import os
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from warehouse.core.errors import RecordingLocked

NONCE_BYTES = 12
CHECK = b"flywheel recording"
MIN_PASSPHRASE = 8


class Seal(BaseModel):
    """How the key is made, and a sealed known text that shows a wrong passphrase at once (RFC 7914 for the parameters)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kdf: Literal["scrypt"] = "scrypt"
    salt: str
    n: Annotated[int, Field(ge=2**14, le=2**20)] = 2**15
    r: Annotated[int, Field(ge=8, le=32)] = 8
    p: Annotated[int, Field(ge=1, le=8)] = 1
    check: str = ""


class Vault(Protocol):
    @property
    def is_sealed(self) -> bool: ...

    def seal(self, data: bytes, name: str) -> bytes: ...

    def unseal(self, data: bytes, name: str) -> bytes:
        """Raises RecordingLocked for bytes that were not sealed under this key and name."""
        ...


class OpenVault:
    """Stores bytes as they are."""

    is_sealed = False

    def seal(self, data: bytes, name: str) -> bytes:
        return data

    def unseal(self, data: bytes, name: str) -> bytes:
        return data


class SealedVault:
    is_sealed = True

    def __init__(self, passphrase: str, seal: Seal) -> None:
        """Derives the key: a tenth of a second and 32 MiB, on purpose."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        kdf = Scrypt(salt=base64.b64decode(seal.salt), length=32, n=seal.n, r=seal.r, p=seal.p)
        self._cipher = AESGCM(kdf.derive(passphrase.encode()))

    def seal(self, data: bytes, name: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, name.encode())

    def unseal(self, data: bytes, name: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError) as error:
            raise RecordingLocked(
                f"{name} cannot be opened with this passphrase, or was changed. Give the one it was recorded with."
            ) from error


def new_vault(passphrase: str | None) -> tuple[Vault, Seal | None]:
    """A vault for a new recording. Raises RecordingLocked for a passphrase that is too short to protect anything."""
    if passphrase is None:
        return OpenVault(), None
    if len(passphrase) < MIN_PASSPHRASE:
        raise RecordingLocked(f"The passphrase has {len(passphrase)} characters; at least {MIN_PASSPHRASE} are needed.")
    seal = Seal(salt=base64.b64encode(os.urandom(16)).decode())
    vault = SealedVault(passphrase, seal)
    return vault, seal.model_copy(update={"check": base64.b64encode(vault.seal(CHECK, "check")).decode()})


def open_vault(passphrase: str | None, seal: Seal | None) -> Vault:
    """The vault of a recording that is there. Raises RecordingLocked."""
    if seal is None:
        return OpenVault()
    if passphrase is None:
        raise RecordingLocked("This recording is sealed: give its passphrase (FLYWHEEL_RECORD_PASSPHRASE, or when asked).")
    vault = SealedVault(passphrase, seal)
    vault.unseal(base64.b64decode(seal.check), "check")
    return vault
