"""JSON and YAML that a stranger may have written, as plain values: how deep, how large and how odd they may be. Records of files are
sandbox/tasks/imported/collecting.py's business, large files of demonstrations pipelines/importing/reading.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 100
MAX_NODES = 1_000_000
"""Values in one record, an alias counted as often as it is used."""
MAX_INTEGER = 2**63
TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
TOO_LARGE = f"holds more than {MAX_NODES:,} values, aliases counted as often as they are used"


class NotPlain(ValueError):
    """A text is not JSON or YAML that can be a record, and why."""


def parse_json(text: str) -> Any:
    """Raises NotPlain."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise NotPlain(TOO_DEEP) from None
    except ValueError as error:
        raise NotPlain(f"is not JSON: {error}") from None
    check(value)
    return value


def check(value: Any) -> None:
    """Raises NotPlain for what JSON cannot say, or says only in Python: NaN, dates, keys that are not texts, half a surrogate pair; and for
    what is too deep or too large."""
    waiting = [(value, 0)]
    num_nodes = 0
    while waiting:
        each, depth = waiting.pop()
        num_nodes += 1
        if num_nodes + len(waiting) > MAX_NODES:
            raise NotPlain(TOO_LARGE)
        if depth > MAX_DEPTH:
            raise NotPlain(TOO_DEEP)
        if isinstance(each, dict):
            waiting += [(part, depth + 1) for item in each.items() for part in item]
            if odd := [key for key in each if not isinstance(key, str)]:
                raise NotPlain(f"has the key {odd[0]!r}, which is not a text: put it in quotes")
        elif isinstance(each, list):
            waiting += [(part, depth + 1) for part in each]
        else:
            _check_scalar(each)


def _check_scalar(value: Any) -> None:
    match value:
        case None | bool():
            pass
        case str():
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise NotPlain(f"has a text with half a surrogate pair, which is not a character: {ascii(value)[:60]}")
        case int():
            if abs(value) >= MAX_INTEGER:
                raise NotPlain("has a whole number of more than 64 bits")
        case float():
            if not math.isfinite(value):
                raise NotPlain(f"has the number {value}, which JSON does not have: give a finite number")
        case _:
            raise NotPlain(f"has a value of type {type(value).__name__}: put it in quotes, so that it is a text")


def yaml_records(text: str, *, is_one_record: bool) -> Iterator[tuple[int, str, Any]]:
    """(line, text, value) of each record of a YAML document: of a list, of an object with a list `tasks` unless such an object
    `is_one_record`, or the document itself. The value is a NotPlain where the record is not plain. Raises NotPlain for a document that
    cannot be read at all."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except RecursionError:
        raise NotPlain(TOO_DEEP) from None
    except (ValueError, yaml.YAMLError) as error:
        raise NotPlain(f"is neither JSON nor YAML: {error}") from None
    for node in _records(root, is_one_record):
        yield node.start_mark.line + 1, text[node.start_mark.index : node.end_mark.index], _value(loader, node)


def _records(root: Any, is_one_record: bool) -> list[Any]:
    if isinstance(root, yaml.MappingNode) and not is_one_record:
        root = next((value for key, value in root.value if key.value == "tasks" and isinstance(value, yaml.SequenceNode)), root)
    return [] if root is None else list(root.value) if isinstance(root, yaml.SequenceNode) else [root]


def _value(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """Nodes are counted before values are made of them: merged aliases (`<<`) multiply as they are."""
    waiting = [(node, 0)]
    num_nodes = 0
    while waiting:
        each, depth = waiting.pop()
        num_nodes += 1
        if num_nodes + len(waiting) > MAX_NODES:
            return NotPlain(TOO_LARGE)
        if depth > MAX_DEPTH:
            return NotPlain(TOO_DEEP)
        if isinstance(each, yaml.MappingNode):
            waiting += [(part, depth + 1) for item in each.value for part in item]
        elif isinstance(each, yaml.SequenceNode):
            waiting += [(part, depth + 1) for part in each.value]
    try:
        value = loader.construct_document(node)
        check(value)
    except NotPlain as error:
        return error
    except (ValueError, TypeError, OverflowError, yaml.YAMLError) as error:
        return NotPlain(f"is not YAML that can be read: {error}")
    return value
