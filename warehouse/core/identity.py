"""Identity is content: how every id in the warehouse is made. Nothing here reads a table.

An id is `<kind>-<16 hex digits of SHA-256 over canonical JSON>`; two things with the same content have the same id on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ID_HEX_DIGITS = 16
LEAST_LIKENESS = 0.75
"""An id less like a wrong one than this (Jaro-Winkler) is not the one that was meant."""
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Made once: `json.dumps` with these options makes one for every call, which is half of its time."""


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8: equal values give equal bytes."""
    return _ENCODER.encode(value).encode()


def content_id(kind: str, value: Any) -> str:
    """Id of a JSON-able value, e.g. `content_id("task", spec) -> "task-3f2a…"`."""
    return f"{kind}-{hashlib.sha256(canonical_json(value)).hexdigest()[:ID_HEX_DIGITS]}"


def long_list_id(kind: str, parts: Iterable[Sequence[Any]], *, head: Sequence[Any] = ()) -> str:
    """`content_id(kind, [*head, values])` of values that come in parts and need not fit memory together."""
    digest, separator = hashlib.sha256(canonical_json([*head])[:-1] + (b",[" if head else b"[")), b""
    for part in parts:
        if part:
            digest.update(separator + canonical_json(part)[1:-1])
            separator = b","
    digest.update(b"]]")
    return f"{kind}-{digest.hexdigest()[:ID_HEX_DIGITS]}"


def bytes_id(kind: str, data: bytes) -> str:
    """Id of raw bytes (a screenshot, a file)."""
    return f"{kind}-{hashlib.sha256(data).hexdigest()[:ID_HEX_DIGITS]}"


def files_id(kind: str, paths: Iterable[Path]) -> str:
    """Id of a set of files: names (without folders) and contents, in name order. Used for a checkpoint's weights and tokenizer."""
    return digests_id(kind, ((path.name, file_digest(path)) for path in paths))


def digests_id(kind: str, digests: Iterable[tuple[str, str]]) -> str:
    """`files_id` of files whose names and digests are known."""
    digest = hashlib.sha256()
    for name, content in sorted(digests, key=lambda pair: pair[0]):
        digest.update(name.encode() + b"\0" + bytes.fromhex(content))
    return f"{kind}-{digest.hexdigest()[:ID_HEX_DIGITS]}"


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stable_fraction(*parts: Any) -> float:
    """A number in [0, 1) fixed by content: the same parts fall on the same side of a split everywhere."""
    return int.from_bytes(hashlib.sha256(canonical_json(parts)).digest()[:8], "big") / 2**64


def stable_seed(*parts: Any) -> int:
    """A 63-bit seed fixed by content, for random generators of one episode, one sample, one batch."""
    return int.from_bytes(hashlib.sha256(canonical_json(parts)).digest()[:8], "big") >> 1
