"""The chain of a table's commits, outside the table's folder: by it a commit counts as done, and a file of the log that was emptied,
deleted or swapped is noticed. What a log holds is commits.py's business.

FLYWHEEL_HOME/chain/<table>.commits has one record of RECORD_BYTES for each version, <table>.checkpoints one for each checkpoint of the log:
version, size and digest of the file, and a link, which is the digest of the link before and of the record. So one record is found and
checked without the others, however many there are. A record that a power cut tore counts as absent: its commit was never acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warehouse.core.durable import DIGEST_LENGTH, append, digest
from warehouse.core.errors import CorruptTable

RECORD_BYTES = 20 + 1 + 12 + 1 + DIGEST_LENGTH + 1 + DIGEST_LENGTH + 1
UNKNOWN = "-" * DIGEST_LENGTH
"""Digest of a file that was not there when the chain began."""
_MOST_TORN = 64
"""Records that are appended at once, at most, once the chain has begun."""


@dataclass(frozen=True, slots=True)
class Record:
    """One file of a log: the version that it is of, its size in bytes, and its digest."""

    version: int
    size: int
    digest: str


class Chain:
    """The records in one file. Appending needs the table's commit lock; reading does not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        """Whole records at the end of which the chain is sound; 0 where there is no chain. Raises CorruptTable."""
        try:
            num = self.path.stat().st_size // RECORD_BYTES
        except FileNotFoundError:
            return 0
        for length in range(num, max(-1, num - _MOST_TORN), -1):
            if length == 0 or self._last_is_sound(length):
                return length
        raise self._damaged(num - 1)

    def exists(self) -> bool:
        return len(self) > 0

    def head(self) -> Record | None:
        """The newest record."""
        length = len(self)
        return self.records(length - 1, length)[0] if length else None

    def head_link(self) -> str:
        """The newest link: what the next commit says that it comes after."""
        length = len(self)
        return self.link(length - 1) if length else self._seed()

    def link(self, index: int) -> str:
        """That of a record, counted from 0: it covers all records up to it."""
        return self._read(index, index + 1)[0][-1 - DIGEST_LENGTH : -1].decode()

    def records(self, begin: int, end: int) -> list[Record]:
        """Records `begin` up to, not including, `end`, counted from 0; none where there is no chain yet. Raises CorruptTable for one that
        was changed."""
        if end <= begin or not self.path.exists():
            return []
        lines = self._read(max(0, begin - 1), end)
        link = self._seed() if begin == 0 else lines.pop(0)[-1 - DIGEST_LENGTH : -1].decode(errors="replace")
        found = []
        for index, line in enumerate(lines, start=begin):
            if not _is_sound(line, link):
                raise self._damaged(index)
            version, size, file_digest, link = line[:-1].decode().split(" ")
            found.append(Record(int(version), int(size), file_digest))
        return found

    def append(self, records: Sequence[Record]) -> None:
        """Add records; they survive a power cut when this returns."""
        if not records:
            return
        length = len(self)
        append(self.path, self._lines(records, self.head_link()), at=length * RECORD_BYTES)

    def links(self, records: Sequence[Record], *, afresh: bool = False) -> list[str]:
        """The newest link, and those that records would have, were they appended; with `afresh` as the first of their chain."""
        first = self._seed() if afresh else self.head_link()
        lines = self._lines(records, first)
        return [first, *(lines[end - 1 - DIGEST_LENGTH : end - 1].decode() for end in range(RECORD_BYTES, len(lines) + 1, RECORD_BYTES))]

    def lines(self, records: Sequence[Record]) -> bytes:
        """The whole file of a chain that begins with these records."""
        return self._lines(records, self._seed())

    @staticmethod
    def _lines(records: Sequence[Record], link: str) -> bytes:
        lines = []
        for record in records:
            body = f"{record.version:020d} {record.size:012d} {record.digest}"
            link = digest(f"{link} {body}".encode())
            lines.append(f"{body} {link}\n".encode())
        return b"".join(lines)

    def _last_is_sound(self, length: int) -> bool:
        lines = self._read(max(0, length - 2), length)
        return _is_sound(lines[-1], self._seed() if length == 1 else lines[0][-1 - DIGEST_LENGTH : -1].decode(errors="replace"))

    def _read(self, begin: int, end: int) -> list[bytes]:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            data = os.pread(descriptor, (end - begin) * RECORD_BYTES, begin * RECORD_BYTES)
        finally:
            os.close(descriptor)
        return [data[start : start + RECORD_BYTES] for start in range(0, len(data), RECORD_BYTES)]

    def _seed(self) -> str:
        """Link before the first: no chain passes for that of another table."""
        return digest(self.path.name.encode())

    def _damaged(self, index: int) -> CorruptTable:
        return CorruptTable(
            f"record {index} of the chain of commits {self.path} was changed. To fix it: `flywheel doctor --repair` writes the chain again "
            "from the log of its table"
        )


def _is_sound(line: bytes, link: str) -> bool:
    body, last = line[: -2 - DIGEST_LENGTH], line[-2 - DIGEST_LENGTH :]
    return len(line) == RECORD_BYTES and last == f" {digest(link.encode() + b' ' + body)}\n".encode()
