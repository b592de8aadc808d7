"""Completion in the action editor, for every grammar: what may stand at the cursor. A pure function; values come from
completion_values.py.
"""

from __future__ import annotations

from annotation.service.editor.completion_calls import complete_call, complete_tags
from annotation.service.editor.completion_compact import complete_compact
from annotation.service.editor.completion_values import Surroundings
from annotation.wire.runs import Completion


def complete(action: str, cursor: int, around: Surroundings) -> list[Completion]:
    """Best first. A cursor behind the end is at the end."""
    cursor = min(cursor, len(action))
    match around.grammar.name:
        case "compact":
            return complete_compact(action, cursor, around)
        case "uitars2":
            return complete_tags(action, cursor, around)
        case _:
            return complete_call(action, cursor, around)


def accepted(action: str, completion: Completion) -> tuple[str, int]:
    """The action with a completion in it, and the cursor, as the page does it."""
    return action[: completion.start] + completion.text + action[completion.end :], completion.cursor
