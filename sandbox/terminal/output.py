"""What programs print, made fit to be read by an agent: not too long, and as a person would see it."""

from __future__ import annotations

import re

CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that begin no character."""
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f]")


class Capture:
    """Keeps the beginning and the end of what is printed, and counts what is dropped between."""

    def __init__(self, limit_chars: int) -> None:
        self._half = limit_chars * 2  # bytes: a character may take four, and the cut is made in characters
        self._limit_chars = limit_chars
        self._head, self._tail = bytearray(), bytearray()
        self._num_dropped = 0
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        left = self._half - len(self._head)
        if left > 0 and not self._tail:
            self._head += data[:left]
            data = data[left:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            extra = len(self._tail) - self._half
            self._num_dropped += len(bytes(self._tail[:extra]).translate(None, CONTINUATION_BYTES))
            del self._tail[:extra]

    def take(self) -> str:
        """The text so far, at most the limit of characters and a line that says how much is left out; then it is empty."""
        head, tail, half = bytes(self._head), bytes(self._tail), self._limit_chars // 2
        num_dropped, self._num_dropped = self._num_dropped, 0
        self._head.clear()
        self._tail.clear()
        self.num_bytes = 0
        if not num_dropped:
            text = cleaned(head + tail)
            if len(text) <= self._limit_chars:
                return text
            return _joined(text[:half], len(text) - 2 * half, text[-half:])
        start, end = cleaned(head), cleaned(tail)
        return _joined(start[:half], num_dropped + max(0, len(start) - half) + max(0, len(end) - half), end[-half:])


def _joined(start: str, num_dropped: int, end: str) -> str:
    return f"{start}\n[… {num_dropped} characters left out …]\n{end}"


def cut(text: str, max_chars: int) -> str:
    """The beginning of a text, and how much is left out after it."""
    num_over = len(text) - max_chars
    return text if num_over <= 0 else f"{text[:max_chars]}\n[… {num_over} characters left out …]"


def cleaned(data: bytes) -> str:
    """What a person would see of it: no escape sequences, and of a line that was written over its last text."""
    text = ESCAPES.sub("", data.decode(errors="replace"))
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
