"""The contracts of plug-ins by kind, checked point by point: sandbox/tasks/conformance.py, agent/grammars/conformance.py,
models/judges/conformance.py and pipelines/importing/conformance.py list the promises, `flywheel check` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from warehouse.core.errors import FlywheelError

T = TypeVar("T")


class NotKept(FlywheelError, AssertionError):
    """A plug-in does not do what plug-ins of its kind promise; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A promise, and why it is not kept; "" where it is."""

    promise: str
    problem: str = ""


def require(holds: bool, problem: str) -> None:
    if not holds:
        raise NotKept(problem)


def checked(promises: Mapping[str, Callable[[T], None]], subject: T) -> Iterator[Checked]:
    """Each promise on its own: whatever a plug-in raises is a problem, and the next promise is checked all the same."""
    for promise, check in promises.items():
        try:
            check(subject)
        except NotKept as error:
            yield Checked(promise=promise, problem=str(error))
        except Exception as error:
            yield Checked(promise=promise, problem=f"{type(error).__name__}: {error}")
        else:
            yield Checked(promise=promise)


def problems(found: Iterable[Checked]) -> list[str]:
    return [f"{each.promise}: {each.problem}" for each in found if each.problem]
