"""A record's fields, none of which is skipped silently."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class BadRecord(ValueError):
    """A record is not a task of its format, and why: it is named by file and line, kept as it is, and no task is made of it."""


class Fields:
    """A record's fields. What was neither taken nor said to be kept aside is `unknown`, by its dotted name."""

    def __init__(self, record: Any, what: str = "") -> None:
        if not isinstance(record, Mapping):
            raise BadRecord(f"{what or 'the record'} is {type(record).__name__}, expected an object with named fields")
        self._record, self._what, self._seen = record, what, set[str]()

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Raises BadRecord for a value of another type, and where there is neither a value nor a default."""
        self._seen.add(name)
        value = self._record.get(name)
        if value is None:
            if default is None:
                raise BadRecord(f"`{self.dotted(name)}` is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadRecord(f"`{self.dotted(name)}` is {type(value).__name__}, expected {kind.__name__}")
        return value

    def any(self, *names: str) -> Any:
        """The first of these that is there, whatever it is; None for none."""
        self._seen.update(names)
        return next((self._record[name] for name in names if self._record.get(name) is not None), None)

    def keep_aside(self, *names: str) -> None:
        """Known, of no use here, and kept with the record."""
        self._seen.update(names)

    def unknown(self) -> list[str]:
        return [self.dotted(name) for name in self._record if name not in self._seen]

    def dotted(self, name: str) -> str:
        return f"{self._what}.{name}" if self._what else str(name)


def listed(value: Any) -> list[Any]:
    """A field that holds a list, one value, or nothing, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def slug(text: str) -> str:
    """A name for a task: letters, digits, ".", "_" and "-"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "task"
