"""YAML of settings as plain data. A few lines of text may be endless once they are read: aliases of aliases, or a list that
contains itself.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_VALUES = 100_000
"""Values that a text may come to, each alias counted as often as it stands. No settings have a hundredth of it."""
MAX_DEPTH = 100
"""Of lists and mappings in one another."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML was built with it: ten times as fast."""
_TOO_DEEP = "it is nested too deeply, or holds itself"


def read_yaml(text: str) -> Any:
    """Raises yaml.YAMLError for all that is not plain data of a size that can be worked with."""
    try:
        _check_depth(text)
        value = yaml.load(text, LOADER)  # nosec B506 # a safe loader
        _count(value, {})
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except (ValueError, TypeError, OverflowError, AttributeError) as error:  # a number of 5,000 digits, a month of 13
        raise yaml.YAMLError(f"a value in it cannot be read: {error}") from error
    return value


def _check_depth(text: str) -> None:
    """Reads no further than to the first part that is too deep: what builds values calls itself for each level."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP)


def _count(value: Any, counts: dict[int, int]) -> int:
    """How many values it is; those of a part that stands in many places are counted once, and added as often as it stands."""
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in counts:
        parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
        counts[id(value)] = 1 + sum(_count(part, counts) for part in parts)
        if counts[id(value)] > MAX_VALUES:
            raise yaml.YAMLError(f"it comes to more than {MAX_VALUES:,} values, by aliases of aliases")
    return counts[id(value)]
