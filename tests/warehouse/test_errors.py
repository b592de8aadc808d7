"""Errors cross processes: whatever the class, the other end knows it again, and whether another try may help."""

from __future__ import annotations

import json

import pytest

from warehouse.core import errors
from warehouse.core.errors import (
    BrowserCrashed,
    BrowserMissing,
    ConfigError,
    CorruptTable,
    EngineUnreachable,
    FlywheelError,
    MachineLimit,
    SandboxError,
    StorageFull,
    WorkerKilled,
    from_plain,
    is_retryable,
    name_of,
    to_plain,
)

CLASSES = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, FlywheelError)), key=lambda each: each.__name__
)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_crosses(kind: type[FlywheelError]) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(kind("what was wrong")))), FlywheelError)
    assert type(again) is kind and str(again) == "what was wrong" and again.is_retryable is kind.is_retryable


def test_what_a_person_must_fix_is_not_retryable_and_what_comes_and_goes_is() -> None:
    assert not any(kind.is_retryable for kind in (ConfigError, StorageFull, MachineLimit, CorruptTable, BrowserMissing))
    assert all(kind.is_retryable for kind in (SandboxError, BrowserCrashed, EngineUnreachable, WorkerKilled))
    assert is_retryable(KeyError("of nobody knows what"))


def test_a_class_that_the_other_end_does_not_know_is_its_parent_and_as_retryable_as_it_was() -> None:
    class LicenceExpired(SandboxError):
        is_retryable = False

    assert name_of(LicenceExpired()) == "SandboxError" and name_of(KeyError()) == "KeyError"
    again = from_plain(to_plain(LicenceExpired("renew it")), FlywheelError)
    assert type(again) is SandboxError and not again.is_retryable and SandboxError.is_retryable
    defect = from_plain(to_plain(KeyError("x")), SandboxError)
    assert type(defect) is SandboxError and defect.is_retryable
