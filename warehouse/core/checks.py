"""Check: whether something that a run needs is there, and how to fix it where it is not. `flywheel doctor` and dry runs list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check found. `fix` says what to do; a warning lets a run start, a failure does not."""

    name: str
    status: Status
    found: str
    fix: str = ""
