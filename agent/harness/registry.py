"""Which harnesses there are, by name: HARNESSES. How one is registered is warehouse/core/plugins.py; a profile's `collection.harness`
names the one that collects.
"""

from __future__ import annotations

from inspect import iscoroutinefunction, signature
from typing import Any

from agent.harness.harness import Assignment, Command, Harness
from warehouse.core.plugins import Plugins


def is_harness(found: Any) -> bool:
    return isinstance(found, Command) or (iscoroutinefunction(found) and _takes_assignment(found))


def _takes_assignment(function: Any) -> bool:
    taken = [parameter.annotation for parameter in signature(function).parameters.values()]
    return len(taken) == 1 and getattr(taken[0], "__name__", str(taken[0])).endswith(Assignment.__name__)


HARNESSES: Plugins[Harness] = Plugins(
    "harnesses",
    noun="harness",
    example="agent.py:HARNESS",
    is_one=is_harness,
    expected="a Command (agent/harness/harness.py), e.g. `HARNESS = Command(('python', 'agent.py'))`, or an `async def` of one Assignment",
    own_name=lambda found: None,
    ships=False,
)
