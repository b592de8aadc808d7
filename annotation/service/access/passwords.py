"""Passwords: which are good enough, and their hashes by argon2. A few at a time: each hash takes 64 MiB and some tens of milliseconds of a
core, on purpose. What is hashed and compared lies in memory only."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from warehouse.core.errors import ConfigError

SHORTEST, LONGEST = 12, 256
FEWEST_DIFFERENT = 6
NUM_AT_ONCE = 2


def check_password(password: str, name: str) -> None:
    """Raises ConfigError, which does not repeat it."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise ConfigError(f"a password has {SHORTEST} to {LONGEST} characters; this one has {len(password)}")
    if len(set(password)) < FEWEST_DIFFERENT or (name and name.lower() in password.lower()):
        raise ConfigError(f"this password is easy to guess: use {FEWEST_DIFFERENT} or more different characters, not the account's name")


class Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        """`hasher`: argon2id as RFC 9106 recommends it where memory is scarce, unless given."""
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="passwords")
        self._nobodys: str | None = None

    def hash(self, password: str) -> str:
        return self._hasher.hash(password)

    async def hashed(self, password: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.hash, password)

    async def matches(self, password_hash: str | None, password: str) -> bool:
        """None: an account that is not there, or a program. It takes as long, so that the time does not reveal which names exist."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._matches, password_hash, password)

    def needs_rehash(self, password_hash: str) -> bool:
        """Whether it was made with weaker settings than today's."""
        return self._hasher.check_needs_rehash(password_hash)

    def _matches(self, password_hash: str | None, password: str) -> bool:
        if self._nobodys is None:
            self._nobodys = self._hasher.hash("nobody's password")
        try:
            self._hasher.verify(password_hash or self._nobodys, password)
        except (VerifyMismatchError, InvalidHashError):
            return False
        return password_hash is not None

    def close(self) -> None:
        self._threads.shutdown()
