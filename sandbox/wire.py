"""Sessions' values on a wire: as plain values (bytes stay bytes, for binary transports) or as JSON text (bytes as URL-safe base64).
Who talks to whom is sandbox/fleet and sandbox/server; what is said is here, once.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sandbox.actions import Action
from sandbox.session import FileEntry, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError

T = TypeVar("T")
MSGPACK_TYPE = "application/msgpack"
"""Media type of plain values between server and client."""

_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Codec(Generic[T]):
    """One kind of value, both ways. Reading raises SandboxError that names what does not fit."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        # Of a tuple, because pydantic takes settings for bytes around a dataclass, not on one.
        self._adapter: TypeAdapter[tuple[T]] = TypeAdapter(tuple[kind], config=_BASE64)

    def to_plain(self, value: T) -> Any:
        """Dicts, tuples, strings, numbers; a screenshot as bytes."""
        return self._adapter.dump_python((value,))[0]

    def from_plain(self, plain: Any) -> T:
        try:
            return self._adapter.validate_python((plain,))[0]
        except ValidationError as error:
            raise self._misfit(error) from error

    def to_json(self, value: T) -> bytes:
        return self._adapter.dump_json((value,))[1:-1]

    def from_json(self, text: bytes) -> T:
        try:
            return self._adapter.validate_json(b"[" + text + b"]")[0]
        except ValidationError as error:
            raise self._misfit(error) from error

    def _misfit(self, error: ValidationError) -> SandboxError:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][1:])
        return SandboxError(
            f"What came over the wire is not a valid {self.name}: {where}: {problem['msg']} (got {str(problem['input'])[:80]!r}). "
            "Both ends must run the same version of Flywheel."
        )


OBSERVATION: Codec[Observation] = Codec("observation", Observation)
TRANSITION: Codec[Transition] = Codec("transition", Transition)
VERDICT: Codec[Verdict] = Codec("verdict", Verdict)
TASK: Codec[Task] = Codec("task", Task)
ACTION: Codec[Action | None] = Codec("action", Action | None)
FILES: Codec[tuple[FileEntry, ...] | None] = Codec("list of files", tuple[FileEntry, ...] | None)
TEXT: Codec[str | None] = Codec("text", str | None)
